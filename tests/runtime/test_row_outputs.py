"""The outputs that decoding records are those of a teacher-forced pass, for every drafter, batch and tree."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.rows import Row
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.capture import FeatureCapture
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter

SHAPE = TreeShape(6, 3, 2)
PROMPTS = [list(range(3, 12)), list(range(5, 8)), list(range(40, 60))]


def decode(engine: Engine, recorded: list[bool], sampling: Sampling) -> list[Row]:
    with torch.inference_mode():
        batch, rows = engine.open_batch(), []
        for prompt, is_recorded in zip(PROMPTS, recorded, strict=True):
            tokens, rule = engine.read(prompt, 17)
            joining = batch.begin(tokens, rule, sampling, RowOutputs() if is_recorded else None)
            while not batch.advance(joining):
                pass
            rows.append(joining.row)
        while batch.rows:
            batch.cycle(engine.shape)
    return rows


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["plain", "eagle3", "retrieval"])
def test_recorded_outputs_equal_a_teacher_forced_pass(target, kind, sampling):
    drafter = {
        "plain": None,
        "eagle3": FusedDrafter(tiny_drafter(target), target.backbone.embedding),
        "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0),
    }[kind]
    rows = decode(Engine(target, drafter, SHAPE), [True, False, True], sampling)
    assert rows[1].outputs is None
    for row in (rows[0], rows[2]):
        ids = row.text
        features, states = row.outputs.join(len(ids) - 1)
        exact = FeatureCapture(target)([ids])[0]
        assert features.dtype == states.dtype == torch.bfloat16
        torch.testing.assert_close(features.float(), exact.features[:-1], rtol=2**-7, atol=1e-4)
        torch.testing.assert_close(states.float(), exact.states[:-1], rtol=2**-7, atol=1e-4)


def test_recording_changes_no_token_and_fixed_shapes_record_nothing(target):
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    plain = decode(Engine(target, drafter, SHAPE), [False] * 3, GREEDY)
    recorded = decode(Engine(target, drafter, SHAPE), [True] * 3, GREEDY)
    fixed = decode(Engine(target, drafter, SHAPE, graphs=True), [True] * 3, GREEDY)
    assert [row.text for row in plain] == [row.text for row in recorded] == [row.text for row in fixed]
    assert all(row.outputs is None for row in fixed)
