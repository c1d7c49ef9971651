"""Batches, stop strings, token limits and drafters of every kind never change the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.runtime.stopping import StopRule, TextStream
from drafterforge.targets.load import wrap_model
from drafterforge.tree.grow import TreeShape
from tests.drafters.blocks import block_experts
from tests.models import FAMILIES, tiny_drafter, tiny_model, tiny_target
from tests.tiny import build_tokenizer

PROMPT = [3, 14, 15, 9, 26, 5]
PROMPTS = [PROMPT, [7], [4] * 17, [9, 8, 7], [5, 6, 7, 8, 9, 10, 11]]


def eagle3(target) -> FusedDrafter:
    """A random drafter."""
    return FusedDrafter(tiny_drafter(target), target.backbone.embedding)


def small_model(**changes):
    """A smaller language model with the same token ids."""
    return SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24, **changes))


DRAFTERS = {
    "none": lambda target: None,
    "eagle3": eagle3,
    "causal_lm": lambda target: small_model(),
    "retrieval": lambda target: Retrieval(min_probability=1e-3, min_expected=0.0),
    "block": lambda target: block_experts(target, 1, markov_rank=4)[0],
}


def same_alone_and_together(target, drafter, sampling: Sampling) -> None:
    """Decode the prompts together in batches of two sizes, and compare with each alone."""
    expected = [Engine(target).generate([prompt], 12, sampling)[0] for prompt in PROMPTS]
    for max_batch in (2, 5) if drafter is None else (3,):
        answers = Engine(target, drafter, TreeShape(10, 3, 3), max_batch=max_batch).generate(PROMPTS, 12, sampling)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
        assert [answer.stop_reason for answer in answers] == [answer.stop_reason for answer in expected]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("family", "forward"), [*((family, "lean") for family in FAMILIES), ("qwen3", "modules")])
def test_prompts_decoded_together_give_the_answers_of_single_ones(family, forward):
    target = tiny_target(family, forward)
    same_alone_and_together(target, eagle3(target), GREEDY)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, repetition_penalty=1.2, seed=3)], ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafters_of_every_kind_may_serve_a_batch(drafter, sampling):
    target = tiny_target()
    same_alone_and_together(target, DRAFTERS[drafter](target), sampling)


@pytest.mark.parametrize("drafter", ["causal_lm", "retrieval"])
def test_drafting_for_some_rows_leaves_the_others_alone(drafter):
    target = tiny_target()
    engine = Engine(target, DRAFTERS[drafter](target), max_batch=4)
    batch = engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 60)) for prompt in PROMPTS[:4]]
        root = torch.tensor([row.answer.tokens[-1] for row in rows])
        proposer, shape = batch.proposer, TreeShape(10, 3, 3)
        expected = proposer.draft_trees(root, shape)
        for some in ([1, 3], [2], [0, 1, 2, 3]):
            tree = proposer.draft_rows(some, root[some], shape)
            assert torch.equal(tree.tokens, expected.tokens[some][:, : tree.tokens.shape[1]])


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(3, 60), min_size=1, max_size=12), min_size=1, max_size=5),
    shape=st.tuples(st.integers(1, 20), st.integers(0, 4), st.integers(1, 4)),
    drafter=st.sampled_from(sorted(DRAFTERS)),
    seeds=st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_a_batch_may_mix_samplings_and_lengths(prompts, shape, drafter, seeds):
    target = tiny_target()
    samplings = [Sampling(temperature=float(seed % 3), seed=seed) for seed in seeds[: len(prompts)]]
    pairs = zip(prompts, samplings, strict=True)
    expected = [Engine(target).generate([prompt], 12, sampling)[0].tokens for prompt, sampling in pairs]
    engine = Engine(target, DRAFTERS[drafter](target), TreeShape(*shape), max_batch=3)
    assert [answer.tokens for answer in engine.generate(prompts, 12, samplings)] == expected


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS[:4]])
def test_the_target_as_its_own_drafter_has_every_token_accepted(prompts):
    target = tiny_target(eos_token_id=None)
    engine = Engine(target, SmallLM(tiny_target(eos_token_id=None)), TreeShape(5, 4, 1), max_batch=3)
    expected = Engine(target).generate(prompts, 26)
    for answer, plain in zip(engine.generate(prompts, 26), expected, strict=True):
        assert answer.tokens == plain.tokens
        assert [cycle.accept_length for cycle in answer.cycles] == [5] * 5


def test_retrieval_drafts_of_a_repeating_text_are_accepted():
    model = tiny_model(eos_token_id=None)
    model.lm_head.weight.data.zero_()  # every logit is equal, so the target repeats token 0
    target = wrap_model(model, None, name="stuck", folder=Path("nowhere"))
    engine = Engine(target, Retrieval(), TreeShape(6, 5, 2))
    alone, _ = engine.generate([[0] * 9, [5, 6]], 31)
    assert alone.tokens == [0] * 31 and alone.mat > 5
    assert max(cycle.num_nodes for cycle in alone.cycles) == 6


def test_retrieval_indexes_only_the_committed_text():
    target = tiny_target(eos_token_id=None)
    engine = Engine(target, Retrieval(min_probability=1e-3, min_expected=0.0), TreeShape(8, 4, 3))
    batch = engine.open_batch()
    with torch.inference_mode():
        rows = [batch.admit(*engine.read(prompt, 60)) for prompt in PROMPTS[:3]]
        for _ in range(12):
            batch.cycle(engine.shape)
            for index, row in zip(batch.proposer.rows, rows, strict=True):
                assert index.tokens.tolist() == row.answer.prompt + row.answer.tokens


def test_a_drafting_model_with_a_shorter_context_stops_drafting_and_the_answer_continues():
    target = tiny_target(eos_token_id=None)
    small = small_model(max_position_embeddings=16)
    engine = Engine(target, small, TreeShape(6, 3, 2))
    expected = Engine(target).generate([PROMPT, [5] * 30], 30)
    answers = engine.generate([PROMPT, [5] * 30], 30)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    alone = engine.generate([PROMPT], 30)[0]
    assert alone.cycles[0].num_nodes > 1 and alone.cycles[-1].num_nodes == 1


def test_a_drafting_model_with_other_token_ids_is_refused():
    with pytest.raises(DrafterforgeError, match="'tiny-llama' has 40 token ids, tiny-llama has 61"):
        Engine(tiny_target(), SmallLM(tiny_target(vocab_size=40)))


def test_samplings_are_one_for_all_prompts_or_one_for_each():
    with pytest.raises(DrafterforgeError, match="1 samplings for 2 prompts"):
        Engine(tiny_target()).generate([PROMPT, PROMPT], 2, [GREEDY])


# Text and stop strings.


@pytest.fixture(scope="module")
def speaking():
    """A tiny target with a byte-level tokenizer."""
    tokenizer = build_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer), eos_token_id=None)
    return wrap_model(model, tokenizer, name="speaking", folder=Path("nowhere"))


class Alphabet:
    """A tokenizer with one letter per token."""

    def decode(self, ids, **_):
        """Letters of the ids."""
        return "".join(chr(ord("a") + token % 26) for token in ids)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("shape", [None, (8, 5, 2)])
def test_a_stop_string_ends_the_answer_where_decoding_token_by_token_would(shape):
    model = tiny_model(eos_token_id=None)
    speaking = wrap_model(model, Alphabet(), name="letters", folder=Path("nowhere"))
    engine = Engine(speaking, eagle3(speaking) if shape else None, TreeShape(*shape) if shape else None)
    for start in range(0, 12, 3):
        full = Engine(speaking).generate([PROMPT], 40)[0]
        text = speaking.tokenizer.decode(full.tokens)
        stop = text[start : start + 3]
        answer = engine.generate([PROMPT], 40, stop=[stop, "never to be found"])[0]
        assert answer.text == text[: text.index(stop)]
        assert answer.stop_reason == "stop"
        assert stop in speaking.tokenizer.decode(answer.tokens)
        assert stop not in speaking.tokenizer.decode(answer.tokens[:-1])
        assert answer.tokens == full.tokens[: len(answer.tokens)]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [(), ("Z!",)])
def test_streamed_text_only_grows_and_ends_as_the_full_text(speaking, stop):
    engine = Engine(speaking, eagle3(speaking), TreeShape(6, 3, 2))
    texts = [answer.text for answer in engine.stream("query", 50, stop=stop)]
    assert all(late.startswith(early) for early, late in pairwise(texts))
    full = engine.generate(["query"], 50, stop=stop)[0].text
    assert texts[-1] == full and len(set(texts)) > 3


class Letters:
    """A tokenizer whose ids are bytes of UTF-8."""

    def decode(self, ids, **_):
        """Bytes to text, as tokenizers do."""
        return bytes(ids).decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="abé🙂", max_size=12),
    stops=st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(1, 5), min_size=20, max_size=20),
)
def test_the_first_stop_string_wins_however_tokens_arrive(text, stops, cuts):
    data = list(text.encode())
    rule = StopRule(frozenset(), 1000, "length", stops, TextStream(Letters()))
    tokens, shown_text, at = [], "", 0
    for cut in cuts:
        if rule.stop_reason or at >= len(data):
            break
        tokens += rule.take(data[at : at + cut])
        assert rule.text.startswith(shown_text)  # text is never withdrawn
        shown_text, at = rule.text, at + cut
    if at < len(data) and not rule.stop_reason:
        return
    stops_in_text = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    if not stops_in_text:
        assert not rule.stop_reason and tokens == data
        return
    end = min(end for end, _ in stops_in_text)  # the first complete stop string
    assert rule.stop_reason == "stop" and bytes(tokens).decode() == text[:end]
    assert rule.text == text[: min(start for stop_end, start in stops_in_text if stop_end == end)]


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(st.sampled_from("abé€🙂\ufffd").map(str.encode), st.binary(max_size=12), st.just(b"\xe2\x82" * 6)),
        max_size=6,
    )
)
def test_invalid_bytes_are_streamed_as_in_the_full_text(pieces):
    stream, shown_text = TextStream(Letters()), ""
    for token in b"".join(pieces):
        shown_text += stream.append(token)
        assert stream.text == shown_text
    stream.finish()
    assert stream.text == b"".join(pieces).decode(errors="replace") and stream.text.startswith(shown_text)


def test_the_cost_per_token_inside_an_invalid_character_does_not_grow():
    class Counting(Letters):
        decoded = 0

        def decode(self, ids, **_):
            self.decoded += len(ids)
            return super().decode(ids)

    tokenizer = Counting()
    stream = TextStream(tokenizer)
    for token in [0x80] * 2000:
        stream.append(token)
    assert tokenizer.decoded < 20 * 2000
    stream.append(ord("a"))
    assert stream.text == "\ufffd" * 2000 + "a"


def test_tokens_after_an_end_token_are_ignored():
    rule = StopRule(frozenset({0}), 10, "length")
    assert rule.take([5, 6, 0, 7]) == [5, 6, 0] and rule.stop_reason == "eos"
    rule = StopRule(frozenset({0}), 3, "context")
    assert rule.take([5, 6]) == [5, 6] and rule.room == 1
    assert rule.take([7, 0]) == [7] and rule.stop_reason == "context"


def test_prompts_may_be_text_ids_or_messages(speaking):
    engine = Engine(speaking)
    text, ids, chat = engine.generate(
        ["hello", speaking.tokenizer("hello").input_ids, [{"role": "user", "content": "hello"}]], 6
    )
    assert text.tokens == ids.tokens and text.prompt == ids.prompt
    assert "<|im_start|>user\nhello" in speaking.tokenizer.decode(chat.prompt)


def test_token_ids_may_lie_in_an_array_or_a_tensor(speaking):
    engine, ids = Engine(speaking), [[3, 14, 15], [9, 26, 5]]
    expected = [answer.tokens for answer in engine.generate(ids, 6)]
    for prompts in (np.array(ids), torch.tensor(ids), [np.array(ids[0]), torch.tensor(ids[1])], [*map(np.array, ids)]):
        answers = engine.generate(prompts, 6)
        assert [answer.tokens for answer in answers] == expected
        assert {type(token) for answer in answers for token in answer.prompt} == {int}
    assert engine.generate([list(np.array(ids[0]))], 6)[0].tokens == expected[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ({"max_new_tokens": None}, "max_new_tokens must be a whole number, got None"),
        ({"max_new_tokens": 3, "stop": [""]}, "a stop string must not be empty"),
    ],
)
def test_invalid_requests_are_refused(speaking, arguments, message):
    with pytest.raises(DrafterforgeError, match=message):
        Engine(speaking).generate(["hello"], **arguments)
    for wrong in ("hello", [3, 4], torch.tensor([3, 4]), [{"role": "user", "content": "hello"}]):
        with pytest.raises(DrafterforgeError, match="a list of prompts"):
            Engine(speaking).generate(wrong, 3)
    for wrong in ([3, 4.0], [3, None], [[3]], np.array([3.0]), np.array([[3]]), 4.0, None):
        with pytest.raises(DrafterforgeError, match="token ids, which are integers; got"):
            Engine(speaking).generate([wrong], 3)
    with pytest.raises(DrafterforgeError, match="token id 999 is not one of"):
        Engine(speaking).generate([[999]], 3)
    with pytest.raises(DrafterforgeError, match="max_batch must be >= 1, got 0"):
        Engine(speaking, max_batch=0)
    with pytest.raises(ConfigError, match="a tree needs"):
        TreeShape(4, -1, 2)
    with pytest.raises(DrafterforgeError, match="graphs=True needs"):
        Engine(speaking, Pool({"retrieval": Retrieval()}, "metasd_ucb"), graphs=True)
    from_string, from_list = (
        Engine(speaking).generate(["hello"], 20, stop="ab"),
        Engine(speaking).generate(["hello"], 20, stop=["ab"]),
    )
    assert from_string[0].text == from_list[0].text
    with pytest.raises(ConfigError, match="stop strings need a tokenizer"):
        Engine(tiny_target()).generate([PROMPT], 3, stop=["a"])


def test_seconds_of_the_steps_add_up_to_at_most_the_total():
    target = tiny_target()
    for answer in Engine(target, eagle3(target), TreeShape(8, 3, 2)).generate([PROMPT], 20):
        steps = sum(answer.time_s[name] for name in ("prefill", "draft", "verify", "host"))
        assert 0 < steps <= answer.time_s["total"]
        assert sum(cycle.verify_s for cycle in answer.cycles) == pytest.approx(answer.time_s["verify"])
        assert sum(cycle.accept_length for cycle in answer.cycles) == len(answer.tokens) - 1


def test_no_prompts_give_no_answers():
    assert Engine(tiny_target()).generate([], 5) == []
    assert torch.is_inference_mode_enabled() is False
