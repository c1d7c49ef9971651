#!/usr/bin/env python3
"""Rewrites README.md's tables of measured figures from the reports in docs/reports; --check only compares.

A table stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`; NAME is `docs/reports/NAME.json`, the
`report.json` of a run of `eval`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafterforge.evaluation.contents import curves_of, is_baseline, is_live, mapping, whole_rows
from drafterforge.evaluation.tables import range_of, shown

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "docs" / "reports"
BLOCK = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end of figures -->", re.DOTALL)
MOST = 8  # replayed rows that are shown
Report = Mapping[str, Any]


def table(headings: list[str], cells: list[list[str]]) -> str:
    """Markdown; the first column is text."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figures(report: Report) -> Iterator[str]:
    """The report's tables: what was timed, drafters by domain, what was replayed."""
    rows = whole_rows(report)
    live = [row for row in rows if is_live(row) and not row.get("axis")]
    if live:
        prompts, tokens = live[0]["num_prompts"], live[0]["num_tokens"]
        yield (
            f"Timed one by one on {prompts} held-out prompts ({tokens:,} tokens), {report['dtype']}, methods taking "
            f"turns, on {report['device']}:"
        )
        yield table(
            ["method", "speed-up", "95 %", "by prompt", "tokens/s", "MAT", "mismatches"],
            [
                [
                    row["method"],
                    shown(row["speedup"], ".2f", "x"),
                    range_of(row),
                    shown(row.get("speedup_macro"), ".2f", "x"),
                    shown(row["tokens_per_s"], ".1f"),
                    "" if is_baseline(row) else shown(row["mat"]),
                    shown(row["mismatches"], ".0f") or "its own text",
                ]
                for row in live
            ],
        )
    matrix = mapping(curves_of(report).get("mat_by_domain"))
    if matrix:
        drafters = sorted({name for row in matrix.values() for name in row})
        best = {domain: max(row.values()) for domain, row in matrix.items()}
        yield "MAT of each drafter alone, by domain of the prompt (replayed exactly; the best is bold):"
        yield table(
            ["drafter", *matrix],
            [
                [name, *(cell(row.get(name), row.get(name) == best[domain]) for domain, row in matrix.items())]
                for name in drafters
            ],
        )
    replays = sorted((row for row in rows if not is_live(row)), key=lambda row: -row["mat"])
    if replays:
        yield (
            f"Selectors, replayed exactly on {replays[0]['num_prompts']} answers: MAT, share of the MAT of each "
            "answer's best drafter, cycles a request more than that drafter takes:"
        )
        yield table(
            ["method", "MAT", "of hindsight", "regret"],
            [[row["method"], *(shown(row[key], form) for key, form in WANTED.items())] for row in replays[:MOST]],
        )


WANTED = {"mat": ".2f", "of_hindsight": ".3f", "regret_cycles": ".2f"}


def cell(value: float | None, best: bool) -> str:
    """A number, bold if it is the best of its column."""
    text = shown(value)
    return f"**{text}**" if best and text else text


def written(readme: str) -> str:
    """The README with every table as its report has it."""

    def block(found: re.Match[str]) -> str:
        report = json.loads((REPORTS / f"{found['name']}.json").read_text())
        return f"<!-- figures: {found['name']} -->\n" + "\n\n".join(figures(report)) + "\n<!-- end of figures -->"

    return BLOCK.sub(block, readme)


def main() -> int:
    """Write, or compare."""
    path = ROOT / "README.md"
    old = path.read_text()
    new = written(old)
    if "--check" not in sys.argv[1:]:
        path.write_text(new)
        return 0
    if old != new:
        print(
            "README.md's figures are not those of docs/reports; run python scripts/readme_numbers.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
