"""Selectors of the next cycle's drafter: fixed rules, learners of full information, bandits; NumPy only."""

from __future__ import annotations

from drafterforge.selectors.base import Choice, Context, Evaluation, Feedback, Needs, Selector
from drafterforge.selectors.registry import (
    advised,
    check_options,
    kind_of,
    learner,
    names,
    reads_branches,
    register,
    selector,
    takes_advice,
)

__all__ = [
    "Choice",
    "Context",
    "Evaluation",
    "Feedback",
    "Needs",
    "Selector",
    "advised",
    "check_options",
    "kind_of",
    "learner",
    "names",
    "reads_branches",
    "register",
    "selector",
    "takes_advice",
]
