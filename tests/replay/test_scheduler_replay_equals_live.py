"""Replayed cycles equal live cycles at every position for every action of the grid."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError
from drafterforge.replay.record import record_answer
from drafterforge.replay.scheduler_actions import depth_observations, observations_of, size_observations
from drafterforge.replay.scheduler_play import actions_of
from drafterforge.replay.trace import TraceSpec, join, load_shards, save_shard
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import RandomScheduler, StaticScheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy, marginal_grid
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.schedulers.observation import Observation
from drafterforge.schedulers.policy import ShapePolicy, check_policy, load_policy, save_policy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import TreeShape
from tests.models import NORMS, tiny_target
from tests.replay.builders import profile as sample_profile
from tests.runtime.drafters import full_drafters, lora_drafters

GRID = ActionGrid("tiny", (1, 2, 4, 7, 12, 20), (1, 2, 5), (1, 2, 3, 5))
PROMPTS = [[3, 14, 15, 9, 26, 5], [4] * 17]
COUNT = 18
SPEC = TraceSpec(("a", "b", "c"), (1, 2, 3, 5), 5, 3)


@pytest.fixture(scope="module")
def everything():
    """A target, drafters of two kinds, and traces of its answers, one of which ends at an end token."""
    target = tiny_target(eos_token_id=None)
    experts = lora_drafters(target, 2)
    drafters = {"a": experts[0], "b": experts[1], "c": full_drafters(target, 1, **NORMS["EAGLE-3.1"])[0]}
    answers = Engine(target).generate(PROMPTS, COUNT)
    target.eos_ids = {answers[0].tokens[11]}
    answers = Engine(target).generate(PROMPTS, COUNT)
    recorded = [record_answer(target, Pool(drafters), answer, SPEC, max_new_tokens=COUNT) for answer in answers]
    return target, drafters, join(SPEC, recorded, ["x"] * 2, ["test"] * 2)


def accept_lengths_of(traces, table, answer: int, action: int) -> list[int]:
    """Accept lengths of an answer's cycles under one action."""
    row, lengths = traces.starts[answer], []
    while row < traces.starts[answer + 1]:
        lengths.append(int(table[row, action]))
        row += lengths[-1]
    return lengths


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEC.drafters)
def test_replayed_cycles_equal_live_cycles_for_every_action(everything, name):
    target, drafters, traces = everything
    table = traces.accept_lengths(GRID, traces.drafter(name))
    depths, nodes = traces.drafted(GRID)
    different = 0
    for action in range(0, len(GRID), 1 if name == "a" else 3):
        shape = GRID.shapes[action]
        live = Engine(target, drafters[name], shape, max_batch=1).generate(PROMPTS, COUNT)
        for answer, generation in enumerate(live):
            replayed = accept_lengths_of(traces, table, answer, action)
            assert [cycle.accept_length for cycle in generation.cycles] == replayed, (shape, answer)
            rows = traces.starts[answer] + np.cumsum([0, *replayed[:-1]])
            assert [cycle.num_nodes for cycle in generation.cycles] == nodes[rows, action].tolist()
            assert [cycle.depth for cycle in generation.cycles] == depths[rows, action].tolist()
            different += len(set(replayed)) > 1
    assert different > 9 or name != "a"  # a drafter without accepted tokens would prove little


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_answers_replay_the_cycles_of_sampled_decoding(everything, temperature):
    target, drafters, _ = everything
    sampling = [Sampling(temperature=temperature, seed=seed) for seed in (3, 4)]
    answers = Engine(target).generate(PROMPTS, COUNT, sampling)
    assert [answer.tokens for answer in answers] != [
        answer.tokens for answer in Engine(target).generate(PROMPTS, COUNT)
    ]
    recorded = [record_answer(target, Pool(drafters), answer, SPEC, max_new_tokens=COUNT) for answer in answers]
    traces = join(SPEC, recorded, ["x"] * 2, ["test"] * 2)
    table, lengths = traces.accept_lengths(GRID, 0), set()
    for action in range(0, len(GRID), 5):
        live = Engine(target, drafters["a"], GRID.shapes[action], max_batch=1).generate(PROMPTS, COUNT, sampling)
        for answer, generation in enumerate(live):
            assert generation.tokens == answers[answer].tokens
            replayed = accept_lengths_of(traces, table, answer, action)
            assert [cycle.accept_length for cycle in generation.cycles] == replayed
            lengths |= set(replayed)
    assert len(lengths) > 1


def test_a_root_takes_the_bytes_that_are_estimated(everything, tmp_path):
    target, _, traces = everything
    save_shard(tmp_path / "shard-00000.safetensors", traces)
    texts = 4 * sum(len(tokens) for tokens in traces.tokens) + 2000  # tokens and the header
    size, estimate = (
        (tmp_path / "shard-00000.safetensors").stat().st_size,
        SPEC.bytes_per_root(3 * target.backbone.embedding.shape[1]),
    )
    assert 0 <= size - estimate * traces.num_roots < texts
    again = load_shards(tmp_path, SPEC)
    assert all((again.rows[key] == traces.rows[key]).all() for key in ("ranks", "scores", "features"))


def test_answers_in_a_row_are_views_and_equal_to_copies(everything):
    traces = everything[2]
    first, copy = traces.select([0, 1]), traces.select([1, 0]).select([1, 0])
    assert np.shares_memory(first.rows["ranks"], traces.rows["ranks"])
    assert not np.shares_memory(copy.rows["ranks"], traces.rows["ranks"])
    assert all((first.rows[key] == copy.rows[key]).all() for key in first.rows)
    assert traces.select([]).num_roots == 0


def test_recorded_scores_are_those_of_drafting(everything):
    _, _, traces = everything
    assert traces.rows["scores"].shape == (3, traces.num_roots, 3 + 4 * 9)
    assert (np.diff(traces.rows["children"].astype(np.float32), axis=2) <= 0).all()
    first = traces.rows["scores"][..., :3].astype(np.float32)
    np.testing.assert_allclose(first, traces.rows["children"][..., :3].astype(np.float32), atol=2e-3)


def test_a_true_token_of_rank_1_at_level_1_is_the_likeliest_child(everything):
    _, _, traces = everything
    ranks, log_q = traces.rows["ranks"], traces.rows["log_q"]
    alone = ranks[:, :, 0, 0] == 1  # width 1, depth 1
    best = traces.rows["children"][..., 0].astype(np.float32)
    np.testing.assert_allclose(log_q[alone], best[alone], atol=2e-3)
    assert (log_q[~alone] < best[~alone] + 2e-3).all()


def test_traces_record_only_eagle3_drafters(everything):
    target = everything[0]
    with pytest.raises(DrafterforgeError, match="traces need EAGLE-3 drafters"):
        record_answer(target, Pool({"r": Retrieval()}), Generation([3, 4], [5, 6]), TraceSpec(("r",), (1,), 2, 1))


@pytest.mark.parametrize("max_batch", [1, 2])
def test_random_actions_replay_cycle_by_cycle_and_do_not_change_the_text(everything, max_batch):
    target, drafters, traces = everything
    pool = Pool({"a": drafters["a"]}, "static", scheduler=RandomScheduler(GRID, seed=4))
    table, (depths, nodes) = traces.accept_lengths(GRID, 0), traces.drafted(GRID)
    expected = Engine(target).generate(PROMPTS, COUNT)
    for answer, generation in enumerate(Engine(target, pool, max_batch=max_batch).generate(PROMPTS, COUNT)):
        assert generation.tokens == expected[answer].tokens
        row = traces.starts[answer]
        for cycle in generation.cycles:
            fitting = (nodes[row] == cycle.num_nodes) & (depths[row] == cycle.depth) & (GRID.table[:, 2] == cycle.top_k)
            assert {int(n) for n in table[row][fitting]} == {cycle.accept_length}
            row += cycle.accept_length
        assert row == traces.starts[answer + 1]


class ThresholdGrowth(Growth):
    """Drafts further levels while the best candidate is likely enough, and keeps as many nodes as levels."""

    def go_on(self, level, scores):
        return scores.amax(dim=1) > -1.5 * level

    def nodes(self, depths, scores):
        return 2 * depths + 1


class ThresholdScheduler(StaticScheduler):
    """Chooses the tree while it is drafted."""

    def growth(self, lengths):
        return ThresholdGrowth()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, seed=3)])
def test_decisions_while_drafting_do_not_change_the_text(everything, sampling):
    target, drafters, _ = everything
    expected = [a.tokens for a in Engine(target).generate(PROMPTS, COUNT, sampling)]
    shapes = set()
    for max_batch in (1, 2):
        pool = Pool(dict(drafters), "random", scheduler=ThresholdScheduler(TreeShape(20, 5, 3)))
        answers = Engine(target, pool, max_batch=max_batch).generate(PROMPTS, COUNT, sampling)
        assert [answer.tokens for answer in answers] == expected
        shapes |= {(cycle.num_nodes, cycle.depth) for answer in answers for cycle in answer.cycles}
    assert len({depth for _, depth in shapes}) > 2
    assert all(count == 2 * depth + 1 for count, depth in shapes if depth)


def shape_policy(traces, hold_cycles: int, parts: list[str]) -> ShapePolicy:
    """A policy with a random network, which chooses different trees."""
    seen = torch.from_numpy(observations_of(traces, 0, parts))
    net = ActorCritic(seen.shape[1], len(GRID), (16,), (4,))
    net.normalise_by(seen)
    spec = PolicySpec("shapes", "resps", "in-memory", "a", "", "cpu", GRID.as_dict(), parts, hold_cycles=hold_cycles)
    return ShapePolicy(spec, net)


def ltd_policy(traces) -> LTDPolicy:
    """A policy with random networks for depth and size."""
    grid = ActionGrid("ltd", GRID.num_tokens, GRID.depths, (3,))
    depth, size = ActorCritic(9 + 2, 2, (16,), (4,)), ActorCritic(3 + 4 * 9 + 2, 5, (16,), (4,))
    levels = np.full(traces.num_roots, 3)
    scores = traces.rows["scores"][0]
    depth.normalise_by(torch.from_numpy(depth_observations(scores, levels, traces.positions, 3)))
    size.normalise_by(torch.from_numpy(size_observations(scores, levels, traces.positions, 3, 5)))
    with torch.no_grad():
        depth.actor[-1].bias += torch.tensor([0.0, 0.01])
    return LTDPolicy(PolicySpec("ltd", "ltd", "in-memory", "a", "", "cpu", grid.as_dict(), top_k=3), depth, size)


def marginal_policy() -> MarginalPolicy:
    """A policy whose prices only some nodes of random drafters are worth."""
    grid = marginal_grid(GRID, 3, 5)
    numbers = {"reach": 0.25, "rate": 1.0}
    spec = PolicySpec("marginal", "marginal", "in-memory", "a", "", "cpu", grid.as_dict(), top_k=3, numbers=numbers)
    return MarginalPolicy(spec, 0.07 * torch.arange(len([n for n in grid.num_tokens if n > 1])))


def policies_of(traces) -> dict:
    """A function that builds each policy."""
    return {
        "children": lambda: shape_policy(traces, 1, ["children", "length"]),
        "features, kept": lambda: shape_policy(traces, 3, ["features"]),
        "ltd": lambda: ltd_policy(traces),
        "marginal": marginal_policy,
        "text": lambda: shape_policy(traces, 1, ["text", "length"]),
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["children", "features, kept", "ltd", "marginal", "text"])
def test_a_policy_trained_on_cpu_decodes_on_a_gpu(everything, name):
    cpu_target, _, traces = everything
    target = tiny_target(eos_token_id=None, device="cuda")
    policy = policies_of(traces.with_texts(cpu_target.backbone.embedding))[name]()
    pool = Pool({"a": lora_drafters(target, 2)[0]}, "static", scheduler=policy)
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, COUNT)]
    assert [answer.tokens for answer in Engine(target, pool).generate(PROMPTS, COUNT)] == expected


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ["marginal", "children", "features, kept", "ltd", "text"])
def test_a_policy_decodes_the_cycles_of_its_replay(everything, name):
    target, drafters, traces = everything
    torch.manual_seed(5)
    traces = traces.with_texts(target.backbone.embedding)
    policy = policies_of(traces)[name]()
    table, actions, hold_cycles = actions_of(policy, traces, 0, sample_profile())
    assert len(set(actions.tolist())) > 2
    expected: list[list[int]] = [[] for _ in PROMPTS]
    rows, left, acting = traces.starts[:-1].copy(), [0] * len(PROMPTS), [0] * len(PROMPTS)
    for answer in range(len(PROMPTS)):
        while rows[answer] < traces.starts[answer + 1]:
            if left[answer] == 0:
                acting[answer], left[answer] = actions[rows[answer]], hold_cycles
            expected[answer].append(int(table.tokens[rows[answer], acting[answer]]))
            rows[answer] += expected[answer][-1]
            left[answer] -= 1
    pool = Pool({"a": drafters["a"]}, "static", scheduler=policy)
    for max_batch in (1, 2):
        live = Engine(target, pool, max_batch=max_batch).generate(PROMPTS, COUNT)
        assert [[cycle.accept_length for cycle in answer.cycles] for answer in live] == expected


def test_a_loaded_policy_chooses_the_same_and_a_damaged_one_is_refused(everything, tmp_path):
    _, _, traces = everything
    policy = shape_policy(traces, 2, ["children"])
    save_policy(tmp_path, replace(policy.spec, hidden={"shapes": [16]}), {"shapes": policy.net})
    again = load_policy(tmp_path)
    seen = Observation(
        torch.from_numpy(traces.rows["features"]),
        torch.from_numpy(traces.rows["children"][0]),
        torch.from_numpy(traces.positions),
    )
    assert again.choose(seen) == policy.choose(seen) and again.hold_cycles == 2
    with pytest.raises(ConfigError, match="is a policy for a target with fingerprint in-memory"):
        check_policy(again, "another", "a", "", tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"")
    with pytest.raises(ArtifactError, match="holds no usable policy"):
        load_policy(tmp_path)


def test_a_loaded_marginal_policy_equals_the_saved_one_and_a_damaged_one_is_refused(tmp_path):
    policy = marginal_policy()
    save_policy(tmp_path, policy.spec, {}, policy.seconds)
    again = load_policy(tmp_path)
    assert (again.spec, again.seconds.tolist()) == (policy.spec, policy.seconds.tolist())
    path = tmp_path / "policy.json"
    stored = json.loads(path.read_text())
    for damaged, why in (
        (stored | {"numbers": {"reach": 0.25}}, "wanted numbers reach and rate >= 0"),
        (stored | {"numbers": {"reach": 0.25, "rate": -1.0}}, "wanted numbers reach and rate >= 0"),
        (stored | {"grid": stored["grid"] | {"num_tokens": [2, 3]}}, "wanted finite seconds of 2 sizes"),
        (stored | {"grid": stored["grid"] | {"num_tokens": [1]}}, "needs a size of 2 nodes or more"),
    ):
        path.write_text(json.dumps(damaged))
        with pytest.raises(ArtifactError, match=why):
            load_policy(tmp_path)
