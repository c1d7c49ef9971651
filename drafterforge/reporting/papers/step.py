"""A step: commands that make reports of the papers' tables."""

from __future__ import annotations

from dataclasses import dataclass

REPLAY, CLOCK = "replay", "clock"
TRAIN = "drafterforge train-policy"
TREE = "TREE"  # in a command: the best static tree of the step's report on a policy
FOLDERS = {"FOLDER": "--questions", "MMLU": "--mmlu"}  # in a command -> option of `scripts/papers_reports.py`


@dataclass(frozen=True)
class Reduction:
    """A size that is smaller than in the paper, so that two cores finish in hours."""

    key: str
    value: int
    paper: str  # the paper's size
    part: str = ""  # what it holds for, such as `of policies trained on sampled answers`; empty: all of the step

    def __str__(self) -> str:
        return f"`{self.key}={self.value}`{self.part and f' {self.part}'} (the paper: {self.paper})"


@dataclass(frozen=True)
class Step:
    """Commands that make reports of the papers' tables."""

    name: str
    by: str  # replay: exact, on any machine, busy or not | clock: timed, on a machine at rest
    minutes: int  # on two cores, about
    commands: tuple[str, ...]
    reports: tuple[str, ...]  # names in the folder `reports`, or of a router in `policies`
    reductions: tuple[Reduction, ...] = ()
    tree_of: str = ""  # report whose best static tree stands for `TREE` in the commands
    folder: str = ""  # in the runs folder: drafters join the pool of no other step, and a grid has its latency profile


def listed(*names: str) -> str:
    return f"[{','.join(names)}]"


def replayed(suite: str, name: str, more: str, *selectors: str) -> str:
    off = "suite.tuning_prompts=0 suite.timed_prompts=0 suite.check_live=false"
    return f'drafterforge eval suite={suite} name={name} {more} {off} "suite.selectors={listed(*selectors)}"'


def timed(name: str, benchmarks: tuple[str, ...], limit: int, *methods: str, more: str = "") -> str:
    """Time methods on the questions of benchmarks.  limit: questions of each."""
    keys = f'suite.questions=FOLDER "suite.benchmarks={listed(*benchmarks)}" limit={limit} suite.timed_prompts=48'
    keys += f" suite.max_new_tokens=128 suite.replay=false{more and f' {more}'}"
    return f'drafterforge eval suite=papers name={name} {keys} "suite.methods={listed(*methods)}"'
