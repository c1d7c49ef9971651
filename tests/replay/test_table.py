"""Playing a table of outcomes equals playing each answer's counterfactual."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.table import play
from tests.replay.builders import table


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
