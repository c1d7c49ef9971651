"""Outcomes are priced by what is drafted; playing a table equals playing each answer's counterfactual."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.table import build_table, play
from drafterforge.schedulers.latency import STEPS, Cycles, terms
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import TreeShape
from tests.replay.builders import GRID, profile, table, traces


@pytest.mark.parametrize("hold_cycles", [1, 3])
def test_playing_a_table_equals_playing_the_counterfactual_of_each_answer(hold_cycles):
    outcomes = table(lengths=(19, 1, 30))
    actions = np.random.default_rng(1).integers(len(outcomes.grid), size=outcomes.num_roots)
    played = play(outcomes, lambda rows: actions[rows], hold_cycles)
    for answer, start in enumerate(outcomes.starts[:-1]):
        rows = slice(start, outcomes.starts[answer + 1])
        tokens, answer_actions = outcomes.tokens[rows].T.astype(int), actions[rows][None]
        each = [  # top_k holds the action
            CycleOutcomes(tokens[[action]], answer_actions, answer_actions, np.full_like(answer_actions, action))
            for action in range(len(outcomes.grid))
        ]
        end = 1 + answer_actions.size
        counterfactual = Counterfactual(["a"], [3], 0, end, each, np.zeros((1, end)), answer_actions, hold_cycles)
        cycles = counterfactual.play(lambda _: 0)
        assert (
            len(cycles) == played.cycles[answer] and sum(cycle.accept_length for cycle in cycles) == answer_actions.size
        )
        seconds = sum(outcomes.seconds[start + cycle.position, cycle.top_k] for cycle in cycles)
        assert seconds == pytest.approx(played.seconds[answer], rel=1e-5)


def num_passes(shape: TreeShape) -> int:
    """Passes of a drafter, after the one that scored the root's children, for one tree."""
    logits, passes = torch.randn(1, 9, generator=torch.Generator().manual_seed(0)), []

    def step(level, tokens, origin, reads):
        passes.append(level)
        return logits.expand(1, tokens.shape[1], 9)

    expand(torch.zeros(1, dtype=torch.long), logits, shape, step)
    return len(passes)


def test_an_action_is_priced_by_the_passes_that_it_takes():
    """A tree of two nodes takes one pass, whatever its depth, unless a policy cuts it after drafting."""
    nothing = Cycles(*(np.zeros(1) for _ in range(5)))
    costs = profile()
    seconds = {step: dict.fromkeys(terms(step, nothing, costs.nodes, costs.top_ks), 0.0) for step in STEPS}
    seconds["draft"] |= {f"level, top_k {k}": 1.0 for k in costs.top_ks}
    recorded = traces(lengths=(30,))
    deep = int(np.flatnonzero(recorded.levels >= max(GRID.depths))[0])
    for grows, levels in ((False, [num_passes(shape) for shape in GRID.shapes]), (True, GRID.table[:, 1] - 1)):
        priced = build_table(recorded, GRID, 0, profile(seconds=seconds), grows).seconds[deep]
        assert priced == pytest.approx(np.maximum(levels, 0))
    assert num_passes(TreeShape(2, 3, 2)) == 0 and num_passes(TreeShape(8, 3, 2)) == 2
