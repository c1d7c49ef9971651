"""Costs are recovered, priced alike everywhere, and refused where they say nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drafterforge.config.commands import CalibrateConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.calibration import CycleTimes, ProbedAnswer, errors_on, fit_profile
from drafterforge.replay.trace import load_shards, save_shard
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import RandomScheduler
from drafterforge.schedulers.latency import STEPS, Cycles, hats, read_profile, terms
from drafterforge.schedulers.latency_fit import fit_step, fit_terms, unpriced
from tests.models import tiny_target
from tests.replay.made import profile, traces


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


def only(cycles: Cycles, kept: np.ndarray) -> Cycles:
    """Some of them."""
    return Cycles(*(getattr(cycles, name)[kept] for name in Cycles.__dataclass_fields__))


@pytest.mark.parametrize(("step", "knot"), [("verify", 4), ("draft", 3)])
def test_a_knot_that_no_cycle_reached_is_priced_between_its_neighbours(step, knot):
    known, cycles = profile(), drawn()
    knots = known.nodes if step == "verify" else known.top_ks
    values = cycles.nodes if step == "verify" else cycles.top_k
    place = knots.index(knot)
    seen = only(cycles, (values <= knots[place - 1]) | (values >= knots[place + 1]))
    found = fit_step(step, seen, known.step_s(step, seen), known)
    name = list(terms(step, seen, known.nodes, known.top_ks))[place + (2 if step == "draft" else 0)]
    assert list(found) == list(terms(step, seen, known.nodes, known.top_ks)) and str(knot) in name
    assert found[name] == pytest.approx(known.seconds[step][name], rel=0.02)


@pytest.mark.parametrize(("step", "knot"), [("verify", 1), ("verify", 20), ("draft", 1), ("draft", 5)])
def test_an_outermost_knot_that_no_cycle_reached_is_named(step, knot):
    known, cycles = profile(), drawn()
    knots = known.nodes if step == "verify" else known.top_ks
    values = cycles.nodes if step == "verify" else cycles.top_k
    inside = values >= knots[1] if knot == knots[0] else values <= knots[-2]
    assert unpriced(step, cycles, known) == ""
    assert str(knot) in unpriced(step, only(cycles, inside), known).split()


def test_more_nodes_and_wider_levels_never_cost_less():
    known, cycles = profile(), drawn()
    falling = {f"{n} nodes": 0.1 - 0.004 * n for n in known.nodes}
    cheap = profile(seconds={**known.seconds, "verify": {**known.seconds["verify"], **falling}})
    found = fit_step("verify", cycles, cheap.step_s("verify", cycles), known)
    prices = [found[f"{n} nodes"] for n in known.nodes]
    assert min(prices) > 0 and prices == sorted(prices)


def test_few_cycles_at_a_knot_are_no_interruptions():
    known, cycles = profile(), drawn()
    seen = only(cycles, (cycles.nodes <= 8) | (np.cumsum(cycles.nodes == 20) <= 3) & (cycles.nodes == 20))
    seconds = known.step_s("verify", seen) + 5.0 * (seen.nodes == 20)
    assert fit_step("verify", seen, seconds, known)["20 nodes"] > 4


def test_every_tree_has_its_turn_before_one_comes_again():
    grid = ActionGrid("g", (1, 2, 4), (1, 2), (1, 2))
    scheduler = RandomScheduler(grid, seed=1)
    three = type("Seen", (), {"rows": 3})()
    found = [shape for _ in range(2 * len(grid)) for shape in scheduler.choose(three)]
    for start in range(0, len(found), len(grid)):
        assert set(found[start : start + len(grid)]) == set(grid.shapes)


def beside(known, cycles: Cycles, scale: float) -> ProbedAnswer:
    """Cycles and probes of one answer on a machine so many times as slow as the profile says."""
    one = ProbedAnswer()
    for name in Cycles.__dataclass_fields__:
        one.cycles.columns[name] = list(getattr(cycles, name))
    for step in STEPS:
        one.cycles.columns[step] = list(scale * known.step_s(step, cycles))
    length = np.arange(100, 108)
    one.probes = CycleTimes({name: [0.0] * len(length) for name in one.probes.columns})
    one.probes.columns |= {"length": list(length), "host": list(scale * known.token_s(length))}
    return one


def test_a_machine_that_slows_down_over_held_out_answers_shows_in_their_scale_and_not_in_the_fit():
    known, grid = profile(), ActionGrid("g", (1, 2, 4, 8, 20), (1, 2, 3, 4, 5), (1, 2, 3, 5))
    cfg, target = CalibrateConfig(drafter="a"), tiny_target()
    found = fit_profile(cfg, target, grid, [beside(known, drawn(), 1.0)])
    assert found.token_s(np.array([104])) == pytest.approx(known.token_s(np.array([104])), rel=1e-6)
    errors = errors_on([beside(known, drawn(50), 1.5), beside(known, drawn(60), 1.5)], found)
    assert errors["autoregressive_scale"] == pytest.approx(1.5, rel=1e-3) and errors["total"] < 0.01


def test_too_few_cycles_name_the_key_that_brings_more():
    known, grid = profile(), ActionGrid("g", (1, 2, 4, 8, 20), (1, 2, 3, 4, 5), (1, 2, 3, 5))
    seen = drawn()
    few = beside(known, only(seen, seen.nodes < 8), 1.0)
    with pytest.raises(ConfigError, match=r"verify \(20 nodes\); type latency.num_prompts=2"):
        fit_profile(CalibrateConfig(drafter="a"), tiny_target(), grid, [few])


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
    with pytest.raises(ConfigError, match="measured trees up to 20 nodes, 5 levels and top_k 5") as told:
        profile().check(ActionGrid("g", (64,), (2,), (4,)), path)
    assert "drafterforge calibrate drafter=a grid.num_tokens=[1,2,4,8,20,64] grid.depths=[2]" in str(told.value)


def changed(path: str, value: object = None) -> dict:
    """A profile with one value changed, or without it."""
    found = json.loads(json.dumps(profile().as_json()))
    *keys, last = path.split("/")
    inner = found
    for key in keys:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return found


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (changed("seconds/verify/8 nodes"), "seconds.verify lacks '8 nodes'"),
        (changed("seconds/verify/9 nodes", 1.0), "has the unknown key '9 nodes'"),
        (changed("seconds/draft"), "seconds lacks 'draft'"),
        (changed("seconds/host/node", "dear"), "seconds.host.node is 'dear'"),
        (changed("seconds/host/node", -1.0), "host, node takes -1.0 s"),
        (changed("seconds/host/node", 1e999), "not JSON"),
        (changed("autoregressive/token"), "autoregressive lacks 'token'"),
        (changed("nodes", []), "its nodes are []"),
        (changed("top_ks", [2, 1]), "its top_ks are [2, 1]"),
        (changed("top_ks", 3), "top_ks is 3"),
        (changed("depth", 0), "its depth is 0"),
        (changed("device", 3), "device is 3"),
    ],
)
def test_a_profile_that_lacks_a_price_or_has_none_is_one_line(tmp_path, found, words):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ArtifactError) as told:
        read_profile(path)
    assert words in str(told.value) and "type `drafterforge calibrate" in str(told.value)
    assert "\n" not in str(told.value)


def test_shards_give_back_the_traces_that_were_saved(tmp_path):
    one, other = traces(0), traces(1, lengths=(9, 17))
    save_shard(tmp_path / "shard-00000.safetensors", one)
    save_shard(tmp_path / "shard-00001.safetensors", other)
    both = load_shards(tmp_path, one.spec)
    assert both.num_roots == one.num_roots + other.num_roots
    assert both.splits == ["train", "test", "train", "test"]
    back = both.select([2, 3])
    for key, value in other.rows.items():
        np.testing.assert_array_equal(back.rows[key], value)
    assert (back.positions == other.positions).all() and (back.ahead == other.ahead).all()
    with pytest.raises(ArtifactError, match="holds no traces"):
        load_shards(tmp_path / "nothing", one.spec)
