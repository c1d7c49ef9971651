"""Playing a table of outcomes is playing every answer by itself."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.table import play
from tests.replay.made import table


@pytest.mark.parametrize("hold_cycles", [1, 3])
def test_a_table_is_played_as_the_counterfactuals_of_its_answers(hold_cycles):
    outcomes = table(lengths=(19, 1, 30))
    actions = np.random.default_rng(1).integers(len(outcomes.grid), size=outcomes.num_roots)
    played = play(outcomes, lambda rows: actions[rows], hold_cycles)
    for answer, start in enumerate(outcomes.starts[:-1]):
        rows = slice(start, outcomes.starts[answer + 1])
        tokens, chosen = outcomes.tokens[rows].T.astype(int), actions[rows][None]
        each = [  # top_k says which action it was
            CycleOutcomes(tokens[[action]], chosen, chosen, np.full_like(chosen, action))
            for action in range(len(outcomes.grid))
        ]
        end = 1 + chosen.size
        counterfactual = Counterfactual(["a"], [3], 0, end, each, np.zeros((1, end)), chosen, hold_cycles)
        cycles = counterfactual.play(lambda _: 0)
        assert len(cycles) == played.cycles[answer] and sum(cycle.accept_length for cycle in cycles) == chosen.size
        seconds = sum(outcomes.seconds[start + cycle.position, cycle.top_k] for cycle in cycles)
        assert seconds == pytest.approx(played.seconds[answer], rel=1e-5)
