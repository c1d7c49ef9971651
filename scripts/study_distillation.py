#!/usr/bin/env python3
"""Studies what moves a drafter's accept length per hour of compute; writes docs/distillation.md from the numbers.

    python scripts/study_distillation.py train [--only ttt,head] [--json FILE] [--earlier REPORT] [KEY=VALUE ...]
    python scripts/results.py --keep FILE distillation            # FILE becomes docs/reports/distillation.json
    python scripts/study_distillation.py page [--check]

`train` trains the variants in scripts/study_distillation.yaml one after the other, each once under a name made of its
settings, and skips what it has measured before; KEY=VALUE are settings of `drafterforge train-drafter`, such as
runs_dir=elsewhere.  `--only ""` trains nothing and only gathers.  --earlier takes the studies that runs_dir has not
from a report of before; they may be of another machine, since settings are compared within a study alone.  `page`
reads docs/reports/distillation.json alone, and questions and notes from the YAML file.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from study_plan import PLAN, read_plan

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.errors import DrafterforgeError

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if --check finds the page out of date, 2 and one line for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=PLAN, metavar="FILE.yaml", help="other studies")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train what is not measured yet, and gather")
    training.add_argument("--only", metavar="STUDY,...", help="train these studies alone")
    training.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    training.add_argument("--earlier", type=Path, metavar="REPORT", help="has the studies not measured here")
    training.add_argument("typed", nargs="*", metavar="KEY=VALUE", help="settings of all variants")
    page = commands.add_parser("page", help="write docs/distillation.md and its figures")
    page.add_argument("--check", action="store_true", help="write nothing; 1 if the page is not what the file says")
    page.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="holds docs/")
    options = parser.parse_args(arguments)
    try:
        return train(options) if options.command == "train" else write(options)
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last validation", file=sys.stderr)
        return 130


def train(options: argparse.Namespace) -> int:
    """Train, gather, say what won."""
    from study_runs import composed, gathered, train_all, with_earlier  # torch takes seconds to import
    from study_standings import verdict

    plan = read_plan(options.plan)
    configs = composed(plan, options.typed)
    only = [name for name in options.only.split(",") if name] if options.only is not None else list(plan.studies)
    train_all(plan, configs, only)
    base, told = ([one for one in some if not one.startswith("runs_dir=")] for some in (plan.base, options.typed))
    command = shlex.join(["python", "scripts/study_distillation.py", "train", *told])
    report = gathered(plan, configs, command, [*base, *told])
    if options.earlier:
        report = with_earlier(report, configs, options.earlier)
    for name in report["studies"]:
        print(f"{name}: {verdict(report, name).replace('**', '')}")
    if options.json:
        save_json_atomic(options.json, report)
    return 0


def write(options: argparse.Namespace) -> int:
    """Write the page, or compare it."""
    from study_page import is_current, write_page

    plan = read_plan(options.plan)
    if not options.check:
        write_page(plan, options.root / "docs")
    elif not is_current(plan, options.root / "docs"):
        page = "python scripts/study_distillation.py page"
        print(f"docs/distillation.md is not what its report says; run {page}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
