"""Counterfactuals come back as they were saved; files that lack a part are made again."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import load_file, save_file

from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes


def counterfactual() -> Counterfactual:
    rates = np.array([0.5, np.nan])
    outcomes = [CycleOutcomes.undrafted(2, 3)]
    return Counterfactual(["a", "b"], [4, 4], 2, 6, outcomes, np.eye(2, 6), prompt_hit_rates=rates)


def test_counterfactuals_come_back_as_they_were_saved(tmp_path):
    cache, calls = ResumeCache(tmp_path), []

    def make() -> dict[str, Counterfactual]:
        calls.append(1)
        return {"static": counterfactual()}

    for _ in range(2):
        loaded = cache.counterfactuals("answer", make)["static"]
        np.testing.assert_array_equal(loaded.accepted, np.eye(2, 6))
        np.testing.assert_array_equal(loaded.prompt_hit_rates, [0.5, np.nan])
        assert loaded.names == ["a", "b"] and loaded.choices is None and loaded.num_tokens == 3
    assert len(calls) == 1
    path = tmp_path / "answer.safetensors"
    arrays = {key: array for key, array in load_file(path).items() if not key.endswith("prompt_hit_rates")}
    with open(path, "rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    metadata = json.loads(header)["__metadata__"]
    save_file(arrays, path, metadata=metadata)  # as an earlier version wrote it
    assert cache.counterfactuals("answer", make)["static"].prompt_hit_rates[0] == 0.5 and len(calls) == 2
