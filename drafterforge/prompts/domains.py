"""The list of domains with a grammar: one for each file in `prompts/grammars`. Imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "grammars"
_ORDER = re.compile(r"^order: *(\d+)", re.MULTILINE)


def grammar_path(domain: str) -> Path:
    """Path of a domain's grammar file, which may not exist."""
    return FOLDER / f"{domain}.yaml"


def domains() -> tuple[str, ...]:
    """Names of all domains with a grammar, sorted by the `order:` of their files, then by name."""
    return tuple(path.stem for path in sorted(FOLDER.glob("*.yaml"), key=_position))


def _position(path: Path) -> tuple[float, str]:
    order = _ORDER.search(path.read_text(encoding="utf-8"))
    return (int(order[1]) if order else float("inf")), path.stem
