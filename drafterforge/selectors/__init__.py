"""Which drafter drafts next: fixed rules, learners of full information, bandits.  NumPy alone."""

from __future__ import annotations

from drafterforge.selectors.base import Choice, Context, Evaluation, Feedback, Needs, Selector
from drafterforge.selectors.registry import (
    advised,
    check_options,
    heeds_advice,
    kind_of,
    learner,
    names,
    register,
    selector,
    wants_divergence,
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
    "heeds_advice",
    "kind_of",
    "learner",
    "names",
    "register",
    "selector",
    "wants_divergence",
]
