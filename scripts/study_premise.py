#!/usr/bin/env python3
"""Measures whether experts pay: against the generalist that they start from, and against one with the same data.

    python scripts/study_premise.py PROMPTS QUESTIONS [--general chat] [--unseen clinical] [--json FILE] [KEY=VALUE ...]

PROMPTS has a JSONL file of training prompts for each domain, QUESTIONS one of held-out prompts under the same name
(scripts/natural_prompts.py writes both).
Commands are printed and run, without those whose artifact is there and made from those before (--list: only printed).
KEY=VALUE are settings of all commands, such as runs_dir=.  They make:

    public                 a generalist of the general domain only, as a public head is
    NAME-full, NAME-lora   an expert of each further domain, which starts from `public`
    control                `public`, trained further on all experts' answers, for as many steps as they took together
    experts of `--unseen`, from as few prompts as a user may have; nothing else learns from it
    replays                mean accepted tokens (MAT) of all of them on the questions, and of the selectors
                           `hedgespec` and `hedgespec-prompt` over the experts

Figures are ratios of MAT over all questions of a group, with intervals of 95 % over questions:
    experts_full, experts_lora   each expert in its domain, over `public`
    hedge_full, hedge_lora       `hedgespec` over `public` and the experts, over `public`
    prompt_full, prompt_lora     `hedgespec-prompt` over `public` and the experts, over `public`
    hedge_full_control, ...      hedge_* and prompt_* over `control`
    control                      over `public`
    unseen_full, unseen_lora     the expert of the unseen domain there, over `public`
    unseen_control               the control there, which has not learned from it either, over `public`

A second table has the gain in validation accept length by training steps of an expert: the mean over the experts, and
the control after as many steps as all of them together.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import MANIFEST, Manifest, plain_json
from drafterforge.config.commands import EvaluateConfig, TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.evaluation.measurements import FILE, load_measurements
from drafterforge.evaluation.statistics import bootstrap_ratio, totals_ratio
from drafterforge.evaluation.suites import with_limit
from drafterforge.pipelines.eval import settings_of
from drafterforge.reporting.code_state import PARTS, changed_parts, code_state
from drafterforge.reporting.reader import mapping, read_report
from drafterforge.targets.device import choose_device, choose_dtype

from bench_record import save_record
from rich.console import Console
from rich.table import Table

PUBLIC, CONTROL = "public", "control"
SELECTORS = {"hedge": "hedgespec", "prompt": "hedgespec-prompt"}  # names in figures -> selectors
FULL, LORA = "full", "lora"
TUNING = {FULL: ("drafter=eagle3",), LORA: ("drafter=lora", "trainer.lr=4e-3")}
STEPS = 80  # of an expert
UNSEEN_PROMPTS = 500
VALIDATION = "val/accept_length"
REPLAYED = (
    "suite.max_new_tokens=64",
    "suite.timed_prompts=0",
    "suite.tuning_prompts=0",
    "suite.check_live=false",
    "suite.pool_orders=1",
)
Played = dict[tuple[str, str, int], tuple[int, int]]  # domain, question, turn -> tokens, cycles
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Step:
    """A command and the artifact that it writes."""

    kind: str
    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The commands of a study."""

    prompts: Path
    questions: Path
    general: str
    unseen: str
    num_questions: int  # of a domain
    expert_steps: int = STEPS

    @property
    def experts(self) -> list[str]:
        """Domains with an expert, but the unseen one."""
        names = sorted(path.stem for path in self.prompts.glob("*.jsonl"))
        if missing := [name for name in (self.general, self.unseen) if name not in names]:
            raise ConfigError(f"{self.prompts} has no {missing[0]}.jsonl; type --general and --unseen of {names}")
        return [name for name in names if name not in (self.general, self.unseen)]

    def steps(self) -> Iterator[Step]:
        """All commands, each after those that it needs."""
        yield from map(self.answers, (self.general, self.unseen, *self.experts))
        yield trained(PUBLIC, self.general, "experiment=premise", "drafter=eagle3")
        for domain in (self.unseen, *self.experts):
            for tuning, words in TUNING.items():
                steps = f"trainer.max_steps={self.expert_steps}"
                settings = ("experiment=premise_expert", f"drafter.init={PUBLIC}", *words, steps)
                yield trained(f"{domain}-{tuning}", domain, *settings)
        union = ",".join(map(answers_of, (self.general, *self.experts)))
        steps = f"trainer.max_steps={self.expert_steps * len(self.experts)}"
        settings = (
            "experiment=premise",
            "drafter=eagle3",
            f"drafter.init={PUBLIC}",
            f"answers=[{union}]",
            "trainer.lr=1e-3",
            steps,
        )
        yield trained(CONTROL, "general", *settings)
        for name, drafters in self.pools().items():
            benchmarks = [self.unseen] if name == self.unseen else [self.general, *self.experts, self.unseen]
            yield self.replayed(name, drafters, benchmarks)

    def answers(self, domain: str) -> Step:
        """The command that answers the prompts of a domain."""
        few = [f"data.num_train={UNSEEN_PROMPTS}"] if domain == self.unseen else []
        name, path = answers_of(domain), self.prompts / f"{domain}.jsonl"
        words = (f"domain={domain}", f"name={name}", "experiment=premise", "data=jsonl", f"path={path}")
        return Step("answers", name, ("prepare-data", *words, *few))

    def pools(self) -> dict[str, list[str]]:
        """Drafters that are replayed together."""
        return {
            **{tuning: [PUBLIC, *(f"{domain}-{tuning}" for domain in self.experts)] for tuning in TUNING},
            CONTROL: [PUBLIC, CONTROL],
            self.unseen: [PUBLIC, *(f"{self.unseen}-{tuning}" for tuning in TUNING)],
        }

    def replayed(self, name: str, drafters: Sequence[str], benchmarks: Sequence[str]) -> Step:
        """The command that replays a pool on the questions."""
        words = ["suite=papers", f"name=premise-{name}", f"suite.questions={self.questions}", *REPLAYED]
        words += [f"suite.benchmarks=[{','.join(benchmarks)}]", f"suite.num_prompts={self.num_questions}"]
        words += [f"suite.selectors=[{','.join(SELECTORS.values())}]", f"pool.drafters=[{','.join(drafters)}]"]
        return Step("reports", f"premise-{name}", ("eval", *words))


def answers_of(domain: str) -> str:
    """Name of the answers to a domain's prompts."""
    return f"n-{domain}"


def trained(name: str, domain: str, *words: str) -> Step:
    """The command that trains a drafter."""
    default = () if any(word.startswith("answers=") for word in words) else (f"answers={answers_of(domain)}",)
    return Step("drafters", name, ("train-drafter", f"domain={domain}", f"name={name}", *default, *words))


def run(plan: Plan, typed: Sequence[str], list_only: bool) -> int:
    """Run the commands whose artifacts are missing; the exit code of the first that fails."""
    cfg = config_of(typed)
    for step in plan.steps():
        words = [*step.words, *typed]
        finished = is_finished(step, words, cfg)
        console.print(f"{'#' if finished else '$'} drafterforge {shlex.join(words)}", soft_wrap=True, markup=False)
        if finished or list_only:
            continue
        if code := subprocess.run([sys.executable, "-m", "drafterforge", *words]).returncode:
            return code
    return 0


def is_finished(step: Step, words: Sequence[str], cfg: TrainDrafterConfig) -> bool:
    """Whether a step's artifact is there, made from the artifacts that are there; a report also by these settings."""
    folder = artifact_dir(cfg.runs_dir, cfg.target.name, step.kind, step.name)
    if not (folder / MANIFEST).is_file():
        return False
    manifest = Manifest.read(folder)
    for parent in manifest.parents:
        path = artifact_dir(cfg.runs_dir, cfg.target.name, parent["kind"], parent["name"])
        if (path / MANIFEST).is_file() and Manifest.read(path).digest != parent["sha256"]:
            return False
    if step.kind != "reports":
        return True
    settings = plain_json(settings_of(with_limit(load_config("eval", EvaluateConfig, words[1:]))))
    measured = mapping(read_report(folder / "report.json").get("code"))
    return settings == manifest.config and not changed_parts(measured, code_state(), [*PARTS])


def config_of(typed: Sequence[str]) -> TrainDrafterConfig:
    """The settings of all commands."""
    return load_config("train_drafter", TrainDrafterConfig, ["domain=general", *typed])


def compare(plan: Plan, typed: Sequence[str]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Ratios over all questions of a group, and MAT by domain."""
    cfg = config_of(typed)
    folders = {name: artifact_dir(cfg.runs_dir, cfg.target.name, "reports", f"premise-{name}") for name in plan.pools()}
    played = {name: played_of(folder) for name, folder in folders.items()}
    methods = {PUBLIC: played[CONTROL][f"{PUBLIC} alone"], CONTROL: played[CONTROL][f"{CONTROL} alone"]}
    for tuning in TUNING:
        methods[f"experts_{tuning}"] = experts_of(plan, tuning, played)
        methods |= {f"{key}_{tuning}": played[tuning][name] for key, name in SELECTORS.items()}
    groups = {"experts": plan.experts, "seen": [plan.general, *plan.experts], "unseen": [plan.unseen]}
    figures = {}
    for tuning in TUNING:
        figures |= ratios(f"experts_{tuning}", methods[f"experts_{tuning}"], methods[PUBLIC], groups["experts"])
        figures |= ratios(f"unseen_{tuning}", methods[f"experts_{tuning}"], methods[PUBLIC], groups["unseen"])
        for name, (base, suffix) in product(SELECTORS, ((PUBLIC, ""), (CONTROL, f"_{CONTROL}"))):
            ours = methods[f"{name}_{tuning}"]
            figures |= ratios(f"{name}_{tuning}{suffix}", ours, methods[base], groups["seen"])
    figures |= ratios(CONTROL, methods[CONTROL], methods[PUBLIC], groups["seen"])
    figures |= ratios(f"unseen_{CONTROL}", methods[CONTROL], methods[PUBLIC], groups["unseen"])
    return figures, [row_of(domain, methods) for domain in (plan.general, *plan.experts, plan.unseen)]


def gains_by_steps(plan: Plan, typed: Sequence[str]) -> list[dict[str, float]]:
    """Gains of the experts, by their training steps, and of the control after as many steps as all of them together."""
    cfg = config_of(typed)

    def validations(name: str) -> dict[int, float]:
        path = artifact_dir(cfg.runs_dir, cfg.target.name, "drafters", name) / "curves.json"
        return {row["step"]: row[VALIDATION] for row in json.loads(path.read_text()) if VALIDATION in row}

    experts = {tuning: [validations(f"{domain}-{tuning}") for domain in plan.experts] for tuning in TUNING}
    control, rows = validations(CONTROL), []
    for steps in sorted({step for runs in experts.values() for run in runs for step in run} - {0}):
        gains = {name: fmean(gain_at(run, steps) for run in runs) for name, runs in experts.items()}
        rows.append({"steps": steps, **gains, CONTROL: gain_at(control, steps * len(plan.experts))})
    return rows


def gain_at(validations: Mapping[int, float], steps: int) -> float:
    """The best validation until then, over that before training."""
    return max(value for step, value in validations.items() if step <= steps) / validations[0]


def played_of(folder: Path) -> dict[str, Played]:
    """Tokens and cycles of every question in a report's replays."""
    played: dict[str, Played] = {}
    for measurement in load_measurements(folder / FILE):
        for request, answer in zip(measurement.requests, measurement.answers, strict=True):
            tokens = sum(cycle.accept_length for cycle in answer.cycles)
            key = request.domain, request.question, request.turn
            played.setdefault(measurement.method, {})[key] = tokens, len(answer.cycles)
    return played


def experts_of(plan: Plan, tuning: str, played: Mapping[str, Mapping[str, Played]]) -> Played:
    """Every domain's expert on the questions of its domain."""
    answers: Played = {}
    for domain in (*plan.experts, plan.unseen):
        pool = played[plan.unseen if domain == plan.unseen else tuning]
        drafter = pool[f"{domain}-{tuning} alone"]
        answers |= {key: value for key, value in drafter.items() if key[0] == domain}
    return answers


def ratios(name: str, ours: Played, base: Played, domains: Sequence[str]) -> dict[str, float]:
    """The ratio of MAT on the questions of these domains, and the ends of its interval."""
    ours, base = ({key: value for key, value in played.items() if key[0] in domains} for played in (ours, base))
    if ours.keys() != base.keys():
        raise ConfigError(f"{name} compares replays of different questions; type the commands of --list again")
    pairs = [(*ours[key], *base[key]) for key in sorted(ours)]
    low, high = bootstrap_ratio(pairs)
    return {name: totals_ratio(pairs), f"{name}_low": low, f"{name}_high": high}


def row_of(domain: str, methods: Mapping[str, Played]) -> dict[str, Any]:
    """MAT of each method on a domain's questions; null where it was not measured."""
    row: dict[str, Any] = {"domain": domain, "questions": 0}
    for name, played in methods.items():
        answers = [value for key, value in played.items() if key[0] == domain]
        row["questions"] = max(row["questions"], len(answers))
        row[name] = sum(tokens for tokens, _ in answers) / sum(cycles for _, cycles in answers) if answers else None
    return row


def show(
    figures: Mapping[str, float], rows: Sequence[Mapping[str, Any]], by_steps: Sequence[Mapping[str, float]]
) -> None:
    """Print MAT by domain, gains by training steps, and the ratios."""
    for lines in (rows, by_steps):
        table = Table(*lines[0])
        for row in lines:
            cells = (
                "" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()
            )
            table.add_row(*cells)
        console.print(table)
    for name, value in figures.items():
        if f"{name}_low" in figures:
            console.print(f"{name}: {value:.3f} ({figures[f'{name}_low']:.3f} to {figures[f'{name}_high']:.3f})")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: that of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, metavar="PROMPTS", help="folder of training prompts, NAME.jsonl")
    parser.add_argument("questions", type=Path, metavar="QUESTIONS", help="folder of held-out prompts, NAME.jsonl")
    parser.add_argument("--general", default="chat", metavar="NAME", help="the domain of the generalist")
    parser.add_argument("--unseen", default="clinical", metavar="NAME", help="the domain that only its own experts see")
    parser.add_argument("--num-questions", type=int, default=80, metavar="N", help="held-out prompts of a domain")
    steps_help = "training steps of an expert; artifacts are not trained again, so give each number its own runs_dir="
    parser.add_argument("--expert-steps", type=int, default=STEPS, metavar="N", help=steps_help)
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("typed", nargs="*", metavar="KEY=VALUE", help="settings of all commands")
    options = parser.parse_intermixed_args(arguments)
    plan = Plan(
        options.prompts,
        options.questions,
        options.general,
        options.unseen,
        options.num_questions,
        options.expert_steps,
    )
    try:
        if (code := run(plan, options.typed, options.list)) or options.list:
            return code
        figures, rows = compare(plan, options.typed)
        by_steps = gains_by_steps(plan, options.typed)
    except DrafterforgeError as error:
        print(f"study_premise: {error}", file=sys.stderr)
        return 2
    show(figures, rows, by_steps)
    if options.json:
        target = config_of(options.typed).target
        device = choose_device(target.device)
        dtype = str(choose_dtype(target.dtype, device)).removeprefix("torch.")
        save_record(options.json, "premise", device, dtype, figures, rows, {"by_steps": by_steps})
    return 0


if __name__ == "__main__":
    sys.exit(main())
