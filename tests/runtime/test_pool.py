"""A pool reads in one pass what its drafters would read one by one, and never changes the text."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import LowRank, merge
from drafterforge.drafters.eagle3.spec import FLAGS
from drafterforge.drafters.eagle3.stack import Eagle3Proposer, StackedGroup
from drafterforge.drafters.eagle3.stacked import StackedDrafters, family_order
from drafterforge.drafters.judging import Truth, draft_id_table, judge, judge_sets
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.router.features import request_of
from drafterforge.router.net import RouterNet
from drafterforge.router.router import Router
from drafterforge.runtime import deferred_reading
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.selectors import selector
from drafterforge.tree.grow import TreeShape, top_children
from tests.models import NORMS, tiny_drafter, tiny_target, uneven
from tests.tiny import build_tokenizer

SHAPE = TreeShape(10, 3, 3)
PROMPTS = [[3, 14, 15, 9, 26, 5], [7], [4] * 17, [9, 8, 7]]


def random_adapter(drafter, rank: int, names: tuple[str, ...] = ("fc", "q_proj", "v_proj", "up_proj", "lm_head")):
    """Additions of ordinary size to some projections."""
    return {
        name: LowRank(0.3 * torch.randn(rank, module.in_features), 0.3 * torch.randn(module.out_features, rank))
        for name, module in drafter.named_modules()
        if name.split(".")[-1] in names
    }


def lora_drafters(target, count: int, **changes: object) -> list[FusedDrafter]:
    """A generalist and experts of it, of different ranks and projections."""
    drafter = tiny_drafter(target, **changes)
    if changes:
        uneven(drafter)
    generalist = FusedDrafter(drafter, target.backbone.embedding)
    kinds = [("fc", "q_proj", "v_proj", "up_proj", "lm_head"), ("k_proj", "gate_proj", "down_proj"), ("o_proj",)]
    adapters = [random_adapter(drafter, 2 + n % 3, kinds[n % 3]) for n in range(count - 1)]
    return [generalist, *(generalist.with_adapter(adapter) for adapter in adapters)]


def full_drafters(target, count: int, **changes: object) -> list[FusedDrafter]:
    """Drafters with weights, norms and vocabularies of their own."""
    found = []
    for _ in range(count):
        drafter = uneven(tiny_drafter(target, **changes))
        drafter.set_vocabulary(torch.randperm(61)[:40].sort().values)
        found.append(FusedDrafter(drafter, target.backbone.embedding))
    return found


def mixed_drafters(target, count: int, **changes: object) -> list[FusedDrafter]:
    """Two families, shuffled, and a drafter alone."""
    one, two = lora_drafters(target, count, **changes), lora_drafters(target, count, **changes)
    shuffled = [one[0], two[1], two[0], *one[1:], *two[2:], *full_drafters(target, 1, **changes)]
    return [shuffled[place] for place in family_order(shuffled)]


KINDS = {
    "lora": lora_drafters,
    "full": full_drafters,
    "mixed": mixed_drafters,
    "norm before residual": partial(full_drafters, norm_before_residual=True),
    **{
        f"{kind}, {name}": partial(made, **norms)
        for kind, made in (("lora", lora_drafters), ("full", full_drafters), ("mixed", mixed_drafters))
        for name, norms in NORMS.items()
        if norms
    },
}


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 3) for kind in KINDS if "norm_output" in kind or "fc_norm" in kind or "3.1" in kind),
        *((kind, count) for kind in ("lora", "full") for count in (1, 2, 7, 16)),
        ("mixed", 3),
        ("norm before residual", 2),
    ],
)
def test_one_pass_equals_the_loop_over_drafters(target, kind, count):
    members = KINDS[kind](target, count)
    pool, loop = StackedGroup(StackedDrafters(members)), [Eagle3Proposer(member) for member in members]
    width = target.config.hidden_size
    for length in (5, 1, 9):
        text, features = torch.randint(0, 61, (length + 1,)), torch.randn(length, 3 * width)
        pool.admit(text, features)
        for one in loop:
            one.admit(text, features)
    for counts in ([1, 3, 2], [4, 1, 1]):
        tokens, features = torch.randint(0, 61, (3, max(counts))), torch.randn(3, max(counts), 3 * width)
        pool.commit(tokens, features, counts)
        pool.read(Truth(tokens, None), top_k=[3] * len(members))
        for one in loop:
            one.read(tokens, features, counts)
    torch.testing.assert_close(pool.last, torch.stack([one.last for one in loop]), rtol=1e-5, atol=1e-5)
    root = tokens[torch.arange(3), torch.tensor(counts) - 1]
    for member, one in enumerate(loop):
        expected, found = one.draft_trees(root, SHAPE), pool.draft(member, [0, 1, 2], root, SHAPE)
        assert torch.equal(expected.tokens, found.tokens) and torch.equal(expected.parents, found.parents)
        some = pool.draft(member, [2, 0], root[[2, 0]], SHAPE)
        assert torch.equal(some.tokens, expected.tokens[[2, 0]])


@pytest.mark.parametrize("flag", FLAGS)
def test_drafters_whose_norms_differ_do_not_stack(target, flag):
    members = [*full_drafters(target, 1), *full_drafters(target, 1, **{flag: True})]
    with pytest.raises(DrafterforgeError, match="do not stack"):
        StackedDrafters(members)


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_an_expert_drafts_as_with_its_additions_merged_into_its_weights(target, norms):
    drafter = uneven(tiny_drafter(target, **norms))
    adapter = random_adapter(drafter, 3, ("fc", "q_proj", "k_proj", "gate_proj", "down_proj", "o_proj", "lm_head"))
    before = copy.deepcopy(drafter.state_dict())
    expert = FusedDrafter(drafter, target.backbone.embedding).with_adapter(adapter)
    merged = FusedDrafter(merge(drafter, adapter), target.backbone.embedding)
    ours, theirs = Eagle3Proposer(expert), Eagle3Proposer(merged)
    text, features = torch.randint(0, 61, (8,)), torch.randn(7, 3 * target.config.hidden_size)
    for one in (ours, theirs):
        one.admit(text, features)
    torch.testing.assert_close(ours.last, theirs.last, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(expert.logits(ours.last), merged.logits(theirs.last), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(drafter.state_dict()[name], tensor) for name, tensor in before.items())


def everything(target) -> dict:
    """Drafters of every kind."""
    experts = lora_drafters(target, 3)
    small = SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24))
    named = {"general": experts[0], "sql": experts[1], "other": full_drafters(target, 1)[0], "chat": experts[2]}
    return {**named, "small": small, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)])
@pytest.mark.parametrize("name", ["random", "normalhedge", "thompson", "metasd_ucb"])
@pytest.mark.parametrize("read_interval", [1, 3])
def test_switching_drafters_never_changes_the_text(target, name, sampling, read_interval):
    expected = [Engine(target).generate([prompt], 14, sampling)[0].tokens for prompt in PROMPTS]
    shapes = {"retrieval": TreeShape(6, 5, 2), "sql": TreeShape(4, 2, 2)}
    pool = Pool(everything(target), name, read_interval=read_interval, shapes=shapes)
    for max_batch in (1, 3):
        answers = Engine(target, pool, SHAPE, max_batch=max_batch).generate(PROMPTS, 14, sampling)
        assert [answer.tokens for answer in answers] == expected
    used = {cycle.drafter for answer in answers for cycle in answer.cycles}
    assert used <= set(pool.names) and len(used) > 1


@pytest.mark.parametrize(("name", "asked"), [("normalhedge", True), ("ucb1", False), ("static", False)])
def test_drafters_read_when_they_draft_unless_the_selector_asks_about_all(target, name, asked, monkeypatch):
    reads, drafts, read, draft = [], [], StackedGroup.read, StackedGroup.draft

    def watching(part, truth=None, *more):
        reads.append(truth is not None)
        return read(part, truth, *more)

    def drawing(part, member, rows, *more, **others):
        tree = draft(part, member, rows, *more, **others)
        drafts.append((member, tree.tokens.tolist()))
        return tree

    experts = dict(zip("abc", lora_drafters(target, 3), strict=True))
    monkeypatch.setattr(StackedGroup, "read", watching)
    monkeypatch.setattr(StackedGroup, "draft", drawing)
    late = Engine(target, Pool(experts, name), SHAPE, max_batch=1).generate(PROMPTS, 14)
    cycles = sum(len(answer.cycles) for answer in late)
    assert sum(reads) >= cycles - 2 * len(PROMPTS) if asked else not any(reads)
    assert len(reads) <= 2 * len(PROMPTS) or asked  # those of the prompts
    trees = drafts.copy()
    drafts.clear()
    monkeypatch.setattr(deferred_reading, "MAX_DEFERRED", 1)
    again = Engine(target, Pool(experts, name), SHAPE, max_batch=1).generate(PROMPTS, 14)
    assert drafts == trees and [one.tokens for one in again] == [one.tokens for one in late]


def taught(target, drafter, text: list[int], features: torch.Tensor) -> torch.Tensor:
    """Logits that a drafter guesses each token of the text with, from the third on: one pass per token."""
    found = []
    for end in range(2, len(text)):
        proposer = Eagle3Proposer(drafter)
        proposer.admit(torch.tensor(text[:end]), features[: end - 1])
        found.append(drafter.logits(proposer.last)[0])
    return torch.stack(found)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("read_interval", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_evaluations_are_those_of_one_drafter_after_the_other(target, temperature, read_interval):
    told = []

    def recording(names, levels):
        made = selector("normalhedge", names, max(levels), levels=levels)
        observe = made.observe
        made.observe = lambda feedback: (told.append(feedback), observe(feedback))
        return made

    members = lora_drafters(target, 3)
    prompt = PROMPTS[0]
    pool = Pool(dict(zip("abc", members, strict=True)), recording, read_interval=read_interval)
    engine = Engine(target, pool, SHAPE)
    answer = engine.generate([prompt], 16, Sampling(temperature=temperature, seed=3))[0]
    evaluations = [feedback.evaluation for feedback in told if feedback.evaluation is not None]
    assert [one.start for one in evaluations[1:]] == [one.start + one.gamma.shape[1] for one in evaluations[:-1]]
    assert evaluations[0].start == len(prompt) + 1
    text = [*prompt, *answer.tokens]
    with torch.inference_mode():
        ids = torch.tensor([text])
        states, features = target.forward(ids, torch.arange(len(text))[None], None)
        logits = target.logits(states)[0]
        for evaluation in evaluations:
            for place, position in enumerate(range(evaluation.start, evaluation.start + evaluation.gamma.shape[1])):
                for number, member in enumerate(members):
                    guessed = taught(target, member, text[: position + 1], features[0])[-1]
                    children = member.token_ids[top_children(guessed, SHAPE.top_k)[1]].tolist()
                    assert evaluation.accepted[number, place] == float(text[position] in children)
                    mass = float(text[position] in children)
                    if temperature:
                        mass = (logits[position - 1].double() / temperature).softmax(-1)[children].sum().item()
                    np.testing.assert_allclose(evaluation.gamma[number, place], mass, atol=1e-5)


def test_judging_is_what_its_names_say():
    logits, token_ids = torch.randn(2, 1, 3, 5), torch.stack([torch.tensor([0, 2, 3, 5, 7]), torch.arange(5)])
    distributions = torch.randn(1, 3, 8).softmax(-1)
    truth = Truth(torch.tensor([[2, 4, 7]]), distributions)
    found = judge(logits, token_ids, draft_id_table(token_ids, 8), truth, top_k=[2, 1], details=True)
    for drafter in range(2):
        for place, token in enumerate([2, 4, 7]):
            q = torch.zeros(8).index_put((token_ids[drafter],), logits[drafter, 0, place].softmax(-1))
            best = token_ids[drafter][logits[drafter, 0, place].topk(2 - drafter).indices]
            p = distributions[0, place]
            assert found.accepted[drafter, 0, place] == float(token in best)
            torch.testing.assert_close(found.log_q[drafter, 0, place], q[token].log())
            torch.testing.assert_close(found.gamma[drafter, 0, place], p[best].sum())
            torch.testing.assert_close(found.divergence[drafter, 0, place], 0.5 * (p - q).abs().sum())


@pytest.mark.slow
def test_drafters_join_and_leave_while_requests_run(target):
    expected = [Engine(target).generate([prompt], 24)[0].tokens for prompt in PROMPTS[:2]]
    drafters = everything(target)
    late = {name: drafters.pop(name) for name in ("chat", "small", "other")}
    engine = Engine(target, Pool(drafters, "random"), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 24)) for prompt in PROMPTS[:2]]
        for number in range(40):
            if not batch.rows:
                break
            batch.cycle(SHAPE)
            if number < 3:
                engine.add_drafter(*list(late.items())[number])
            if number in (2, 4):
                engine.remove_drafter({2: "sql", 4: "chat"}[number])
    assert [row.answer.tokens for row in rows] == expected
    used = [cycle.drafter for row in rows for cycle in row.answer.cycles[5:]]
    assert used and not {"sql", "chat"} & set(used)
    assert engine.drafter.names == ["general", "retrieval", "small", "other"]
    assert Engine(target, engine.drafter, SHAPE).generate(PROMPTS[:1], 24)[0].tokens == expected[0]


def test_a_drafter_that_joins_knows_what_one_knows_that_was_there(target):
    drafters = lora_drafters(target, 2)
    engine = Engine(target, Pool({"a": drafters[0]}, "static", drafter="a"), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 30))
        for _ in range(3):
            batch.cycle(SHAPE)
        engine.add_drafter("b", drafters[0])
        ours, theirs = (part for _, part in batch.proposer.members.groups)
        torch.testing.assert_close(ours.last, theirs.last, rtol=1e-4, atol=1e-5)
        batch.cycle(SHAPE)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)


def test_selectors_carry_what_they_learned_only_if_asked(target):
    for carry in (False, True):
        pool = Pool(everything(target), "normalhedge", carry=carry)
        Engine(target, pool, SHAPE).generate(PROMPTS[:2], 10)
        (kept,) = pool.idle[:1]
        before = kept.probs.copy()
        kept.begin([1, 2])
        assert np.array_equal(kept.probs, before) == carry


def test_a_pool_serves_engines_of_other_trees_with_selectors_of_their_own(target):
    pool = Pool(everything(target), "normalhedge")
    for shape in (SHAPE, TreeShape(6, 2, 2)):
        engine = Engine(target, pool, shape)
        assert engine.generate(PROMPTS[:1], 10)[0].tokens == Engine(target).generate(PROMPTS[:1], 10)[0].tokens
        assert pool.idle[-1].depth == shape.depth


def test_costs_follow_the_drafters_of_the_pool(target):
    drafters = lora_drafters(target, 3)
    engine = Engine(target, Pool(dict(zip("ab", drafters, strict=False)), "normalhedge", costs=[1.0, 2.0]), SHAPE)
    with pytest.raises(ConfigError, match="add 'c' with cost=SECONDS"):
        engine.add_drafter("c", drafters[2])
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 12))
        engine.add_drafter("c", drafters[2], cost=3.0)
        batch.cycle(SHAPE)
        engine.remove_drafter("a")
        batch.cycle(SHAPE)
        assert batch.proposer.rows[0].selector.costs.tolist() == [2.0, 3.0]
    assert engine.drafter.options["costs"] == [2.0, 3.0]
    assert engine.generate(PROMPTS[:1], 12)[0].tokens == Engine(target).generate(PROMPTS[:1], 12)[0].tokens


def running(engine, prompt=PROMPTS[0]):
    """A batch with a request in it."""
    batch = engine.open_batch()
    with torch.inference_mode():
        row = batch.admit(*engine.read(prompt, 16))
        batch.cycle(SHAPE)
    return batch, row


def finished(batch, row):
    with torch.inference_mode():
        while batch.rows:
            batch.cycle(SHAPE)
    return row.answer.tokens


@pytest.mark.parametrize("busy", [False, True])
def test_a_refused_removal_changes_nothing(target, busy):
    expected = Engine(target).generate(PROMPTS[:1], 16)[0].tokens
    engine = Engine(target, Pool(everything(target), "static", drafter="general"), SHAPE)
    batch = running(engine) if busy else None
    names = engine.drafter.names
    with pytest.raises(ConfigError, match="'general', which cannot be removed"):
        engine.remove_drafter("general")
    assert engine.drafter.names == names
    assert batch is None or finished(*batch) == expected
    assert engine.generate(PROMPTS[:1], 16)[0].tokens == expected


def stubborn(names, levels):
    """A selector that refuses every change of its pool."""
    made = selector("normalhedge", names, max(levels), levels=levels)

    def refuse(*_):
        raise ConfigError("never")

    made.add_drafter = made.remove_drafter = refuse
    return made


def test_what_a_running_request_s_selector_refuses_does_not_happen(target):
    expected = Engine(target).generate(PROMPTS[:1], 16)[0].tokens
    drafters = everything(target)
    late = drafters.pop("chat")
    engine = Engine(target, Pool(drafters, stubborn), SHAPE)
    batch = running(engine)
    for change in (lambda: engine.remove_drafter("sql"), lambda: engine.add_drafter("chat", late)):
        with pytest.raises(ConfigError, match="never"):
            change()
        assert engine.drafter.names == batch[0].proposer.names == list(drafters)
    assert finished(*batch) == expected


def test_a_refused_newcomer_changes_nothing(target):
    drafters = lora_drafters(target, 3)
    engine = Engine(target, Pool(dict(zip("ab", drafters, strict=False)), "normalhedge", costs=[1.0, 2.0]), SHAPE)
    batch = running(engine)
    with pytest.raises(ConfigError, match="must be > 0, got -1"):
        engine.add_drafter("c", drafters[2], cost=-1.0)
    assert engine.drafter.names == ["a", "b"] and engine.drafter.options["costs"] == [1.0, 2.0]
    assert finished(*batch) == engine.generate(PROMPTS[:1], 16)[0].tokens


def made_router(width: int, encoder=None) -> Router:
    """A router between two drafters, of random weights."""
    net = RouterNet(width, 2)
    net.normalise(torch.randn(9, width))
    for parameter in net.parameters():
        parameter.data.normal_()
    return Router(net, ["general", "sql"], encoder=encoder)


class Encoder:
    """Tells texts apart, and remembers them."""

    width, source, fingerprint = 4, "made", "00"

    def __init__(self):
        self.heard = []

    def __call__(self, text):
        self.heard.append(text)
        return torch.tensor([float(len(text)), *map(float, text.encode()[:3].ljust(3))])


def test_a_router_of_texts_advises_in_the_runtime():
    """It hears what the user said, as in training, without the chat template around it."""
    tokenizer, encoder, texts = build_tokenizer(), Encoder(), ["Count users by country.", "What is 3 + 4?"]
    target = tiny_target(vocab_size=len(tokenizer), eos_token_id=None)
    drafters, router = dict(zip(("general", "sql"), lora_drafters(target, 2), strict=True)), made_router(4, encoder)
    with pytest.raises(ConfigError, match="features=text needs a tokenizer"):
        Engine(target, Pool(drafters, "router", router=router), SHAPE)
    target.tokenizer = tokenizer
    prompts = [[{"role": "user", "content": text}] for text in texts]
    answers = Engine(target, Pool(drafters, "router", router=router), SHAPE).generate(prompts, 8)
    assert [one.tokens for one in answers] == [one.tokens for one in Engine(target).generate(prompts, 8)]
    assert encoder.heard == texts and request_of(tokenizer, tokenizer("as it is").input_ids) == "as it is"
    for text, answer in zip(texts, answers, strict=True):
        best = ["general", "sql"][int(router.probabilities(text).argmax())]
        assert {cycle.drafter for cycle in answer.cycles} == {best}


def test_a_router_s_advice_counts_with_learners_and_is_refused_where_it_cannot(target):
    router = made_router(target.config.hidden_size)
    engine = Engine(target, Pool(everything(target), "hedgespec", router=router), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 16))
        batch.proposer.plan(CycleRecord(batch.root, [15], SHAPE))
    row = batch.proposer.rows[0]
    assert engine.drafter.options["prior"] == 4 and row.choice == row.selector.drafters[row.selector.advice.argmax()]
    assert Pool(everything(target), "hedgespec", router=router, prior=0).options["prior"] == 0
    with pytest.raises(ConfigError, match=r"pool\.selector=ucb1 takes no advice.*pool\.selector=router"):
        Pool(everything(target), "ucb1", router=router)
    with pytest.raises(ConfigError, match="the router knows general, sql, but the pool has retrieval"):
        Engine(target, Pool({"retrieval": Retrieval()}, "hedgespec", router=router))


def test_bad_pools_are_refused_in_one_line(target):
    one = lora_drafters(target, 1)[0]
    with pytest.raises(ConfigError, match="needs at least one drafter"):
        Pool({})
    with pytest.raises(ConfigError, match="shapes names b; the pool has a"):
        Pool({"a": one}, shapes={"b": SHAPE})
    with pytest.raises(ConfigError, match="read_interval must be >= 1"):
        Pool({"a": one}, read_interval=0)
    with pytest.raises(ConfigError, match="normalhege"):
        Engine(target, Pool({"a": one}, "normalhege"))
    pool = Pool({"a": one}, "random")
    with pytest.raises(ConfigError, match="already has a drafter 'a'"):
        Engine(target, pool).add_drafter("a", one)
    with pytest.raises(ConfigError, match="no drafter 'b'"):
        Engine(target, pool).remove_drafter("b")
    with pytest.raises(ConfigError, match="the only drafter"):
        Engine(target, pool).remove_drafter("a")
    with pytest.raises(DrafterforgeError, match="give it a Pool"):
        Engine(target, one).add_drafter("b", one)
    other = tiny_target(vocab_size=40)
    with pytest.raises(DrafterforgeError, match="drafter 'x' drafts for a target of vocabulary 40"):
        Engine(target, Pool({"x": FusedDrafter(tiny_drafter(other, 20), other.backbone.embedding)}))


def test_details_of_a_lookup_are_those_of_its_proposals():
    distributions = torch.zeros(1, 2, 8)
    distributions[0, 0, [3, 4, 5]] = torch.tensor([0.5, 0.3, 0.2])
    distributions[0, 1, 2] = 1.0
    proposed = [[{3: 0.4, 4: 0.4}, {}]]
    found = judge_sets(proposed, Truth(torch.tensor([[4, 2]]), distributions.double()), top_k=[1], details=True)
    torch.testing.assert_close(found.accepted, torch.tensor([[[0.0, 0.0]]]))
    torch.testing.assert_close(found.gamma, torch.tensor([[[0.5, 0.0]]]))
    torch.testing.assert_close(found.divergence, torch.tensor([[[1 - 0.4 - 0.3, 1.0]]]))
    torch.testing.assert_close(found.log_q, torch.tensor([[[np.log(0.4), -np.inf]]]).float())


def test_a_pool_tells_details_when_asked(target):
    pool = Pool(everything(target), "normalhedge", details=True, read_interval=2)
    engine = Engine(target, pool, SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 30))
        for _ in range(4):
            batch.cycle(SHAPE)
    judgement = batch.proposer.judgement
    assert judgement.log_q.shape == judgement.divergence.shape == judgement.gamma.shape
    assert judgement.log_q.shape[0] == len(pool.names) and (judgement.log_q <= 0).all()


def test_what_is_no_drafter_and_what_only_the_trees_say_is_refused():
    with pytest.raises(DrafterforgeError, match="'a' is of type int, not a drafter; wanted one of kind eagle3"):
        Pool({"a": 3})
    with pytest.raises(ConfigError, match="levels of a selector follows from the pool's trees"):
        Pool({"a": Retrieval()}, "ucb1", levels=[3])
    target = tiny_target()
    engine = Engine(target, Pool({"a": Retrieval()}, "ucb1"))
    with pytest.raises(DrafterforgeError, match="'b' is of type int, not a drafter"):
        engine.add_drafter("b", 5)
    assert engine.drafter.names == ["a"]
