"""A pool that decodes a fixed text, whose acceptance by every drafter at every position is drawn once."""

from __future__ import annotations

import importlib
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np

from drafterforge.selectors import Context, Evaluation, Feedback, names, selector

HERE = Path(__file__).parent
FIXTURES = json.loads((HERE / "fixtures.json").read_text())
REQUIRED = {"router": {"route": lambda prompt: 1}, "oracle": {"best": 1}}  # required options
DEPTH = 4


@cache
def simulation():
    """scripts/simulate_selectors.py."""
    sys.path.append(str(HERE.parents[1] / "scripts"))
    return importlib.import_module("simulate_selectors")


def make(name, num_drafters=3, depth=DEPTH, **options):
    drafters = [f"d{index}" for index in range(num_drafters)]
    if name in REQUIRED and num_drafters == 1:
        options = {"router": {"route": lambda prompt: 0}, "oracle": {"best": 0}}[name] | options
    return selector(name, drafters, depth, **(REQUIRED.get(name, {}) | options))


def every_selector():
    return names()


class Text:
    """Tables [N, positions] of gamma and of accepted tokens."""

    def __init__(self, num_drafters=3, positions=1200, seed=0, means=None):
        rng = np.random.default_rng(seed)
        means = np.linspace(0.8, 0.3, num_drafters) if means is None else np.asarray(means)
        self.gamma = rng.beta(5 * means, 5 * (1 - means), (positions, num_drafters)).T
        self.accepted = (rng.random(self.gamma.shape) < self.gamma).astype(float)

    def feedback(self, drafter, position, depth=DEPTH, **changes):
        """The feedback of a cycle from `position` on."""
        reach = self.accepted[drafter, position : position + depth]
        length = int(1 + reach.cumprod().sum())
        here = slice(position, position + length)
        measurements = {
            "overlap": float(self.gamma[drafter, position : position + depth].mean()),
            "evaluation": Evaluation(position, self.gamma[:, here], self.accepted[:, here]),
        }
        return Feedback(drafter, position, length, depth, **(measurements | changes))


def decode(chooser, text, cycles, position=0, mask=None, first=0):
    """Run cycles; returns the drafter of each cycle and the next position."""
    drafters = []
    for cycle in range(first, first + cycles):
        choice = chooser.select(Context(cycle, position, mask))
        assert abs(choice.probs.sum() - 1) < 1e-12 and choice.probs.min() >= 0
        assert choice.probs[choice.drafter] > 0
        feedback = text.feedback(choice.drafter, position)
        chooser.observe(feedback)
        drafters.append(choice.drafter)
        position += feedback.accept_length
    return drafters, position
