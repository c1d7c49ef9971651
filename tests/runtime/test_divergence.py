"""MetaSD's reward BD: 1 - TV of target and drafter, computed by hand from their logits."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.eagle3.stack import Eagle3Proposer
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.selectors import selector as build_selector
from drafterforge.tree.coverage import branch_overlaps
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import Nodes, as_tree, join_trees
from tests.models import tiny_target
from tests.runtime.drafters import PROMPTS, full_drafters

CHAIN, WIDE, COUNT = TreeShape(4, 3, 1), TreeShape(12, 3, 4), 30


def live_feedback(target, drafter, shape):
    """Every cycle's feedback, and the answer's text."""
    observed = []

    def recording(names, levels):
        bandit = build_selector("metasd_ucb", names, max(levels), levels=levels)
        observe = bandit.observe
        bandit.observe = lambda feedback: (observed.append(feedback), observe(feedback))
        return bandit

    answer = Engine(target, Pool({"a": drafter}, recording), shape).generate(PROMPTS[:1], COUNT)[0]
    return observed, torch.tensor([*answer.prompt, *answer.tokens])


def probs_of(target, text):
    """The target's distribution after a text, and its features."""
    states, features = target.forward(text[None], torch.arange(len(text))[None], None)
    return target.logits(states)[0].float().softmax(dim=-1), features[0]


def eagle_chain(target, drafter, prefix, depth):
    """Tokens and distributions of an EAGLE-3 drafter's greedy chain below the last token of a text."""
    proposer, q = Eagle3Proposer(drafter), []
    proposer.admit(prefix, probs_of(target, prefix[:-1])[1])

    def draw(level, logits):
        full = torch.zeros(target.head_weight.shape[0])
        full[drafter.token_ids] = logits[0].softmax(dim=-1)
        q.append(full)
        return logits.argmax(dim=-1)

    return proposer.draft_chains(prefix[-1:], depth, draw).tokens[0, 1:], q


def lm_chain(target, drafter, prefix, depth):
    """The same of a small language model."""
    tokens, q = prefix, []
    for _ in range(depth):
        q.append(probs_of(drafter.model, tokens)[0][-1])
        tokens = torch.cat((tokens, q[-1].argmax()[None]))
    return tokens[len(prefix) :], q


@pytest.mark.parametrize("shape", [CHAIN, WIDE], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["eagle3", "causal_lm"])
@torch.inference_mode()
def test_live_overlaps_are_those_of_target_and_drafter_along_the_draft(kind, shape):
    target = tiny_target(eos_token_id=None)
    if kind == "eagle3":
        drafter, chain = full_drafters(target, 1)[0], eagle_chain
    else:
        drafter, chain = SmallLM(tiny_target(num_hidden_layers=4, hidden_size=16, intermediate_size=24)), lm_chain
    observed, text = live_feedback(target, drafter, shape)
    assert len(observed) > 5
    checked = 0
    for feedback in observed:
        prefix = text[: feedback.position]
        tokens, q = chain(target, drafter, prefix, feedback.depth)
        p = probs_of(target, torch.cat((prefix, tokens)))[0][len(prefix) - 1 :]
        overlaps = [float(torch.minimum(p[level], q[level]).sum()) for level in range(feedback.depth)]
        # a tree may leave the branch of best children early; its drafted levels count
        means = [sum(overlaps[:count]) / count for count in range(1, feedback.depth + 1)]
        expected = means[-1:] if shape is CHAIN else means
        assert min(abs(feedback.overlap - mean) for mean in expected) < 1e-5
        checked += abs(feedback.overlap - means[-1]) < 1e-5
    assert checked > 1


def test_overlaps_of_trees_count_drafted_levels_and_proposed_tokens():
    """Two rows: retrieval proposes 5 with .5, 6 with .25, and 7 below 5 with .8; nothing is known of the other row."""
    nodes = Nodes([5, 6, 7], [0, 0, 1], [1, 1, 2], [0.5, 0.25, 0.4])
    unknown = Tree(*(torch.tensor([part]) for part in ([3, 4], [0, 0], [0, 1])))
    tree = join_trees([([1], as_tree(torch.tensor([3]), [nodes])), ([0], unknown)], 2)
    p = torch.full((2, 4, 8), 0.01)
    p[1, 0, 5], p[1, 0, 6], p[1, 1, 7] = 0.3, 0.4, 0.9
    p[1, :, 0] += 1 - p[1].sum(dim=-1)
    first, second = 0.3 + 0.25, 0.8
    assert branch_overlaps(tree, p.log(), 4) == pytest.approx([0.0, (first + second) / 2])
    assert branch_overlaps(tree, p.log(), 1) == pytest.approx([0.0, first])
