"""Files of prompts, and the prompts that drafterforge loads from one."""

from __future__ import annotations

import json
from pathlib import Path

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.prompts import SPLITS, load_prompts, prompt_text

SQL = DomainConfig(name="sql")


def write_lines(path: Path, rows: list) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def load(path: Path, domain: DomainConfig = SQL, seed: int = 0, **options):
    return load_prompts(DataConfig(source="jsonl", path=str(path), **options), domain, seed)


def texts(prompts) -> dict[str, list[str]]:
    return {split: [prompt_text(p) for p in prompts[split]] for split in SPLITS}
