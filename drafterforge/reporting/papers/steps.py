"""All steps of the papers' tables, in the order in which `scripts/papers_reports.py` runs them."""

from __future__ import annotations

from drafterforge.reporting.papers import policy_steps, selector_steps
from drafterforge.reporting.papers.step import Reduction

STEPS = (
    *selector_steps.REPLAYED_STEPS,
    *policy_steps.REPLAYED_STEPS,
    *selector_steps.TIMED_STEPS,
    *policy_steps.TIMED_STEPS,
)
BY_NAME = {step.name: step for step in STEPS}


def commands_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The commands of several steps, each once, with their runs folders."""
    commands = []
    for step in (BY_NAME[name] for name in names):
        folder = f" runs_dir=runs/{step.folder}" if step.folder else ""
        commands += [command + folder for command in step.commands]
    return tuple(dict.fromkeys(commands))


def reductions_of(names: tuple[str, ...]) -> tuple[Reduction, ...]:
    """What is smaller than in the papers in several steps, each once."""
    return tuple(dict.fromkeys(reduction for name in names for reduction in BY_NAME[name].reductions))
