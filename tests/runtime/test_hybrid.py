"""Hybrid trees of EAGLE-3 and retrieval give the target's text and hold no node that is too unlikely."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drafterforge.assembly import drafters as room
from drafterforge.assembly.drafters import open_named
from drafterforge.config.names import RETRIEVAL, parse_hybrid
from drafterforge.drafters.base import DrafterSource
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.stack import StackedGroup
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.hybrid.propose import HybridDrafting
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_members import PoolMembers
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.shapes import default_shape
from drafterforge.selectors.bandit import Bandit
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import ReachGrowth
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.merge import Nodes, as_tree
from tests.models import tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17, [9, 8, 7, 9, 8]]
ALL = {"min_reach": 0.0, "min_probability": 0.0, "min_retrieval_tokens": float("inf")}
LIKELY = {"min_reach": 0.9, "min_probability": 0.5}
SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)


@pytest.fixture(scope="module")
def target():
    """A tiny random model whose answers repeat themselves."""
    return tiny_target()


@pytest.fixture(scope="module")
def eagle(target) -> FusedDrafter:
    """A random drafter for it."""
    return FusedDrafter(tiny_drafter(target), target.backbone.embedding)


@pytest.mark.parametrize(
    ("max_batch", "worth", "sampling"),
    [
        (1, ALL, GREEDY),
        (3, ALL, SAMPLED),
        (3, {}, GREEDY),
        (1, {}, SAMPLED),
        (1, LIKELY, GREEDY),
        (3, LIKELY, SAMPLED),
    ],
)
def test_the_text_is_the_target_s(target, eagle, max_batch, worth, sampling):
    expected = [Engine(target).generate([prompt], 20, sampling)[0].tokens for prompt in PROMPTS]
    hybrid = HybridDrafter(eagle, Retrieval(), **worth)
    for drafter in (hybrid, Pool({"eagle": eagle, "both": hybrid, "retrieval": Retrieval()}, "thompson")):
        answers = Engine(target, drafter, TreeShape(12, 6, 3), max_batch).generate(PROMPTS, 20, sampling)
        assert [answer.tokens for answer in answers] == expected


def test_the_tree_holds_deep_chains_of_retrieval_although_the_drafter_drafts_few_nodes(target, eagle):
    hybrid = HybridDrafter(eagle, Retrieval(), min_reach=0.99, min_probability=0.0)
    prompt = [5, 9, 13, 2 + 9, 30, 31, 32, 33] * 4
    cycles = Engine(target, hybrid, TreeShape(30, 9, 2)).generate([prompt], 12)[0].cycles
    assert max(cycle.accepted for cycle in cycles) > 3  # a random drafter alone never accepts so many
    assert all(cycle.depth <= 9 and cycle.num_nodes <= 30 for cycle in cycles)


def test_unlikely_nodes_are_not_verified(target, eagle):
    def nodes(worth: float) -> float:
        hybrid = HybridDrafter(eagle, Retrieval(), min_reach=0.0, min_probability=worth)
        answers = Engine(target, hybrid, TreeShape(40, 4, 3)).generate(PROMPTS, 16)
        return sum(cycle.num_nodes for answer in answers for cycle in answer.cycles)

    assert nodes(0.0) > nodes(0.1) > nodes(0.9)


def test_a_level_is_drafted_while_its_parents_are_likely():
    reading = ReachGrowth(TreeShape(9, 5, 2), [0.3, 0.3, 1.0], torch.device("cpu"))
    scores = torch.tensor([[0.2, 0.15, 0.6], [0.1, 0.1, 0.1], [0.2, 0.15, 0.6]]).log()
    assert reading.go_on(1, scores).tolist() == [True, False, False]
    assert reading.reaches == [pytest.approx([0.8, 0.2, 0.8])] and reading.num_levels == 2
    assert reading.nodes(torch.tensor([2, 3, 4]), scores).tolist() == [9, 9, 9]


@pytest.mark.parametrize("options", [{}, {"skip": 0.0, "skip_cycles": 2}])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, seed=5)])
def test_a_hybrid_is_judged_by_the_proposals_of_both_drafters(target, eagle, options, sampling, monkeypatch):
    shapes = {"both": TreeShape(12, 6, 3), "retrieval": TreeShape(12, 6, 3)}
    spec = replace(Retrieval().spec, doubt=Retrieval().spec.doubt * 0.5)
    retrieval = Retrieval(spec, min_probability=0.08, min_expected=0.0)  # the same proposals as the hybrid's retrieval
    drafters = {"eagle": eagle, "both": HybridDrafter(eagle, Retrieval(), trust=0.5), "retrieval": retrieval}
    pool = Pool(drafters, "hedgespec", shapes=shapes, **options)
    judged, read = [], PoolMembers.read

    def watching(members, *arguments):
        judgement = read(members, *arguments)
        judged.extend([] if judgement is None else [judgement])
        return judgement

    monkeypatch.setattr(PoolMembers, "read", watching)
    order = PoolMembers(pool).names
    Engine(target, pool, TreeShape(12, 6, 3)).generate(PROMPTS, 20, sampling)
    more = 0
    for judgement in judged:
        for part in (judgement.accepted, judgement.gamma):
            eagle_s, hybrid_s, retrieval_s = (part[order.index(name)] for name in ("eagle", "both", "retrieval"))
            assert hybrid_s.equal(torch.maximum(eagle_s, retrieval_s))
            more += int((hybrid_s > eagle_s).sum())
    assert more > 0


def test_drafters_with_the_same_parts_share_their_state(target, eagle):
    shared, second_retrieval = Retrieval(), Retrieval()
    proposer = PoolProposer(
        Pool({"a": HybridDrafter(eagle, shared), "b": HybridDrafter(eagle, shared)}), TreeShape(8, 3, 2)
    )
    assert len(proposer.members.indices) == 1
    proposer.join("c", HybridDrafter(eagle, shared), [], [])
    proposer.join("d", HybridDrafter(eagle, second_retrieval), [], [])
    assert len(proposer.members.indices) == 2
    proposer.leave("a"), proposer.leave("d")
    assert len(proposer.members.indices) == 1 and set(proposer.members.index_of) == {"b", "c"}


def test_a_hybrid_joins_and_leaves_a_running_pool(target, eagle):
    expected = Engine(target).generate([PROMPTS[0]], 24)[0].tokens
    engine = Engine(target, Pool({"eagle": eagle}, "random"), TreeShape(8, 3, 2))
    stream = engine.stream(PROMPTS[0], 24)
    next(stream), next(stream)
    engine.add_drafter("both", HybridDrafter(eagle, Retrieval()))
    next(stream), next(stream), next(stream)
    engine.remove_drafter("both")
    *_, last = stream
    assert last.tokens == expected


def test_a_bandit_learns_from_cycles_without_verified_nodes_too(target, eagle, monkeypatch):
    seen, observe = [], Bandit.observe

    def watching(bandit, feedback):
        seen.append(feedback)
        return observe(bandit, feedback)

    monkeypatch.setattr(Bandit, "observe", watching)
    idle = HybridDrafter(eagle, Retrieval(), min_reach=0.99, min_probability=0.999)
    pool = Pool({"idle": idle, "eagle": eagle}, "ucb1", shapes={"idle": TreeShape(12, 6, 3)})
    Engine(target, pool, TreeShape(6, 2, 2)).generate([PROMPTS[1]], 24)
    never = [feedback for feedback in seen if feedback.drafter == 0]
    assert never and {feedback.accept_length for feedback in never} == {1}
    assert never[0].depth == 6 and all(
        feedback.depth > 0 for feedback in never
    )  # the depth is lower near the length limit


@pytest.mark.parametrize("worth", [ALL, {}])
def test_a_tree_does_not_depend_on_the_rows_beside_it(target, eagle, worth, monkeypatch):
    trees, verify = [], Batch.verify

    def watching(batch, record):
        tree = record.tree
        trees.append({row.answer.prompt[-1]: tuple(nodes_of(tree, index)) for index, row in enumerate(batch.rows)})
        return verify(batch, record)

    def nodes_of(tree, row):
        for node, (token, parent, level) in enumerate(
            zip(tree.tokens[row], tree.parents[row], tree.levels[row], strict=True)
        ):
            if node == 0 or parent != node:
                yield int(token), int(parent), int(level)

    monkeypatch.setattr(Batch, "verify", watching)
    engine = Engine(target, HybridDrafter(eagle, Retrieval(), **worth), TreeShape(12, 5, 3))
    engine.generate(PROMPTS, 20)
    together, alone = {}, {}
    for cycle_trees in trees:
        for prompt, tree in cycle_trees.items():
            together.setdefault(prompt, []).append(tree)
    for prompt in PROMPTS:
        trees.clear()
        engine.generate([prompt], 20)
        alone[prompt[-1]] = [cycle_trees[prompt[-1]] for cycle_trees in trees]
    assert together == alone


def test_default_trees_fit_the_device_and_drafters_of_other_targets_are_refused(target, eagle):
    hybrid = HybridDrafter(eagle, Retrieval())
    assert kind_name(hybrid) == "hybrid"
    assert Engine(target, hybrid).shape == default_shape(target.device, target.dtype, "hybrid")
    other_target = tiny_target(vocab_size=70)
    with pytest.raises(DrafterforgeError, match="drafts for a target of vocabulary 61"):
        Engine(other_target, hybrid)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("min_reach", 1.0, r"must lie in \[0, 1\), got 1.0"),
        ("min_probability", -0.1, r"must lie in \[0, 1\), got -0.1"),
        ("trust", 0.0, "must be above 0, got 0.0"),
        ("min_retrieval_tokens", float("nan"), "must be above 0, got nan"),
    ],
)
def test_settings_of_a_hybrid_out_of_range_are_refused(eagle, name, value, words):
    with pytest.raises(ConfigError, match=f"{name} {words}"):
        HybridDrafter(eagle, Retrieval(), **{name: value})


def test_the_drafter_drafts_only_rows_for_which_retrieval_expects_too_few_tokens(eagle):
    calls = []

    def draft(rows, growth, merging):
        calls.append((rows, growth.least.tolist(), len(merging.evidence)))
        return as_tree(torch.tensor([7] * len(rows)), [Nodes([], [], [], [])] * len(rows))

    hybrid, promising = (
        HybridDrafter(eagle, Retrieval(), min_retrieval_tokens=0.5),
        Evidence.of([(90.0, [1, 2])], 4.0, 2.0),
    )
    evidence = [Evidence.of([], 4.0, 2.0), promising, Evidence.of([(1.0, [1, 2])], 4.0, 2.0)]
    tree = HybridDrafting(hybrid).draft(evidence, torch.tensor([7, 8, 7]), TreeShape(9, 2, 2), draft)
    least = hybrid.min_reach  # over the weight of the drafter: 1, and 32 / 33 beside an occurrence of weight 1
    assert least > 0 and calls == [([0, 2], pytest.approx([least, least * 33 / 32]), 2)]
    assert tree.tokens.tolist() == [[7, 0, 0], [8, 1, 2], [7, 0, 0]]
    calls.clear()
    HybridDrafting(hybrid).draft([promising], torch.tensor([8]), TreeShape(9, 2, 2), draft)
    assert not calls


def test_a_hybrid_without_a_pool_reads_only_when_it_drafts(target, eagle, monkeypatch):
    unread, drafted, refresh, draft = [], [], PoolProposer.refresh, PoolProposer.draft

    def watching(proposer, record):
        refresh(proposer, record)
        unread.append(max(len(row) for row in proposer.members.groups[0][1].unread))

    def drawing(proposer, record):
        tree = draft(proposer, record)
        drafted.append(tree.tokens.tolist())
        return tree

    monkeypatch.setattr(PoolProposer, "refresh", watching)
    monkeypatch.setattr(PoolProposer, "draft", drawing)
    hybrid = HybridDrafter(eagle, Retrieval(), min_retrieval_tokens=0.3)
    lazy = Engine(target, hybrid, TreeShape(12, 5, 3), max_batch=1).generate(PROMPTS, 24)
    assert max(unread) > 1 and min(unread) > 0  # consecutive cycles skip the drafter
    trees = drafted.copy()
    unread.clear(), drafted.clear()
    monkeypatch.setattr(StackedGroup, "commit", eager)
    again = Engine(target, hybrid, TreeShape(12, 5, 3), max_batch=1).generate(PROMPTS, 24)
    assert [answer.tokens for answer in again] == [answer.tokens for answer in lazy]
    assert drafted == trees and set(unread) == {0}


COMMIT = StackedGroup.commit


def eager(part, *committed) -> None:
    """Commit and read immediately."""
    COMMIT(part, *committed)
    part.read()


@pytest.mark.parametrize("newcomer", ["eagle", "retrieval"])
def test_a_drafter_joins_a_hybrid_with_deferred_reads(target, eagle, newcomer):
    expected = Engine(target).generate([PROMPTS[0]], 30)[0].tokens
    engine = Engine(
        target,
        Pool({"both": HybridDrafter(eagle, Retrieval(), min_retrieval_tokens=0.01)}, "hedgespec"),
        TreeShape(8, 3, 2),
    )
    stream = engine.stream(PROMPTS[0], 30)
    next(stream), next(stream), next(stream)
    engine.add_drafter(newcomer, {"eagle": eagle, "retrieval": Retrieval()}[newcomer])
    *_, last = stream
    assert last.tokens == expected


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, seed=5)])
@pytest.mark.parametrize("drafter", ["eagle", "both"])
def test_deferred_reads_of_the_only_eagle_drafter_never_change_the_text(target, eagle, drafter, sampling):
    expected = [Engine(target).generate([prompt], 24, sampling)[0].tokens for prompt in PROMPTS]
    only = {"eagle": eagle, "both": HybridDrafter(eagle, Retrieval())}[drafter]
    drafters = {drafter: only, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}
    pool = Pool(
        drafters, "hedgespec", skip=0.0, skip_cycles=3
    )  # reads of three cycles are deferred, then one is judged
    answers = Engine(target, pool, TreeShape(8, 3, 2)).generate(PROMPTS, 24, sampling)
    assert [answer.tokens for answer in answers] == expected


def test_names_of_hybrids_are_distinguished_from_names_of_drafters():
    assert parse_hybrid("general+retrieval") == ("general", "retrieval")
    assert [parse_hybrid(name) for name in ("general", "+retrieval", "general+", "+", "c++")] == [None] * 5


def test_two_names_open_one_drafter_and_wrong_kinds_are_one_line(target, eagle, monkeypatch):
    opened = {"general": eagle, "sql": eagle, RETRIEVAL: Retrieval()}
    monkeypatch.setattr(
        room, "open_drafters", lambda sources, *_: {source.name: opened[source.name] for source in sources}
    )

    def source_of(name: str) -> DrafterSource:
        return DrafterSource(name, "eagle3", None)

    drafters = open_named(["sql", "general+retrieval"], source_of, target)
    assert list(drafters) == ["sql", "general+retrieval"]
    assert drafters["general+retrieval"] == HybridDrafter(eagle, opened[RETRIEVAL])
    for name in ("retrieval+general", "general+sql"):
        with pytest.raises(ConfigError, match=r"\(EAGLE-3, block\) and a retrieval drafter, in this order; type "):
            open_named([name], source_of, target)
