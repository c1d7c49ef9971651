"""Batched answers equal single ones, and captures during answering equal those of a teacher-forced pass."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from drafterforge.runtime.engine import Engine
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from tests.models import FAMILIES, tiny_model, tiny_target

LENGTHS = [5, 1, 17, 9, 3, 12, 8, 2, 30, 6, 4]


def prompts() -> list[list[int]]:
    torch.manual_seed(7)
    return [torch.randint(3, 61, (length,)).tolist() for length in LENGTHS]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("forward", ["lean", "modules"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_equal_hf_generate(family, forward):
    model, target = tiny_model(family), tiny_target(family, forward)
    batch = prompts()[:6]
    answers = BatchAnswerer(target, 4)(batch, 8, seed=0)
    for prompt, answer in zip(batch, answers, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        assert answer == expected[0, len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_batch_size_changes_nothing(temperature):
    target = tiny_target()
    alone = BatchAnswerer(target, 1, temperature)(prompts(), 15, seed=3)
    for batch_size in (2, 3, 8, 64):
        assert BatchAnswerer(target, batch_size, temperature)(prompts(), 15, seed=3) == alone, batch_size


def test_greedy_answers_equal_the_engines():
    target = tiny_target(eos_token_id=None)
    answers = BatchAnswerer(target, 3)(prompts(), 15, seed=0)
    assert answers == [answer.tokens for answer in Engine(target).generate(prompts(), 15)]


def test_prompts_that_fill_more_than_one_prefill_pass(monkeypatch):
    target = tiny_target()
    expected = BatchAnswerer(target, 64)(prompts(), 6, seed=0)
    monkeypatch.setattr("drafterforge.targets.answer.PREFILL_TOKENS", 20)
    assert BatchAnswerer(target, 64)(prompts(), 6, seed=0) == expected


def test_an_answer_ends_with_its_end_token_or_at_the_limit():
    plain = tiny_target(eos_token_id=None)
    texts = BatchAnswerer(plain, 4)(prompts(), 25, seed=0)
    assert all(len(text) == 25 for text in texts)
    end = Counter(token for text in texts for token in text[:15]).most_common(1)[0][0]
    target = tiny_target(eos_token_id=end)
    answers = BatchAnswerer(target, 4)(prompts(), 25, seed=0)
    expected = [text[: text.index(end) + 1] if end in text else text for text in texts]
    assert answers == expected and len({len(answer) for answer in answers}) > 2


def test_samples_depend_on_the_seed_and_follow_the_targets_probabilities():
    target = tiny_target(eos_token_id=None)
    prompt = [4, 8, 15]
    answers = BatchAnswerer(target, 256, 0.7)([prompt] * 3000, 1, seed=5)
    ids = torch.tensor([prompt])
    logits = target.logits(target.forward(ids, torch.arange(3)[None], None)[0])[0, -1]
    expected = (logits / 0.7).softmax(-1)
    frequencies = torch.bincount(torch.tensor(answers)[:, 0], minlength=61) / 3000
    assert 0.5 * (frequencies - expected).abs().sum() < 0.06
    assert BatchAnswerer(target, 8, 0.7)([prompt] * 8, 9, seed=1) != BatchAnswerer(target, 8, 0.7)([prompt] * 8, 9, 2)


def test_progress_counts_tokens_and_answers():
    target, seen = tiny_target(), []
    answers = BatchAnswerer(target, 4, progress=lambda *new: seen.append(new))(prompts(), 9, seed=0)
    assert sum(tokens for tokens, _ in seen) == sum(map(len, answers))
    assert sum(finished for _, finished in seen) == len(answers)


def test_no_prompts_give_no_answers():
    assert BatchAnswerer(tiny_target(), 4)([], 9, seed=0) == []


@pytest.mark.parametrize("tokens_per_pass", [1, 40, 10_000])
@pytest.mark.parametrize("forward", ["lean", "modules"])
def test_captures_equal_single_passes(tokens_per_pass, forward):
    target = tiny_target(forward=forward)
    captures = FeatureCapture(target, tokens_per_pass)(prompts())
    for prompt, capture in zip(prompts(), captures, strict=True):
        states, features = target.forward(torch.tensor([prompt]), torch.arange(len(prompt))[None], None)
        torch.testing.assert_close(capture.features, features[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(capture.states, states[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(capture.argmax, target.logits(states[0]).argmax(-1))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_captures_during_answering_equal_a_teacher_forced_pass(batch_size, temperature):
    target, captures = tiny_target(), {}
    answerer = BatchAnswerer(
        target, batch_size, temperature, keep=lambda ids, count, capture: captures.update({(*ids,): (count, capture)})
    )
    answers = answerer(prompts(), 10, seed=0)
    texts = [prompt + answer for prompt, answer in zip(prompts(), answers, strict=True)]
    assert captures.keys() == {(*text,) for text in texts}
    for prompt, text, expected in zip(prompts(), texts, FeatureCapture(target)(texts), strict=True):
        count, capture = captures[(*text,)]
        assert count == len(prompt)
        half = expected.features[:-1].bfloat16(), expected.states[:-1].bfloat16()
        torch.testing.assert_close(capture.features[:-1], half[0], rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(capture.states[:-1], half[1], rtol=2e-2, atol=1e-3)
        assert capture.features.shape == expected.features.shape and not capture.features[-1].any()
        answered = slice(count - 1, len(text) - 1)
        assert torch.equal(capture.argmax[answered], expected.argmax[answered])
