"""Measure the papers' tables step by step, cheapest first: replays, then steps that need a machine at rest.

    python scripts/papers_reports.py --list                       # steps, minutes, and what is missing or old
    python scripts/papers_reports.py --replay --questions FOLDER  # all replays; any machine, busy or not
    python scripts/papers_reports.py domains resps --questions FOLDER
    python scripts/papers_reports.py ltd-mmlu --mmlu FOLDER       # with a question file mmlu_TASK.jsonl of each task

A step whose reports are in docs/reports/papers, measured by today's code, is left out; `--again` measures it again, and
trains its policies again.  An interrupted step resumes: commands whose reports are in the runs folder, by today's code,
are left out.  Policies, traces and latency profiles that other code has made are deleted; records beside them say what
made them.  At the end: `python scripts/papers_tables.py`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.staging import staging_folder
from drafterforge.errors import DrafterforgeError
from drafterforge.reporting.code_state import LIVE, changed_parts, code_state, parts_behind
from drafterforge.reporting.papers.age import is_current
from drafterforge.reporting.papers.policy_steps import with_seeds
from drafterforge.reporting.papers.rows import BEST_STATIC
from drafterforge.reporting.papers.step import FOLDERS, REPLAY, TRAIN, TREE, Step
from drafterforge.reporting.papers.steps import STEPS
from drafterforge.reporting.reader import curves_of, read_report, records, text

from papers_tables import ROOT, shipped_drafters
from results import PRIVATE

CURVES = (  # that are kept
    "mat_by_domain",
    "scaling",
    "signal_strength",
    "replayed",
    "profile",
    "profile_error",
    "priced_by",
    "grid",
    "seeds",
    "machine",
)
TARGET = "smollm2-135m"
PARTS = ("manifest.json", "rows.json")  # of a router
INPUTS = {"latency": (*LIVE, "prices"), "traces": (*LIVE, "replay")}  # of policies -> parts of the code that make them
POLICY_PARTS = parts_behind(live=False, selector="static", schedule="policy")


def main(arguments: list[str] | None = None) -> int:
    """The exit code: that of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="default: all")
    parser.add_argument("--replay", action="store_true", help="only steps that time nothing")
    parser.add_argument("--questions", type=Path, metavar="FOLDER", help="of the benchmarks' question files")
    parser.add_argument("--mmlu", type=Path, metavar="FOLDER", help="of a question file of each of MMLU's tasks")
    parser.add_argument("--runs", type=Path, default=Path("runs-papers"), metavar="FOLDER")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--again", action="store_true", help="measure steps that are up to date too")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    try:
        steps = steps_of(options.steps, options.replay)
        for step in steps:
            state = "" if options.again else state_of(step, options.root)
            print(f"{step.name}: {step.by}, about {step.minutes} min, {state or 'to measure'}")
            if state != CURRENT and not options.list:
                runs = options.runs / step.folder
                commands = commands_of(step, {"FOLDER": options.questions, "MMLU": options.mmlu}, runs)
                usable = not drop_old(step, runs, options.again) and not options.again
                finished = [name for name in step.reports if usable and is_finished(runs, name)]
                for command in commands:
                    if report_of(command) in finished:
                        continue
                    words = with_tree(command, step, runs)
                    print(f"$ {shlex.join(words)}", flush=True)
                    if code := subprocess.run(words).returncode:
                        return code
                for name in step.reports:
                    keep(runs, name, options.root)
        if options.list:
            print(f"about {sum(step.minutes for step in steps)} min in all")
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


CURRENT, MISSING, OLD = "up to date", "missing", "older than the code"


def steps_of(names: Sequence[str], replay: bool) -> list[Step]:
    """The steps with these names, or all; cheapest first."""
    known_names = [step.name for step in STEPS]
    if unknown := [name for name in names if name not in known_names]:
        raise DrafterforgeError(f"there is no step {unknown[0]!r}; steps are {', '.join(known_names)}")
    return [step for step in STEPS if (not names or step.name in names) and (step.by == REPLAY or not replay)]


def state_of(step: Step, root: Path) -> str:
    """Whether the step's reports are there, and by today's code."""
    paths = [root / "docs" / "reports" / "papers" / f"{name}.json" for name in step.reports]
    if not all(path.is_file() for path in paths):
        return MISSING
    code, drafters = code_state(), shipped_drafters(TARGET)
    return CURRENT if all(is_current(read_report(path), code, drafters) for path in paths) else OLD


def commands_of(step: Step, folders: Mapping[str, Path | None], runs: Path) -> list[list[str]]:
    """The step's commands, with the folders of questions and runs."""
    commands = []
    for command in step.commands:
        words = shlex.split(command)
        for name, folder in folders.items():
            if (word := f"suite.questions={name}") in words:
                if folder is None:
                    raise DrafterforgeError(f"step {step.name} reads question files; type {FOLDERS[name]} FOLDER")
                words[words.index(word)] = f"suite.questions={folder}"
        commands.append([sys.executable, "-m", *words, f"runs_dir={runs}"])
    return commands


def with_tree(command: Sequence[str], step: Step, runs: Path) -> list[str]:
    """The command with the best static tree of the step's policies, once they are trained."""
    if not any(TREE in word for word in command):
        return list(command)
    report = read_report(runs / TARGET / "reports" / step.tree_of)
    names = (text(row.get("name")) for row in records(curves_of(report).get("replayed")))
    tree = next(name for name in names if name.startswith(BEST_STATIC)).rpartition(" ")[2]
    return [word.replace(TREE, tree) for word in command]


def report_of(command: Sequence[str]) -> str:
    """The name of the report that a command writes; empty if it writes none."""
    names = [word.partition("=")[2] for word in command if word.startswith("name=")]
    if not names or not {"eval", "train-policy"} & {*command}:
        return ""
    return f"policy-{names[-1]}" if "train-policy" in command else names[-1]


def is_finished(runs: Path, name: str) -> bool:
    """Whether the runs folder has a report of today's code."""
    folder = runs / TARGET / "reports" / name
    if not (folder / "report.json").is_file():
        return False
    return is_current(read_report(folder), code_state(), shipped_drafters(TARGET))


def drop_old(step: Step, runs: Path, again: bool) -> bool:
    """Delete the policies of a step, and what policies are trained on, if other code has made it.

    Returns whether the policies were deleted.  Steps with one runs folder share traces and latency profiles.
    """
    if not any(command.startswith(TRAIN) for command in step.commands):
        return False
    folder = runs / TARGET
    for kind, parts in INPUTS.items():
        drop(folder / f"{kind}-code.json", parts, [folder / kind])
    router = ["router"] if "router" in step.reports else []
    parts = sorted({*POLICY_PARTS, *INPUTS["latency"], *INPUTS["traces"], *router})
    policies = [policy for name in step.reports for policy in with_seeds(name.removeprefix("policy-"))]
    record = folder / f"policies-code-{step.name}.json"
    return drop(record, parts, [folder / "policies" / policy for policy in policies], again)


def drop(record: Path, parts: Sequence[str], folders: Sequence[Path], again: bool = False) -> bool:
    """Delete folders, finished or not, and then record today's code, unless by the record this code has made them."""
    code = code_state()
    if not again and record.is_file() and not changed_parts(json.loads(record.read_text()), code, parts):
        return False
    for path in (path for folder in folders for path in (folder, staging_folder(folder))):
        if path.exists():
            shutil.rmtree(path)
    record.parent.mkdir(parents=True, exist_ok=True)
    save_json_atomic(record, {part: code[part] for part in parts})
    return True


def keep(runs: Path, name: str, root: Path) -> None:
    """Copy the parts of a report that the tables read to docs/reports/papers."""
    router = runs / TARGET / "policies" / name
    report = router_report(router) if name == "router" else read_report(runs / TARGET / "reports" / name)
    slim: dict[str, Any] = {key: value for key, value in report.items() if key not in ("curves", "config")}
    slim["curves"] = {key: report["curves"][key] for key in CURVES if key in report.get("curves", {})}
    content = json.dumps(slim, indent=1) + "\n"
    if private := PRIVATE.search(content):
        raise DrafterforgeError(f"report {name} names {private[0]!r}; remove addresses and paths of this machine first")
    path = root / "docs" / "reports" / "papers" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    print(f"wrote {path}")


def router_report(folder: Path) -> Mapping[str, Any]:
    """The accuracy of a router, in the form of a report."""
    manifest, rows = (json.loads((folder / part).read_text()) for part in PARTS)
    about = {key: manifest[key] for key in ("created", "drafterforge_version")}
    return about | {"target": {"name": manifest["target"]}, "rows": rows, "code": code_state(), "curves": {}}


if __name__ == "__main__":
    sys.exit(main())
