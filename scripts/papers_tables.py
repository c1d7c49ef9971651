"""Print our figures in the tables of the papers, beside the published ones, and write them as one Markdown file.

    python scripts/papers_tables.py runs/smollm2-135m/reports/papers [REPORT ...] [--out FILE.md]

A report is a folder of `drafterforge eval` or `train-policy`, or its report.json.  Several reports fill one set of
tables.  Each table says how many of its cells are empty, and the command that fills them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.config.progress import table_console
from drafterforge.errors import DrafterforgeError
from drafterforge.reporting.paper_evidence import GENERALIST
from drafterforge.reporting.paper_tables import paper_tables, print_papers, render_papers
from drafterforge.reporting.reader import read_report


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 2 if a report cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    parser.add_argument("--generalist", default=GENERALIST, metavar="DRAFTER", help="trained on all domains")
    options = parser.parse_args(arguments)
    try:
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


if __name__ == "__main__":
    sys.exit(main())
