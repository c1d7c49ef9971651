"""The latency model recovers known costs, prices unmeasured knots, and refuses profiles without a price."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drafterforge.config.commands import CalibrateConfig
from drafterforge.config.replay import LatencyConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.calibration import CycleTimes, ProbedAnswer, errors_on, fit_profile
from drafterforge.replay.trace import load_shards, save_shard
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import RandomScheduler
from drafterforge.schedulers.latency import STEPS, Cycles, hats, path_of_device, read_profile, terms
from drafterforge.schedulers.latency_fit import fit_step, fit_terms, unpriced
from tests.models import tiny_target
from tests.replay.builders import profile, traces


def drawn(count: int = 2000) -> Cycles:
    """Random cycles."""
    draw = np.random.default_rng(0)
    depth = draw.integers(0, 6, count)
    return Cycles(
        depth, draw.integers(1, 6, count), draw.integers(1, 21, count), draw.integers(1, 500, count), depth + 1
    )


@pytest.mark.parametrize("step", STEPS)
def test_the_fit_recovers_the_costs_despite_interruptions(step):
    costs, cycles, draw = profile(), drawn(), np.random.default_rng(1)
    clean = costs.step_s(step, cycles)
    noisy = clean * draw.normal(1, 0.02, len(clean)) + (draw.random(len(clean)) < 0.03) * 0.5
    fitted_seconds = fit_terms(terms(step, cycles, costs.nodes, costs.top_ks), noisy)
    fitted = profile(seconds={**costs.seconds, step: fitted_seconds}).step_s(step, cycles)
    assert np.abs(fitted / clean - 1).max() < 0.02
    assert min(fitted_seconds.values()) >= 0


def only(cycles: Cycles, mask: np.ndarray) -> Cycles:
    """The cycles of a mask."""
    return Cycles(*(getattr(cycles, name)[mask] for name in Cycles.__dataclass_fields__))


@pytest.mark.parametrize(("step", "knot"), [("verify", 4), ("draft", 3)])
def test_a_knot_that_no_cycle_reached_is_priced_between_its_neighbours(step, knot):
    costs, cycles = profile(), drawn()
    knots = costs.nodes if step == "verify" else costs.top_ks
    values = cycles.nodes if step == "verify" else cycles.top_k
    index = knots.index(knot)
    seen = only(cycles, (values <= knots[index - 1]) | (values >= knots[index + 1]))
    fitted = fit_step(step, seen, costs.step_s(step, seen), costs)
    name = list(terms(step, seen, costs.nodes, costs.top_ks))[index + (2 if step == "draft" else 0)]
    assert list(fitted) == list(terms(step, seen, costs.nodes, costs.top_ks)) and str(knot) in name
    assert fitted[name] == pytest.approx(costs.seconds[step][name], rel=0.02)


@pytest.mark.parametrize(("step", "knot"), [("verify", 1), ("verify", 20), ("draft", 1), ("draft", 5)])
def test_an_outermost_knot_that_no_cycle_reached_is_named(step, knot):
    costs, cycles = profile(), drawn()
    knots = costs.nodes if step == "verify" else costs.top_ks
    values = cycles.nodes if step == "verify" else cycles.top_k
    inside = values >= knots[1] if knot == knots[0] else values <= knots[-2]
    assert unpriced(step, cycles, costs) == ""
    assert str(knot) in unpriced(step, only(cycles, inside), costs).split()


def test_more_nodes_and_wider_levels_never_cost_less():
    costs, cycles = profile(), drawn()
    falling = {f"{n} nodes": 0.1 - 0.004 * n for n in costs.nodes}
    cheap = profile(seconds={**costs.seconds, "verify": {**costs.seconds["verify"], **falling}})
    fitted = fit_step("verify", cycles, cheap.step_s("verify", cycles), costs)
    prices = [fitted[f"{n} nodes"] for n in costs.nodes]
    assert min(prices) > 0 and prices == sorted(prices)


def test_few_slow_cycles_at_a_knot_are_not_taken_for_interruptions():
    costs, cycles = profile(), drawn()
    seen = only(cycles, (cycles.nodes <= 8) | (np.cumsum(cycles.nodes == 20) <= 3) & (cycles.nodes == 20))
    seconds = costs.step_s("verify", seen) + 5.0 * (seen.nodes == 20)
    assert fit_step("verify", seen, seconds, costs)["20 nodes"] > 4


def test_every_tree_is_chosen_once_before_any_is_chosen_twice():
    grid = ActionGrid("g", (1, 2, 4), (1, 2), (1, 2))
    scheduler = RandomScheduler(grid, seed=1)
    three = type("Seen", (), {"rows": 3})()
    shapes = [shape for _ in range(2 * len(grid)) for shape in scheduler.choose(three)]
    for start in range(0, len(shapes), len(grid)):
        assert set(shapes[start : start + len(grid)]) == set(grid.shapes)


def probed_answer(costs, cycles: Cycles, scale: float) -> ProbedAnswer:
    """Cycles and probes of one answer on a machine that is `scale` times as slow as the profile."""
    answer = ProbedAnswer()
    for name in Cycles.__dataclass_fields__:
        answer.cycles.columns[name] = list(getattr(cycles, name))
    for step in STEPS:
        answer.cycles.columns[step] = list(scale * costs.step_s(step, cycles))
    length = np.arange(100, 108)
    answer.probes = CycleTimes({name: [0.0] * len(length) for name in answer.probes.columns})
    answer.probes.columns |= {"length": list(length), "host": list(scale * costs.token_s(length))}
    return answer


def test_a_slower_machine_on_held_out_answers_changes_their_scale_and_not_the_errors():
    costs, grid = profile(), ActionGrid("g", (1, 2, 4, 8, 20), (1, 2, 3, 4, 5), (1, 2, 3, 5))
    cfg, target = CalibrateConfig(drafter="a"), tiny_target()
    fitted = fit_profile(cfg, target, grid, [probed_answer(costs, drawn(), 1.0)])
    assert fitted.token_s(np.array([104])) == pytest.approx(costs.token_s(np.array([104])), rel=1e-6)
    errors = errors_on([probed_answer(costs, drawn(50), 1.5), probed_answer(costs, drawn(60), 1.5)], fitted)
    assert errors["autoregressive_scale"] == pytest.approx(1.5, rel=1e-3) and errors["total"] < 0.01


def test_too_few_cycles_name_the_setting_that_adds_more():
    costs, grid = profile(), ActionGrid("g", (1, 2, 4, 8, 20), (1, 2, 3, 4, 5), (1, 2, 3, 5))
    seen = drawn()
    few = probed_answer(costs, only(seen, seen.nodes < 8), 1.0)
    with pytest.raises(ConfigError, match=r"verify \(20 nodes\); type latency.num_prompts=2"):
        fit_profile(CalibrateConfig(drafter="a"), tiny_target(), grid, [few])


def test_levels_are_priced_by_trees_whose_nodes_leave_room_for_them():
    """A tree of two nodes drafts one level, however many are asked for, and says nothing about the others."""
    costs, grid, draw = profile(), ActionGrid("g", (1, 2, 4, 8, 20), (1, 2, 3, 4, 5), (1, 2, 3, 5)), drawn(600)
    shapes = [grid.shapes[index % len(grid)] for index in range(len(draw.length))]
    trees = Cycles(*np.array([(s.drafted.depth, s.drafted.top_k, s.num_tokens) for s in shapes]).T, draw.length, 1)
    assert (trees.depth < [shape.depth for shape in shapes]).any()
    answer = Generation([])
    for shape, *seconds in zip(shapes, *(costs.step_s(step, trees) for step in STEPS), strict=True):
        spent = dict(zip((f"{step}_s" for step in STEPS), seconds, strict=True))
        spent["draft_s"] += spent["refresh_s"]
        answer.cycles.append(Cycle(shape.depth, shape.num_tokens, 1, top_k=shape.top_k, **spent))
    times = CycleTimes()
    times.add(answer)
    times.columns["length"] = list(draw.length)
    fitted = fit_step("draft", times.cycles, times.seconds("draft"), costs)
    assert fitted == pytest.approx(dict(costs.seconds["draft"]), rel=0.01)


def test_a_profile_covers_what_the_nodes_of_its_grid_let_it_draft():
    grid = ActionGrid("g", (1, 2, 4), (1, 2, 3, 4, 5), (1, 2, 3, 5))
    costs, cycles = profile(), drawn()
    small = only(cycles, (cycles.nodes <= 4) & (cycles.depth <= 3) & (cycles.top_k <= 3))
    fitted = fit_profile(CalibrateConfig(drafter="a"), tiny_target(), grid, [probed_answer(costs, small, 1.0)])
    assert (fitted.depth, fitted.top_ks) == (3, (1, 2, 3))
    fitted.check(grid, "latency.json")
    coarse = ActionGrid("g", (1, 2, 4), (1, 2), (1, 2))  # no tree drafts a second level of width 1
    few = only(small, (small.depth < 2) | (small.top_k == 2))
    fitted = fit_profile(CalibrateConfig(drafter="a"), tiny_target(), coarse, [probed_answer(costs, few, 1.0)])
    assert (fitted.depth, fitted.top_ks) == (2, (2,))
    fitted.check(coarse, "latency.json")


def test_weights_of_knots_lie_between_neighbours():
    weights = np.array(hats(np.array([1, 2, 3, 6, 99]), (1, 2, 4, 8)))
    assert weights.sum(axis=0) == pytest.approx(1)
    assert (weights * np.array([1, 2, 4, 8])[:, None]).sum(axis=0) == pytest.approx([1, 2, 3, 6, 8])


def test_a_profile_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(profile().as_json()))
    assert read_profile(path) == profile()


def test_an_unusable_profile_is_one_line(tmp_path):
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
    with pytest.raises(ConfigError, match="measured trees up to 20 nodes, 5 levels and top_k 5") as caught:
        profile().check(ActionGrid("g", (64,), (2,), (4,)), path)
    assert "drafterforge calibrate drafter=a grid.num_tokens=[1,2,4,8,20,64] grid.depths=[2]" in str(caught.value)


@pytest.mark.parametrize("key", ["nodes", "top_ks"])
def test_a_profile_of_many_knots_costs_no_time(tmp_path, key):
    path = tmp_path / "latency.json"
    for numbers in (list(range(1, 100_001)), [1, 2000]):
        path.write_text(json.dumps(profile().as_json() | {key: numbers}))
        with pytest.raises(ArtifactError, match="wanted rising numbers from 1 to 1024"):
            read_profile(path)


@pytest.mark.parametrize("name", ["a100-8b", "h100-8b"])
def test_published_seconds_have_a_source_for_every_step_and_price_large_trees(name):
    published = read_profile(path_of_device(name))
    sources = " ".join(published.sources)
    assert all(step in sources for step in ("draft", "refresh", "verify", "host", "autoregressive"))
    assert "as published" in published.device
    published.check(ActionGrid("g", (21, 60, 240), (8, 13), (10, 32)), name)
    depth, nodes = np.array([0, 8]), np.array([1, 240])
    token, cycle = published.cycle_s(Cycles(depth, np.array([1, 10]), nodes, depth, depth + 1))
    assert published.token_s(0) <= token < cycle < 3 * token  # a large tree costs less than three tokens there


def test_a_profile_without_sources_says_nothing_of_them():
    assert "sources" not in profile().as_json()  # settings of policies that exist do not change


def test_an_unknown_device_and_two_profiles_are_one_line():
    with pytest.raises(ConfigError, match=r"latency.device=none is unknown; type one of a100-8b, h100-8b, or latency"):
        path_of_device("none")
    with pytest.raises(ConfigError, match="both name a profile; leave one out"):
        LatencyConfig(path="a.json", device="a100-8b")


def profile_with(path: str, value: object = None) -> dict:
    """A profile with one value changed, or without it."""
    content = json.loads(json.dumps(profile().as_json()))
    *keys, last = path.split("/")
    inner = content
    for key in keys:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (profile_with("seconds/verify/8 nodes"), "seconds.verify lacks '8 nodes'"),
        (profile_with("seconds/verify/9 nodes", 1.0), "has the unknown key '9 nodes'"),
        (profile_with("seconds/draft"), "seconds lacks 'draft'"),
        (profile_with("seconds/host/node", "dear"), "seconds.host.node is 'dear'"),
        (profile_with("seconds/host/node", -1.0), "host, node takes -1.0 s"),
        (profile_with("seconds/host/node", 1e999), "not JSON"),
        (profile_with("autoregressive/token"), "autoregressive lacks 'token'"),
        (profile_with("nodes", []), "its nodes are []"),
        (profile_with("top_ks", [2, 1]), "its top_ks are [2, 1]"),
        (profile_with("top_ks", 3), "top_ks is 3"),
        (profile_with("depth", 0), "its depth is 0"),
        (profile_with("device", 3), "device is 3"),
    ],
)
def test_a_profile_with_a_missing_or_invalid_price_is_one_line(tmp_path, content, words):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError) as caught:
        read_profile(path)
    assert words in str(caught.value) and "type `drafterforge calibrate" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loaded_shards_equal_the_saved_traces(tmp_path):
    first, second = traces(0), traces(1, lengths=(9, 17))
    save_shard(tmp_path / "shard-00000.safetensors", first)
    save_shard(tmp_path / "shard-00001.safetensors", second)
    all_traces = load_shards(tmp_path, first.spec)
    assert all_traces.num_roots == first.num_roots + second.num_roots
    assert all_traces.splits == ["train", "test", "train", "test"]
    back = all_traces.select([2, 3])
    for key, value in second.rows.items():
        np.testing.assert_array_equal(back.rows[key], value)
    assert (back.positions == second.positions).all() and (back.ahead == second.ahead).all()
    with pytest.raises(ArtifactError, match="holds no traces"):
        load_shards(tmp_path / "nothing", first.spec)
