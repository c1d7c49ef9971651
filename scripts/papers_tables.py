"""Print our figures in the tables of the papers, beside the published ones, and write them as one Markdown file.

    python scripts/papers_tables.py runs/smollm2-135m/reports/papers [REPORT ...] [--out FILE.md]
    python scripts/papers_tables.py            # write docs/papers.md from docs/reports/papers
    python scripts/papers_tables.py --check    # exit 1, with a line each, for an empty cell without a reason, a row
                                               # older than the code that it describes, and an old docs/papers.md

A report is a folder of `drafterforge eval` or `train-policy`, or its report.json.  Several reports fill one set of
tables.  Each table says how many of its cells are empty, and the command that fills them.  The reasons of empty cells
are in `docs/reports/papers.yaml`; `scripts/papers_reports.py` makes the reports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.progress import table_console
from drafterforge.errors import DrafterforgeError
from drafterforge.reporting.code_state import PACKAGE, code_state
from drafterforge.reporting.papers.age import old_rows
from drafterforge.reporting.papers.cells import Reason
from drafterforge.reporting.papers.evidence import GENERALIST, Evidence
from drafterforge.reporting.papers.page import print_papers, render_papers
from drafterforge.reporting.papers.steps import STEPS
from drafterforge.reporting.papers.tables import PaperTable, paper_tables
from drafterforge.reporting.reader import read_report

import yaml

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if `--check` finds anything, 2 if a report cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT")
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--generalist", default=GENERALIST, metavar="DRAFTER", help="trained on all domains")
    options = parser.parse_args(arguments)
    try:
        if not options.reports:
            return document(options.root, options.check)
        reports = [read_report(path) for path in options.reports]
        evidence, tables = paper_tables(reports, options.generalist)
        print_papers(evidence, tables, table_console())
        if options.out:
            write_bytes_atomic(options.out, render_papers(evidence, tables).encode())
            print(f"wrote {options.out}")
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def document(root: Path, check: bool) -> int:
    """Write docs/papers.md, or check it; the exit code."""
    names, evidence, tables = documented(root)
    drafters = shipped_drafters(evidence.about.partition(",")[0])
    page, path = render_papers(evidence, tables, drafters), root / "docs" / "papers.md"
    if not check:
        write_bytes_atomic(path, page.encode())
        print(f"wrote {path}")
        return 0
    lines = faults(names, evidence, tables)
    lines += [] if path.read_text() == page else [f"{path} is out of date; type `python scripts/papers_tables.py`"]
    print(
        "\n".join([*lines, f"{len(lines)} faults"]) if lines else "every cell is filled or explained, and no row is old"
    )
    return bool(lines)


def documented(root: Path) -> tuple[list[str], Evidence, list[PaperTable]]:
    """The reports behind docs/papers.md, by name, and its tables."""
    folder = root / "docs" / "reports"
    names = [name for step in STEPS for name in step.reports if (folder / "papers" / f"{name}.json").is_file()]
    if not names:
        raise DrafterforgeError(f"{folder / 'papers'} has no report; type `python scripts/papers_reports.py`")
    reports = [read_report(folder / "papers" / f"{name}.json") for name in names]
    return names, *paper_tables(reports, reasons=read_reasons(folder / "papers.yaml"))


def read_reasons(path: Path) -> dict[str, list[Reason]]:
    """The reasons of empty cells, by the key of the form; those of the key `all` come last in each."""
    entries: dict[str, list[dict[str, Any]]] = yaml.safe_load(path.read_text())
    shared = entries.pop("all", [])
    return {form: [Reason(**entry) for entry in [*listed, *shared]] for form, listed in entries.items()}


def faults(names: Sequence[str], evidence: Evidence, tables: Sequence[PaperTable]) -> list[str]:
    """A line for each empty cell without a reason, and for each row older than what it describes."""
    empty = [
        f"{table.form.title}: {cell.method}, {cell.figure}, {cell.column} is empty without a reason; "
        "measure it, or give the reason in docs/reports/papers.yaml"
        for table in tables
        for cell in table.unexplained
    ]
    return empty + old_rows(evidence, tables, names, code_state(), shipped_drafters(evidence.about.partition(",")[0]))


def shipped_drafters(target: str) -> dict[str, str]:
    """The sha256 of the manifests of the drafters in the package."""
    folders = sorted((PACKAGE / "shipped" / target / "drafters").glob("*/manifest.json"))
    return {path.parent.name: Manifest.read(path.parent).digest for path in folders}


if __name__ == "__main__":
    sys.exit(main())
