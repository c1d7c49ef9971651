"""Costs are recovered, priced alike everywhere, and refused where they say nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.scheduling.actions import ActionGrid
from drafterforge.scheduling.fit import fit_terms
from drafterforge.scheduling.latency import STEPS, Cycles, hats, read_profile, terms
from drafterforge.scheduling.trace import load_shards, save_shard
from tests.scheduling.made import profile, traces


def drawn(count: int = 2000) -> Cycles:
    """Random cycles."""
    draw = np.random.default_rng(0)
    depth = draw.integers(0, 6, count)
    return Cycles(
        depth, draw.integers(1, 6, count), draw.integers(1, 21, count), draw.integers(1, 500, count), depth + 1
    )


@pytest.mark.parametrize("step", STEPS)
def test_the_fit_predicts_what_made_the_data_despite_interruptions(step):
    known, cycles, draw = profile(), drawn(), np.random.default_rng(1)
    clean = known.step_s(step, cycles)
    noisy = clean * draw.normal(1, 0.02, len(clean)) + (draw.random(len(clean)) < 0.03) * 0.5
    found = fit_terms(terms(step, cycles, known.nodes, known.top_ks), noisy)
    fitted = profile(seconds={**known.seconds, step: found}).step_s(step, cycles)
    assert np.abs(fitted / clean - 1).max() < 0.02
    assert min(found.values()) >= 0


def test_weights_of_knots_lie_between_neighbours():
    weights = np.array(hats(np.array([1, 2, 3, 6, 99]), (1, 2, 4, 8)))
    assert weights.sum(axis=0) == pytest.approx(1)
    assert (weights * np.array([1, 2, 4, 8])[:, None]).sum(axis=0) == pytest.approx([1, 2, 3, 6, 8])


def test_a_profile_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(profile().as_json()))
    assert read_profile(path) == profile()


def test_a_profile_that_cannot_be_used_gets_one_line(tmp_path):
    path = tmp_path / "latency.json"
    with pytest.raises(ArtifactError, match="no latency profile at"):
        read_profile(path)
    for text, words in (
        ("{", "is no latency profile"),
        ("{}", "schema None, wanted 1"),
        ('{"schema": 1}', "is no latency profile"),
    ):
        path.write_text(text)
        with pytest.raises(ArtifactError, match=words):
            read_profile(path)
    with pytest.raises(ConfigError, match="measured trees up to 20 nodes, 5 levels and top_k 5"):
        profile().check(ActionGrid("g", (64,), (2,), (4,)), path)


def test_shards_give_back_the_traces_that_were_saved(tmp_path):
    one, other = traces(0), traces(1, lengths=(9, 17))
    save_shard(tmp_path / "shard-00000.safetensors", one)
    save_shard(tmp_path / "shard-00001.safetensors", other)
    both = load_shards(tmp_path, one.recorded)
    assert both.num_roots == one.num_roots + other.num_roots
    assert both.splits == ["train", "test", "train", "test"]
    back = both.select([2, 3])
    for key, value in other.rows.items():
        np.testing.assert_array_equal(back.rows[key], value)
    assert (back.positions == other.positions).all() and (back.ahead == other.ahead).all()
    with pytest.raises(ArtifactError, match="holds no traces"):
        load_shards(tmp_path / "nothing", one.recorded)
