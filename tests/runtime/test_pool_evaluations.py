"""A pool's evaluations of its drafters: which drafters read, and judgements equal to their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.drafters.eagle3.stack import Eagle3Proposer, StackedGroup
from drafterforge.drafters.judging import Truth, draft_id_table, judge, judge_sets
from drafterforge.runtime import pool_proposer
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import Sampling
from drafterforge.selectors import selector
from drafterforge.tree.grow import top_children
from tests.runtime.drafters import PROMPTS, SHAPE, lora_drafters


@pytest.mark.parametrize(("name", "judges_all"), [("normalhedge", True), ("ucb1", False), ("static", False)])
def test_drafters_read_only_when_they_draft_unless_the_selector_evaluates_all(target, name, judges_all, monkeypatch):
    reads, drafts, read, draft = [], [], StackedGroup.read, StackedGroup.draft

    def watching(part, truth=None, *more):
        reads.append(truth is not None)
        return read(part, truth, *more)

    def drawing(part, member, rows, *more, **options):
        tree = draft(part, member, rows, *more, **options)
        drafts.append((member, tree.tokens.tolist()))
        return tree

    experts = dict(zip("abc", lora_drafters(target, 3), strict=True))
    monkeypatch.setattr(StackedGroup, "read", watching)
    monkeypatch.setattr(StackedGroup, "draft", drawing)
    late = Engine(target, Pool(experts, name), SHAPE, max_batch=1).generate(PROMPTS, 14)
    cycles = sum(len(answer.cycles) for answer in late)
    assert sum(reads) >= cycles - 2 * len(PROMPTS) if judges_all else not any(reads)
    assert len(reads) <= 2 * len(PROMPTS) or judges_all  # the reads of the prompts
    trees = drafts.copy()
    drafts.clear()
    monkeypatch.setattr(pool_proposer, "MAX_DEFERRED", 1)
    again = Engine(target, Pool(experts, name), SHAPE, max_batch=1).generate(PROMPTS, 14)
    assert drafts == trees and [answer.tokens for answer in again] == [answer.tokens for answer in late]


def teacher_forced_logits(target, drafter, text: list[int], features: torch.Tensor) -> torch.Tensor:
    """A drafter's logits for each token of the text from the third on, from one pass per token."""
    logits = []
    for end in range(2, len(text)):
        proposer = Eagle3Proposer(drafter)
        proposer.admit(torch.tensor(text[:end]), features[: end - 1])
        logits.append(drafter.logits(proposer.last)[0])
    return torch.stack(logits)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", [{}, {"skip": 0.0, "skip_cycles": 2}])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_evaluations_of_a_pool_equal_those_of_single_drafters(target, temperature, options):
    feedbacks, requested = [], []

    def recording(names, levels):
        learner = selector("normalhedge", names, max(levels), levels=levels, **options)
        observe = learner.observe

        def watching(feedback):
            feedbacks.append(feedback)
            requested.append(learner.needs.evaluation)
            observe(feedback)

        learner.observe = watching
        return learner

    members = lora_drafters(target, 3)
    prompt = PROMPTS[0]
    pool = Pool(dict(zip("abc", members, strict=True)), recording)
    engine = Engine(target, pool, SHAPE)
    answer = engine.generate([prompt], 16, Sampling(temperature=temperature, seed=3))[0]
    assert [feedback.evaluation is not None for feedback in feedbacks] == requested
    assert any(requested) and all(requested) == (not options)
    evaluated = [feedback for feedback in feedbacks if feedback.evaluation is not None]
    evaluations = [feedback.evaluation for feedback in evaluated]
    assert [(evaluation.start, evaluation.gamma.shape[1]) for evaluation in evaluations] == [
        (feedback.position, feedback.accept_length) for feedback in evaluated
    ]
    assert [feedback.position for feedback in feedbacks[1:]] == [
        feedback.position + feedback.accept_length for feedback in feedbacks[:-1]
    ]
    assert feedbacks[0].position == len(prompt) + 1
    text = [*prompt, *answer.tokens]
    with torch.inference_mode():
        ids = torch.tensor([text])
        states, features = target.forward(ids, torch.arange(len(text))[None], None)
        logits = target.logits(states)[0]
        for evaluation in evaluations:
            for index, position in enumerate(range(evaluation.start, evaluation.start + evaluation.gamma.shape[1])):
                for number, member in enumerate(members):
                    guessed = teacher_forced_logits(target, member, text[: position + 1], features[0])[-1]
                    children = member.token_ids[top_children(guessed, SHAPE.top_k)[1]].tolist()
                    assert evaluation.accepted[number, index] == float(text[position] in children)
                    mass = float(text[position] in children)
                    if temperature:
                        mass = (logits[position - 1].double() / temperature).softmax(-1)[children].sum().item()
                    np.testing.assert_allclose(evaluation.gamma[number, index], mass, atol=1e-5)


def test_judgements_equal_their_definitions():
    logits, token_ids = torch.randn(2, 1, 3, 5), torch.stack([torch.tensor([0, 2, 3, 5, 7]), torch.arange(5)])
    distributions = torch.randn(1, 3, 8).softmax(-1)
    truth = Truth(torch.tensor([[2, 4, 7]]), distributions)
    judgement = judge(logits, token_ids, draft_id_table(token_ids, 8), truth, top_k=[2, 1])
    for drafter in range(2):
        for index, token in enumerate([2, 4, 7]):
            best = token_ids[drafter][logits[drafter, 0, index].topk(2 - drafter).indices]
            p = distributions[0, index]
            assert judgement.accepted[drafter, 0, index] == float(token in best)
            torch.testing.assert_close(judgement.gamma[drafter, 0, index], p[best].sum())


def test_a_retrieval_judgement_follows_from_its_proposals():
    distributions = torch.zeros(1, 2, 8)
    distributions[0, 0, [3, 4, 5]] = torch.tensor([0.5, 0.3, 0.2])
    distributions[0, 1, 2] = 1.0
    proposed = [[{3: 0.4, 4: 0.4}, {}]]
    judgement = judge_sets(proposed, Truth(torch.tensor([[4, 2]]), distributions.double()), top_k=[1])
    torch.testing.assert_close(judgement.accepted, torch.tensor([[[0.0, 0.0]]]))
    torch.testing.assert_close(judgement.gamma, torch.tensor([[[0.5, 0.0]]]))
