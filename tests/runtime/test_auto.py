"""`drafter=auto` with several drafters: the text is the target's, and the drafter that is better drafts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.runtime import auto_proposer, worth
from drafterforge.runtime.arm_states import ArmStates
from drafterforge.runtime.arms import ArmKnowledge
from drafterforge.runtime.auto_proposer import AutoProposer, ChoosingReader
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17, [9, 8, 7, 9, 8]]
SHAPE = TreeShape(12, 4, 2)
SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def new_worth() -> Worth:
    """A state before any cycle, on a device where nodes cost nothing."""
    return Worth(VerifyCosts((1, 4, 16), (0.010, 0.010, 0.010)))


@pytest.fixture
def pool(target) -> Pool:
    """Three random drafters; the drafter `other` has another vocabulary, so it does not stack with the others."""
    torch.manual_seed(3)
    retrieval, embedding = Retrieval(), target.backbone.embedding
    drafters = {
        name: HybridDrafter(FusedDrafter(tiny_drafter(target, size), embedding), retrieval)
        for name, size in (("first", 40), ("second", 40), ("other", 30))
    }
    return Pool(drafters, "static", shapes=dict.fromkeys(drafters, SHAPE), worth=new_worth())


def switch_at_random(monkeypatch, seed: int) -> list[str]:
    """Let rows wake random drafters and change to them; returns the drafters that were used."""
    rng, used = np.random.default_rng(seed), []
    advance = AutoProposer._advance

    def consider(self: AutoProposer, row) -> None:
        used.append(row.arms.incumbent)
        row.arms.next_turn = 0
        names = [name for name in row.arms.names if name != row.arms.incumbent]
        if not row.is_awake:
            row.waking = self.states.wake(row.arms.incumbent)
        elif rng.random() < 0.4:
            row.waking = self.states.wake(names[rng.integers(len(names))])

    def change(self: AutoProposer, row) -> None:
        name = row.waking.name
        for candidate in row.arms.names:
            row.arms.beliefs[candidate].mean = float(candidate == name and rng.random() < 0.7)
        advance(self, row)

    monkeypatch.setattr(Worth, "_learn_row", lambda *_: None)  # so that drafting goes on although it does not pay
    monkeypatch.setattr(AutoProposer, "_consider_waking", consider)
    monkeypatch.setattr(AutoProposer, "_advance", change)
    return used


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("max_batch", [1, 3])
def test_changing_drafters_never_changes_the_text(target, pool, max_batch, sampling, monkeypatch):
    used = switch_at_random(monkeypatch, seed=max_batch)
    expected = [Engine(target).generate([prompt], 40, sampling)[0].tokens for prompt in PROMPTS]
    engine = Engine(target, pool, SHAPE, max_batch)
    for _ in range(2):
        answers = engine.generate(PROMPTS, 40, sampling)
        assert [answer.tokens for answer in answers] == expected
    assert set(used) == {"first", "second", "other"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("drafting", [(0, 1, 2), (0, 2)])
def test_trees_do_not_depend_on_the_order_in_which_a_drafter_wakes(target, monkeypatch, order, drafting):
    torch.manual_seed(3)
    fused = {name: FusedDrafter(tiny_drafter(target, 40), target.backbone.embedding) for name in ("first", "second")}
    pool = Pool(fused, "static", worth=new_worth())
    proposer = AutoProposer(pool, SHAPE)
    monkeypatch.setattr(pool.worth, "limits", lambda *_: SimpleNamespace(seconds=0.0))
    texts = [torch.tensor(prompt) for prompt in PROMPTS[::2] + PROMPTS[3:]]
    for text in texts:
        features = target.forward(text[None, :-1], torch.arange(len(text) - 1)[None], None)[1][0]
        proposer.admit(text, features)
    for index in order:
        text = proposer.rows[index].text
        assert proposer.states.advance(proposer.states.wake("second"), text, text.length)
    for index in drafting:
        proposer.rows[index].arms.incumbent, proposer.rows[index].shape = "second", SHAPE
    record = CycleRecord(torch.stack([text[-1] for text in texts]), [9] * 3, SHAPE)
    tree = proposer.draft(record)
    group = proposer.pool.group(["second"])
    for index in drafting:
        text = proposer.rows[index].text
        group.admit(*text.upto(text.length))
        expected = group.draft(0, [0], record.root[index : index + 1], SHAPE)
        group.keep([])
        count = expected.tokens.shape[1]
        assert tree.tokens[index, :count].tolist() == expected.tokens[0].tolist()
        assert tree.parents[index, :count].tolist() == expected.parents[0].tolist()


def test_the_tokens_of_all_answers_are_counted(target, pool):
    counts = []
    pool.worth.arms.answer_tokens.add = counts.append
    for prompt, length in ((PROMPTS[0], 2), (PROMPTS[1], 9)):
        (answer,) = Engine(target, pool, SHAPE).generate([prompt], length)
        assert counts.pop() == len(answer.tokens)
    answers = Engine(target, pool, SHAPE, max_batch=4).generate(PROMPTS, 17)
    assert sorted(counts) == sorted(len(answer.tokens) for answer in answers)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_drafter_that_wakes_knows_what_it_would_know_had_it_read_along(target, pool, chunk):
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, 60, (25,), generator=generator)
    features = target.forward(text[None, :-1], torch.arange(24)[None], None)[1][0]
    states = ArmStates(pool, SHAPE)
    readers = {name: states.prompt_reader(name) for name in pool.names}
    for reader in readers.values():
        reader.read(text[:11], features[:10])
    row = states.join_row("first", readers["first"], text[:11], features[:10])
    along = pool.group(["second"])
    along.join_row(readers["second"], text[:11], features[:10])
    for start in range(10, 24, 7):
        part = text[None, start + 1 : start + 8], features[None, start : start + 7], [len(text[start + 1 : start + 8])]
        states.commit(*part)
        along.commit(*part)
    waking = states.wake("second")
    while not states.advance(waking, row, chunk):
        pass
    along.read()
    woken = states.arms["second"].group
    assert woken.stable == along.stable == [24]
    torch.testing.assert_close(woken.logits, along.logits)
    assert len(waking.hits) == 14 and states.hits("second", row, 14) == waking.hits


def test_hits_are_the_tokens_that_the_proposals_hold(target, pool):
    text = torch.tensor(Engine(target).generate([PROMPTS[0]], 30)[0].tokens)
    text = torch.cat((torch.tensor(PROMPTS[0]), text))
    count = len(text) - 1
    features = target.forward(text[None, :-1], torch.arange(count)[None], None)[1][0]
    states, prompt = ArmStates(pool, SHAPE), len(PROMPTS[0])
    reader = states.prompt_reader("first")
    reader.read(text[: prompt + 1], features[:prompt])
    row = states.join_row("first", reader, text[: prompt + 1], features[:prompt])
    states.commit(text[None, prompt + 1 :], features[None, prompt:], [count - prompt])
    hits = states.hits("first", row, count - prompt)
    drafter = pool.drafters["first"].neural
    for position, hit in zip(range(prompt + 1, len(text)), hits, strict=True):
        group = pool.group(["first"])
        group.admit(text[:position], features[: position - 1])
        best = drafter.token_ids[group.logits[0, 0].topk(SHAPE.top_k).indices]
        assert hit == (int(text[position]) in best.tolist())


def test_only_the_drafter_that_drafts_reads(target, pool):
    engine = Engine(target, pool, SHAPE, max_batch=2)
    with torch.inference_mode():
        batch = engine.open_batch()
        for prompt in PROMPTS[:2]:
            batch.admit(*engine.read(prompt, 30))
        batch.cycle(SHAPE)
    awake = {name: len(arm.rows) for name, arm in batch.proposer.states.arms.items()}
    assert awake == {"first": 2, "second": 0, "other": 0}


def test_drafters_join_and_leave_while_requests_run(target, pool, monkeypatch):
    switch_at_random(monkeypatch, seed=0)
    late = pool.drafters.pop("other")
    del pool.shapes["other"]
    expected = [Engine(target).generate([prompt], 40)[0].tokens for prompt in PROMPTS[:3]]
    engine = Engine(target, pool, SHAPE, max_batch=3)
    with torch.inference_mode():
        batch = engine.open_batch()
        rows = [batch.admit(*engine.read(prompt, 40)) for prompt in PROMPTS[:3]]
        for step in range(200):
            if step == 3:
                with monkeypatch.context() as patched:
                    patched.setattr(target, "forward", None)  # the rows have kept the features
                    engine.add_drafter("other", late)
            if step == 6:
                engine.remove_drafter("second")
            if batch.rows:
                batch.cycle(SHAPE)
    assert [row.answer.tokens for row in rows] == expected


@pytest.mark.parametrize("chunk", [4, 256])
def test_the_drafter_that_is_likely_the_fastest_reads_a_prompt_and_drafts(target, pool, chunk, monkeypatch):
    monkeypatch.setattr(Worth, "reading_pays", lambda *_: True)
    expected = [Engine(target).generate([prompt], 30)[0].tokens for prompt in PROMPTS]
    pool.worth.arms.history("other", "first", False).gain.value = 0.2
    engine = Engine(target, pool, SHAPE, max_batch=4)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.prefill_chunk = chunk
        rows = [batch.admit(*engine.read(prompt, 30)) for prompt in PROMPTS]
        assert {name: len(arm.rows) for name, arm in batch.proposer.states.arms.items()} == {
            "first": 0,
            "second": 0,
            "other": 4,
        }
        batch.cycle(SHAPE)
        assert batch.proposer.selection_probs() == {"first": 0.0, "second": 0.0, "other": 1.0}
        while batch.rows:
            batch.cycle(SHAPE)
    assert [row.answer.tokens for row in rows] == expected


def test_no_drafter_reads_a_text_because_one_leaves_that_had_not_read_it(target, pool, monkeypatch):
    monkeypatch.setattr(Worth, "reading_pays", lambda *_: False)
    pool.worth.arms.history("second", "first", False).gain.value = 0.2
    engine = Engine(target, pool, SHAPE)
    with torch.inference_mode():
        batch = engine.open_batch()
        batch.admit(*engine.read(PROMPTS[0], 30))
        (row,) = batch.proposer.rows
        assert row.arms.incumbent == "second" and not row.is_awake
        engine.remove_drafter("second")
        assert row.arms.incumbent == "first" and not row.is_awake
        while batch.rows:
            batch.cycle(SHAPE)


@pytest.mark.parametrize("busy", [False, True])
def test_the_drafter_that_the_rest_is_compared_with_stays(target, pool, busy):
    engine = Engine(target, pool, SHAPE)
    batch = engine.open_batch() if busy else None
    if batch is not None:
        with torch.inference_mode():
            batch.admit(*engine.read(PROMPTS[0], 30))
    with pytest.raises(ConfigError, match="compares the rest with 'first'"):
        engine.remove_drafter("first")
    assert pool.names == ["first", "second", "other"]


def play_prompts(target, pool, prompts: list[list[int]]) -> tuple[list[list[int]], list[bool]]:
    """Answers, and whether the first drafter read each prompt while the target read it."""
    engine, answers, read = Engine(target, pool, SHAPE), [], []
    with torch.inference_mode():
        for prompt in prompts:
            batch = engine.open_batch()
            row = batch.admit(*engine.read(prompt, 40))
            read.append(batch.proposer.rows[0].is_awake)
            while batch.rows:
                batch.cycle(SHAPE)
            answers.append(row.answer.tokens)
    return answers, read


@pytest.mark.parametrize("names", [["first"], ["first", "second", "other"]])
def test_prompts_are_read_where_that_pays_and_once_in_a_while(target, pool, names, monkeypatch):
    monkeypatch.setattr(worth, "FEWEST_UNREAD", 3)
    monkeypatch.setattr(worth, "MOST_UNREAD", 3)
    pool.drafters = {name: pool.drafters[name] for name in names}
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS * 2, 40)]
    pool.worth.arms.read_s.value, pool.worth.arms.read_s.weight = 1e3, 1e9  # seconds
    answers, read = play_prompts(target, pool, PROMPTS * 2)
    assert answers == expected and read == [False, False, False, True] * 2


@pytest.mark.parametrize(("most", "length"), [(512, 9), (4, 7)])
def test_the_complete_prompt_or_much_of_it_decides_who_reads(most, length, monkeypatch):
    monkeypatch.setattr(auto_proposer, "MOST_AT_ONCE", most)
    lengths, read = [], []

    def choose(text, features):
        lengths.append(len(text))
        return SimpleNamespace(incumbent="first")

    drafter = SimpleNamespace(read=lambda text, features: read.append((len(text), len(features))))
    states, pays = SimpleNamespace(prompt_reader=lambda name: drafter), lambda arms: (True, False)
    reader = ChoosingReader(states, ArmKnowledge(0.01), choose, pays, num_tokens=8)
    for start, end in ((0, 3), (3, 6), (6, 8)):
        reader.read(torch.zeros(end + 1), torch.zeros(end - start, 6))
    assert lengths == [length] and reader.is_complete == (length == 9)
    assert read == ([(9, 8)] if most == 512 else [(7, 6), (9, 2)]) and reader.name == "first"


def test_requests_of_a_kind_have_averages_of_their_own(target, pool):
    pool.router = SimpleNamespace(
        kind="target",
        label_shares=lambda names: np.zeros((0, len(names))),
        advice=lambda text, features, names, tokenizer: np.eye(len(names))[1],
    )
    pool.kinds = {"second": "traffic-1"}
    pool.worth.row(0.0, 1).traffic.neural_net.value = -1e3  # tokens: for the rest, no drafter reads a prompt
    learned = pool.worth.row(0.0, 1, "traffic-1").traffic
    learned.neural_net.value, learned.net.value, pool.worth.arms.read_s.value = 9.0, 9.0, 1e-9
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 40)]
    answers, read = play_prompts(target, pool, PROMPTS)
    assert answers == expected and all(read)
    weights = {kind: traffic.net.weight for (_, _, kind), traffic in pool.worth.traffic.items()}
    assert weights["traffic-1"] > weights[""]  # of no request of these


def test_a_drafter_that_looked_dear_on_a_busy_machine_is_tried_again(target, pool, monkeypatch):
    monkeypatch.setattr(worth, "FEWEST_UNREAD", 3)
    monkeypatch.setattr(worth, "MOST_UNREAD", 3)
    tried = []

    def learn(self: Worth, row, *rest) -> None:  # the load of this machine decides nothing else
        tried.append(row.neural_tries > 0)
        row.neural_tries = max(row.neural_tries - 1, 0)

    monkeypatch.setattr(Worth, "_learn_row", learn)
    knowledge = pool.worth
    knowledge.row(0.0, 1)
    (traffic,) = knowledge.traffic.values()
    knowledge.neural_s.value, knowledge.neural_s.weight = 10.0, 50.0  # seconds
    traffic.neural_net.value, traffic.neural_net.weight = -5.0, 400.0
    expected = [answer.tokens for answer in Engine(target).generate(PROMPTS, 40)]
    answers, read = play_prompts(target, pool, PROMPTS)
    assert answers == expected and read == [False, False, False, True]
    assert knowledge.neural_s.value < 5.0 and tried.count(True) == auto_proposer.NEURAL_TRIES


def test_a_drafter_that_sleeps_at_first_wakes_once_the_answer_is_long(target, pool, monkeypatch):
    expected = Engine(target).generate([PROMPTS[0]], 120)[0].tokens
    reads = iter([False, False, False, True])
    monkeypatch.setattr(Worth, "reading_pays", lambda *_: next(reads, True))
    monkeypatch.setattr(Worth, "learn", lambda *_: None)  # the load of the machine decides nothing
    engine = Engine(target, pool, SHAPE)
    with torch.inference_mode():
        batch = engine.open_batch()
        row, awake = batch.admit(*engine.read(PROMPTS[0], 120)), []
        while batch.rows:
            awake.append(batch.proposer.rows[0].is_awake)
            batch.cycle(SHAPE)
    assert row.answer.tokens == expected
    assert not awake[0] and awake[-1] and sorted(awake) == awake
