#!/usr/bin/env python3
"""Rewrites README.md's tables of measured figures from the reports in docs/reports; --check only compares.

    python scripts/readme_numbers.py
    python scripts/readme_numbers.py --keep FILE NAME [--note TEXT]   # FILE becomes docs/reports/NAME.json first

The block `measured` has the rows of scripts/readme_rows.py whose files are there; a block `figures: NAME` has the
tables of docs/reports/NAME.json, the `report.json` of a run of `eval`.  FILE is what a benchmark wrote with `--json`,
a `report.json`, or the folder of a report, latency profile, router or traces.  NAME@DEVICE is another machine's
measurement, which stands beside that of NAME.  TEXT is what to know of a measurement; it stands below the table as
long as the file does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from readme_keep import keep
from readme_measured import measured
from readme_rows import SOURCES

from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.reporting.reader import curves_of, is_baseline, is_live, mapping, rows_of, whole_rows
from drafterforge.reporting.tables import range_of, shown

MEASURED = re.compile(r"<!-- measured -->\n.*?<!-- end of measured -->", re.DOTALL)
BLOCK = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end of figures -->", re.DOTALL)
MOST = 8  # replayed rows that are shown, and columns of domains
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
            f"Timed one by one on {prompts} prompts ({tokens:,} tokens), {report['dtype']}, methods taking turns, on "
            f"{report['device']}:"
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
    for axis in dict.fromkeys(row["axis"] for row in rows if row.get("axis")):
        yield from along(axis, [row for row in rows if row.get("axis") == axis])
    matrix = mapping(curves_of(report).get("mat_by_domain"))
    if matrix:
        drafters = sorted({name for row in matrix.values() for name in row})
        best = {domain: max(row.values()) for domain, row in matrix.items()}
        grid = [
            ["drafter", *drafters],
            *(
                [domain, *(cell(row.get(name), row.get(name) == best[domain]) for name in drafters)]
                for domain, row in matrix.items()
            ),
        ]
        if len(matrix) <= MOST:  # else a line each
            grid = [list(line) for line in zip(*grid, strict=True)]
        yield "MAT of each drafter alone, by domain of the prompt (replayed exactly; the best is bold):"
        yield table(grid[0], grid[1:])
    elif live:
        yield from by_domain(report, [row["method"] for row in live if not is_baseline(row)])
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


def by_domain(report: Report, methods: list[str]) -> Iterator[str]:
    """Speed-up of what was timed, a column for every domain; nothing if there is one domain."""
    rows = [row for row in rows_of(report) if is_live(row) and not row.get("axis") and row["domain"] != "all"]
    domains = sorted({row["domain"] for row in rows})
    found = {(row["method"], row["domain"]): row["speedup"] for row in rows}
    if 1 < len(domains) <= MOST:
        yield f"Speed-up by domain of the prompt, {rows[0]['num_prompts']} prompts each:"
        cells = [[name, *(shown(found.get((name, one)), ".2f", "x") for one in domains)] for name in methods]
        yield table(["method", *domains], cells)


def along(axis: str, rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """What was timed along an axis, a column for every value on it."""
    values = sorted({row["at"] for row in rows})
    ours = {row["method"] for row in rows if not is_baseline(row)}
    found = {(row["method"], row["at"]): row for row in rows}
    yield f"By {axis}, timed on {rows[0]['num_prompts']} prompts each: speed-up, and MAT:"
    yield table(
        ["method", *(f"{value:g}" for value in values)],
        [
            [method, *(f"{shown(row['speedup'], '.2f', 'x')}, {shown(row['mat'])}" for row in line)]
            for method in sorted(ours)
            if all(line := [found.get((method, value)) for value in values])
        ],
    )


WANTED = {"mat": ".2f", "of_hindsight": ".3f", "regret_cycles": ".2f"}


def cell(value: float | None, best: bool) -> str:
    """A number, bold if it is the best of its column."""
    text = shown(value)
    return f"**{text}**" if best and text else text


def written(readme: str, reports: Path) -> str:
    """The README with every table as its files have it."""

    def block(found: re.Match[str]) -> str:
        report = read_json(reports / f"{found['name']}.json")
        return f"<!-- figures: {found['name']} -->\n" + "\n\n".join(figures(report)) + "\n<!-- end of figures -->"

    table = "<!-- measured -->\n" + "\n\n".join(measured(reports)) + "\n<!-- end of measured -->"
    return BLOCK.sub(block, MEASURED.sub(lambda _: table, readme))


def main(arguments: list[str] | None = None) -> int:
    """Keep a file if asked to, then write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if README is not what the files say")
    parser.add_argument("--keep", nargs=2, metavar=("FILE", "NAME"))
    parser.add_argument("--note", default="", metavar="TEXT", help="of the file that is kept")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], metavar="FOLDER")
    options = parser.parse_args(arguments)
    if options.check if options.keep else options.note:
        parser.error("--keep goes without --check, and --note goes with --keep")
    try:
        return run(options.root, options.check, options.keep, options.note)
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2


def run(root: Path, check: bool, kept: list[str] | None, note: str) -> int:
    """The exit code."""
    path, reports = root / "README.md", root / "docs" / "reports"
    old = path.read_text()
    if kept:
        rows, blocks = [source.name for source in SOURCES], [found["name"] for found in BLOCK.finditer(old)]
        name, _, device = kept[1].partition("@")
        if kept[1] not in rows + blocks and not (name in rows and re.fullmatch(r"[\w-]+", device)):
            raise ConfigError(f"README has no table of {kept[1]!r}; type one of {', '.join(rows + blocks)}")
        keep(Path(kept[0]), kept[1], reports, note)
    new = written(old, reports)
    if check and old != new:
        print(
            "README.md's figures are not those of docs/reports; run python scripts/readme_numbers.py", file=sys.stderr
        )
        return 1
    if not check:
        path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
