"""The whole loop, small: a sql expert for the embedded target, trained, decoded and measured."""

from __future__ import annotations

import time
from pathlib import Path

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.data.prompts import load_prompts
from drafterforge.evaluation.report import print_table
from drafterforge.pipelines.console import same_target, say, table_console
from drafterforge.pipelines.decode import decode_held_out
from drafterforge.pipelines.prepare_data import find_answers
from drafterforge.pipelines.train_drafter import train
from drafterforge.schema import QuickstartConfig
from drafterforge.target.load import load_target

Config = QuickstartConfig


def run(cfg: Config) -> Path:
    """Prepare, train, decode, report."""
    started = time.perf_counter()
    prompts = None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed)  # bad input should not wait
    target = load_target(cfg.target)
    say(f"target: {target.name}, {target.dtype} on {target.device}")
    answers = find_answers(cfg, target, prompts)
    drafter = train(cfg, target, answers)
    report = decode_held_out(cfg, target, answers, drafter)
    print_table(report, table_console())
    path = Path(cfg.runs_dir) / "quickstart" / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_json_atomic(path, report)
    minutes = (time.perf_counter() - started) / 60
    typed = f"drafter={drafter.name}{same_target(cfg)}"
    print(f'wrote {path} in {minutes:.1f} min; next: drafterforge generate {typed} prompt="..."')
    return path
