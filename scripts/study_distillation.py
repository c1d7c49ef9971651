#!/usr/bin/env python3
"""Measures what moves a drafter's accept length per hour of training, and writes docs/distillation.md.

    python scripts/study_distillation.py train [--only ttt,head] [--json REPORT] [KEY=VALUE ...]
    python scripts/study_distillation.py page [--check]

`train` trains the variants of scripts/study_distillation.yaml one by one and skips those that runs_dir has.  KEY=VALUE
are settings of `drafterforge train-drafter`, such as runs_dir=elsewhere.  --json replaces these studies in REPORT and
keeps the others, which may be of another machine.  `page` reads docs/reports/distillation.json and the YAML file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import read_json
from drafterforge.errors import DrafterforgeError

from study_comparison import runs_of, verdict
from study_plan import PLAN, read_plan

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if --check finds the page out of date, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=PLAN, metavar="FILE.yaml")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train the variants that are not measured yet")
    training.add_argument("--only", type=lambda names: names.split(","), default=[], metavar="STUDY,...")
    training.add_argument("--json", type=Path, metavar="REPORT", help="replace these studies in this file")
    training.add_argument("typed", nargs="*", metavar="KEY=VALUE", help="settings of all variants")
    page = commands.add_parser("page", help="write docs/distillation.md and its figures")
    page.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    options = parser.parse_args(arguments)
    try:
        return train(options) if options.command == "train" else write_page(options)
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command resumes at the last validation", file=sys.stderr)
        return 130


def train(options: argparse.Namespace) -> int:
    """Train, print outcomes, and update the report."""
    from study_runs import compose_studies, train_all, update_report  # torch takes seconds to import

    plan = read_plan(options.plan)
    configs = compose_studies(plan, options.only, options.typed)
    train_all(plan, configs)
    report = update_report(plan, configs, options.typed, options.json)
    for name in configs:
        if name in report["studies"] and len(runs_of(report, name)) > 1:
            print(f"{name}: {verdict(report, name).replace('**', '')}")
    if options.json:
        save_json_atomic(options.json, report)
    return 0


def write_page(options: argparse.Namespace) -> int:
    """Write the page and its figures, or compare the page."""
    from study_page import figures, is_current, page

    plan, report = read_plan(options.plan), read_json(DOCS / "reports" / "distillation.json")
    if options.check:
        if is_current(DOCS, plan, report):
            return 0
        command = "python scripts/study_distillation.py page"
        print(f"docs/distillation.md is out of date; run {command}", file=sys.stderr)
        return 1
    (DOCS / "distillation.md").write_text(page(plan, report))
    for name, svg in figures(report).items():
        (DOCS / "figures" / name).write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
