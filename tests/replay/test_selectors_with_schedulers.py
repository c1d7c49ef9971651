"""Replayed cycles equal live cycles for every selector and scheduler, in half of the pairs, request by request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.replay.answer_recorder import AnswerRecorder, record_answers
from drafterforge.replay.joint_play import Arm, JointAnswers
from drafterforge.replay.record import record_answer
from drafterforge.replay.scheduler_actions import observations_of
from drafterforge.replay.trace import TraceSpec, join
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import RandomScheduler, StaticScheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic, forbid
from drafterforge.schedulers.policy import ShapePolicy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target
from tests.replay.builders import profile
from tests.replay.test_selector_replay_equals_live import live_cycles, replayed_cycles
from tests.runtime.drafters import random_adapter

SHAPE = TreeShape(40, 3, 8)
GRID = ActionGrid("tiny", (1, 2, 9, 20, 60), (1, 2, 4), (1, 3, 8))
WIDE = ActionGrid(
    "ltd", (1, 6, 20, 60, 90), (1, 2, 3, 4), (8,)
)  # no size equals the candidates of one or two levels, 9 and 73
PROMPTS = [[3, 14, 15, 9, 26, 5], [7, 8], [4] * 17]
COUNT = 26
SELECTORS = {
    "static": {"drafter": "c"},
    "hedgespec": {},
    "normalhedge": {"calibration": True},
    "metasd_ucb": {"beta": 0.2},
    "ucb1": {"c": 0.1, "carry": True},
}
SCHEDULERS = ["static", "another tree", "every cycle", "kept", "text, kept", "ltd", "ltd, depth alone", "marginal"]

FIRST = [("metasd_ucb", "kept"), ("hedgespec", "ltd"), ("ucb1", "every cycle"), ("normalhedge", "static")]
PAIRS = [(a, b) for j, b in enumerate(SCHEDULERS) for i, a in enumerate(SELECTORS) if (i + j) % 2 == 0]


def policy_of(traces, hold_cycles: int, parts: list[str], temperature: float = 0.0) -> ShapePolicy:
    """A policy with a random network, which chooses different trees."""
    seen = torch.from_numpy(np.concatenate([observations_of(traces, n, parts) for n in range(3)]))
    net = ActorCritic(seen.shape[1], len(GRID), (16,), (4,))
    net.normalise_by(seen)
    spec = PolicySpec("shapes", "resps", "in-memory", "a", "", "cpu", GRID.as_dict(), parts, hold_cycles, temperature)
    return ShapePolicy(spec, net)


class RandomDecider:
    """Stands in for a policy's network: logits from the best candidate's score and random weights."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def logits(self, seen: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return forbid(torch.cos(9.0 * seen[:, :1] + 2.4 * torch.arange(self.actions)), mask)


def ltd_policy(size: bool = True) -> LTDPolicy:
    """A policy of depth and, with `size`, of size."""
    spec = PolicySpec("ltd", "ltd", "in-memory", "a", "", "cpu", WIDE.as_dict(), top_k=8)
    return LTDPolicy(spec, RandomDecider(2), RandomDecider(4) if size else None)


def marginal_policy() -> MarginalPolicy:
    """A marginal policy whose prices some nodes are worth."""
    numbers = {"reach": 0.16, "rate": 1.0}
    spec = PolicySpec("marginal", "marginal", "in-memory", "a", "", "cpu", WIDE.as_dict(), top_k=8, numbers=numbers)
    return MarginalPolicy(spec, torch.tensor([0.05, 0.3, 0.5, 0.55]))


def informed_drafters(target, answers, size: int, ranks: list[int]) -> list[FusedDrafter]:
    """A random drafter over the most frequent tokens of the answers, and LoRA experts of it."""
    used = Counter(token for answer in answers for token in answer.tokens)
    unused_tokens = [token for token in range(61) if token not in used]
    drafter = tiny_drafter(target, draft_vocab_size=size)
    drafter.set_vocabulary(
        torch.tensor([token for token, _ in used.most_common()] + unused_tokens)[:size].sort().values
    )
    first = FusedDrafter(drafter, target.backbone.embedding)
    return [first, *(first.with_adapter(random_adapter(drafter, rank)) for rank in ranks)]


@pytest.fixture(scope="module")
def everything():
    """A target, a pool of every kind, answers of which one ends early, schedulers, and recorded answers for each."""
    torch.manual_seed(2)
    target = tiny_target(eos_token_id=None)
    answers = Engine(target).generate(PROMPTS, COUNT)
    first, fixed, second = informed_drafters(target, answers, 14, [2, 3])
    small = SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24))
    drafters = {"a": first, "fixed": fixed, "b": informed_drafters(target, answers, 18, [])[0], "c": second}
    drafters |= {"small": small, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}
    pool = Pool(drafters, shapes={"retrieval": TreeShape(8, 6, 2), "fixed": TreeShape(16, 2, 8)})
    late = [
        answer.tokens[at]
        for answer in answers
        for at in range(COUNT - 4, COUNT - 1)
        if answer.tokens[at] not in answer.tokens[:at]
    ]
    target.eos_ids = {late[0]}  # the end token falls into a tree that the length limit cuts
    answers = Engine(target).generate(PROMPTS, COUNT)
    assert {answer.stop_reason for answer in answers} == {"eos", "length"}
    served = Pool({name: drafters[name] for name in ("a", "b", "c")}, "static")
    spec = TraceSpec(("a", "b", "c"), (1, 3, 8), 4, 8)
    recorded = [record_answer(target, served, answer, spec, max_new_tokens=COUNT) for answer in answers]
    traces = join(spec, recorded, ["x"] * 3, ["test"] * 3)
    traces = traces.with_texts(target.backbone.embedding)
    schedulers = {
        "static": StaticScheduler(SHAPE),
        "another tree": StaticScheduler(TreeShape(11, 4, 3)),
        "every cycle": policy_of(traces, 1, ["children", "length"]),
        "kept": policy_of(traces, 3, ["features", "children"]),
        "text, kept": policy_of(traces, 2, ["text", "length"]),
        "ltd": ltd_policy(),
        "ltd, depth alone": ltd_policy(size=False),
        "marginal": marginal_policy(),
    }
    by_scheduler = record_answers(target, pool, SHAPE, answers, schedulers, COUNT, branches=True)
    return target, pool, answers, traces, schedulers, by_scheduler


def live(everything, selector: str, scheduler: str, max_batch: int = 1) -> list:
    """Answers decoded with a selector and a scheduler; "static" is the engine's default tree."""
    target, pool, _, _, schedulers, _ = everything
    policy = None if scheduler == "static" else schedulers[scheduler]
    options = {"seed": 3} | SELECTORS[selector]
    pool = Pool(pool.drafters, selector, shapes=pool.shapes, scheduler=policy, **options)
    return Engine(target, pool, SHAPE, max_batch=max_batch).generate(PROMPTS, COUNT)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("selector", "scheduler"), [*FIRST, *(pair for pair in PAIRS if pair not in FIRST)])
def test_replayed_cycles_equal_live_cycles(everything, selector, scheduler):
    recorded = everything[-1][scheduler]
    played = recorded.run(recorded.maker(selector, seed=3, **SELECTORS[selector]))
    used: Counter[str] = Counter()
    for answer, cycles in zip(live(everything, selector, scheduler), played, strict=True):
        assert live_cycles(answer) == replayed_cycles(recorded, cycles)
        used.update(cycle.drafter for cycle in answer.cycles)
    assert len(used) > 1 or selector == "static"
    table = recorded.table(played)
    assert Counter(table["drafter"]) == used
    assert sum(table["accept_length"]) == recorded.tokens.sum()


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_batching_does_not_change_the_cycles(everything, scheduler):
    recorded = everything[-1][scheduler]
    played = recorded.run(recorded.maker("hedgespec", seed=3))
    for answer, cycles in zip(live(everything, "hedgespec", scheduler, max_batch=3), played, strict=True):
        assert live_cycles(answer) == replayed_cycles(recorded, cycles)


def test_schedulers_choose_different_trees(everything):
    """Equal cycles prove more if the schedulers choose different trees."""
    lengths = {}
    for name, recorded in everything[-1].items():
        served = [recorded.names.index(name) for name in ("a", "b", "c")]
        cycles = [cycle for n in range(len(recorded.names)) for answer in recorded.alone(n) for cycle in answer]
        shapes = {(cycle.depth, cycle.num_nodes) for cycle in cycles if cycle.drafter in served}
        assert len(shapes) >= (2 if "tree" in name or name == "static" else 4), (name, shapes)
        lengths[name] = len({cycle.accept_length for cycle in cycles if cycle.drafter in served})
        assert {cycle.top_k for cycle in cycles if cycle.drafter not in served} == {2, 8}
    assert min(lengths.values()) > 1 and max(lengths.values()) > 3, lengths
    held = everything[-1]["kept"]
    assert all(len(each.outcomes) > 3 and each.hold_cycles == 3 for each in held.counterfactuals)


def test_a_choice_is_held_while_other_drafters_draft(everything):
    """The policy decides once in three cycles, even if a drafter without it drafts in between."""
    counterfactual = everything[-1]["kept"].counterfactuals[0]
    turns = iter([0, 5, 3] * COUNT)
    cycles = counterfactual.play(lambda _: next(turns))
    assert len(cycles) >= 6
    for first, between, third in zip(cycles[::3], cycles[1::3], cycles[2::3], strict=False):
        choices = counterfactual.choices[:, [cycle.position - counterfactual.begin for cycle in (first, between)]]
        outcomes = counterfactual.outcomes[choices[0, 0]]
        for cycle in (first, third):
            at = cycle.drafter, cycle.position - counterfactual.begin
            assert cycle[3:] == (outcomes.depth[at], outcomes.num_nodes[at], outcomes.top_k[at])
        assert between.top_k == 2 and choices[5, 1] == -1


def test_replay_looks_up_the_drafted_trees(everything):
    """A drafter with its own shape drafts it at every position; the others draft the scheduler's tree."""
    target, pool, answers, _, _, by_scheduler = everything
    drafted = Pool(pool.drafters, shapes={name: SHAPE for name in ("a", "b", "c")} | pool.shapes)
    recorder = AnswerRecorder(target, drafted, SHAPE, max_new_tokens=COUNT, branches=True)
    for answer, looked_up in zip(answers, by_scheduler["static"].counterfactuals, strict=True):
        plain = recorder.record(answer)["static"]
        for key, array in looked_up.outcomes[0].arrays().items():
            np.testing.assert_allclose(array, plain.outcomes[0].arrays()[key], atol=1e-5, err_msg=key)
        assert looked_up.depths == plain.depths and (looked_up.accepted == plain.accepted).all()
        assert plain.outcomes[0].coverage.max() > 0


def test_a_sampling_policy_is_sampled_once_and_follows_its_distribution(everything):
    target, pool, answers, traces, _, _ = everything
    policy = policy_of(traces, 1, ["children"], temperature=1.0)
    assert policy.stochastic and not replace_temperature(policy).stochastic and not StaticScheduler(SHAPE).stochastic
    pool = Pool({name: pool.drafters[name] for name in ("a", "b")}, "static")
    first, second = (record_answers(target, pool, SHAPE, answers, {"x": policy}, COUNT)["x"] for _ in range(2))
    assert first.alone(0) == second.alone(0)
    # the network is nearly uniform, so trees of four levels are as frequent as in the grid
    nodes, depth = (
        np.concatenate([getattr(answer.outcomes[0], key)[:, :-5] for answer in first.counterfactuals], axis=1)
        for key in ("num_nodes", "depth")
    )
    share = len([shape for shape in GRID.shapes if shape.depth == 4]) / len(GRID)
    assert abs((depth == 4).mean() - share) < 4 * (share * (1 - share) / depth.size) ** 0.5 + 0.05
    assert len({*nodes.ravel().tolist()}) > 4


def replace_temperature(policy: ShapePolicy) -> ShapePolicy:
    """The same policy at temperature 0."""
    return ShapePolicy(replace(policy.spec, temperature=0.0), policy.net)


def test_a_scheduler_that_cannot_be_replayed_is_refused(everything):
    target, pool, answers, *_ = everything
    with pytest.raises(
        ConfigError, match="scheduler 'x' is a RandomScheduler, which cannot be replayed; wanted one tree"
    ):
        record_answers(target, pool, SHAPE, answers, {"x": RandomScheduler(GRID)}, COUNT)
    policy = ltd_policy()
    policy = LTDPolicy(replace(policy.spec, top_k=2), policy.depth_net, None)
    with pytest.raises(ConfigError, match="must be recorded separately, got y of width 8, z of width 2"):
        record_answers(target, pool, SHAPE, answers, {"y": ltd_policy(), "z": policy}, COUNT)
    with pytest.raises(DrafterforgeError, match=r"an answer has \d+ tokens, more than max_new_tokens=1$"):
        record_answers(target, pool, SHAPE, answers, {"x": StaticScheduler(SHAPE)}, 1)


def test_a_pool_without_scheduled_drafters_is_replayed_with_its_own_trees(everything):
    target, pool, answers, _, schedulers, _ = everything
    alone = Pool({"retrieval": pool.drafters["retrieval"]}, "static")
    recorded = record_answers(target, alone, SHAPE, answers, {"ltd": schedulers["ltd"]}, COUNT)["ltd"]
    pool = Pool(alone.drafters, "static", scheduler=schedulers["ltd"])
    for answer, cycles in zip(Engine(target, pool, SHAPE).generate(PROMPTS, COUNT), recorded.alone(0), strict=True):
        assert live_cycles(answer) == replayed_cycles(recorded, cycles)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("selector", ["ucb1", "thompson"])
def test_replayed_arms_of_drafter_and_tree_equal_a_live_pool_of_these_arms(everything, selector):
    """Only bandits: a full-information learner cannot decode live, because it needs the tokens of every arm."""
    target, pool, _, traces, _, _ = everything
    arms = [Arm(name, shape) for name in ("a", "c") for shape in (TreeShape(9, 2, 3), TreeShape(60, 4, 8))]
    recorded = JointAnswers.of(traces, GRID, profile(), arms)
    options = {"c": 0.1} if selector == "ucb1" else {}
    shapes = {arm.name: arm.shape for arm in arms}
    drafters = {arm.name: pool.drafters[arm.drafter] for arm in arms}
    arm_pool = Pool(drafters, selector, shapes=shapes, costs=recorded.costs, seed=0, **options)
    played = recorded.run(recorded.maker(selector, **options))
    for answer, cycles in zip(
        Engine(target, arm_pool, SHAPE, max_batch=1).generate(PROMPTS, COUNT), played, strict=True
    ):
        assert live_cycles(answer) == [
            (arms[cycle.drafter].name, cycle.accept_length, cycle.depth, cycle.num_nodes, cycle.top_k)
            for cycle in cycles
        ]
        assert len({cycle.drafter for cycle in cycles}) > 1
