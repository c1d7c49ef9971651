"""Records of an answer: what drafters would have proposed at every position, whichever trees were drawn before.

One pass of the target over the text, one of all drafters, and trees from many roots at once.
Axes: N drafters, T tokens of prompt and answer, R roots, B roots looked at together, H hidden, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.eagle3.propose import level_step
from drafterforge.drafters.eagle3.stack import StackProposer
from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.replay.trace import BranchTrace, Trace
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.observation import CHILDREN, best_children
from drafterforge.targets.load import Target
from drafterforge.tree.union import expand_widths

ROOTS = 64  # drafted from at once


def record(
    target: Target,
    pool: Pool,
    prompt: Sequence[int],
    answer: Sequence[int],
    max_new_tokens: int,
    top_ks: Sequence[int],
    depth: int,
    told: int,
    branches: bool = False,
) -> Trace:
    """The trace of an answer.  pool: EAGLE-3 drafters.  told: width whose candidates' scores are kept.

    branches: also the most probable branches, by which block divergences are told.
    """
    if not all(kind_of(drafter).scheduled for drafter in pool.drafters.values()):
        raise DrafterforgeError("traces are of EAGLE-3 drafters; others draft trees of one shape")
    text = torch.tensor([*prompt, *answer], device=target.device)
    begin, end = len(prompt), text.numel()
    with torch.inference_mode():
        positions = torch.arange(end, device=target.device)[None]
        states, features = (part[0] for part in target.forward(text[None], positions, None))
        best = target.logits(states[begin : end - 1]).float().topk(2).values
        margins = (best[:, 0] - best[:, 1]).cpu().numpy()
        found: dict[str, tuple] = {}
        for names, part in pool.groups():
            outputs, logits, judgement = read_text(part, text, features, [told] * len(names), details=True)
            for member, name in enumerate(names):
                newest = outputs[member], logits[member]
                drafts = _drafts(part, member, *newest, text, begin, top_ks, depth, told, branches)
                log_q = judgement.log_q[member, 0, begin - 1 :].cpu().numpy()
                found[name] = (*drafts, log_q)
    ranks, scores, children, *below, log_q = (
        np.stack(parts) for parts in zip(*(found[name] for name in pool.names), strict=True)
    )
    rows = slice(begin - 1, end - 2)  # the features that stand before each root
    return Trace(
        tokens=np.array([*prompt, *answer], dtype=np.int32),
        begin=begin,
        max_new_tokens=max_new_tokens,
        features=features[rows].half().cpu().numpy(),
        margins=margins,
        ranks=ranks,
        scores=scores,
        children=children,
        log_q=log_q.astype(np.float32),
        branches=BranchTrace(*below) if branches else None,
    )


def read_text(
    part: StackProposer, text: Tensor, features: Tensor, top_ks: Sequence[int], details: bool = False
) -> tuple[Tensor, Tensor, Judgement]:
    """Let drafters read a whole text: outputs [N, T - 1, H] and logits [N, T - 1, W] of their slots, and a judgement.

    Slot t - 1 pairs token t with the feature before it and predicts token t + 1; judged are tokens 2 .. T - 1.
    """
    end = text.numel()
    part.admit(text[:2], features[:1])
    first = part.last, part.logits
    rest = text[None, 2:]
    part.commit(rest, features[None, 1 : end - 1], [end - 2])
    judgement = part.read(Truth(rest, None), top_ks, details)
    outputs, logits = (torch.cat((one, more), dim=1) for one, more in zip(first, part.outputs, strict=True))
    return outputs, logits, judgement


def beside_roots(keys: Tensor, roots: Tensor, slots: int) -> KeyValueCache:
    """A cache in which every root [B] reads one text's slots, keys [1, 2, 1, heads, S, D], and has `slots` more."""
    cache = KeyValueCache(1, len(roots), keys.shape[3], keys.shape[5], keys.dtype, keys.device)
    cache.reserve(keys.shape[4] + slots)
    cache.data[:, :, :, :, : keys.shape[4]] = keys
    return cache


def _drafts(
    part: StackProposer,
    member: int,
    outputs: Tensor,
    logits: Tensor,
    text: Tensor,
    begin: int,
    top_ks: Sequence[int],
    depth: int,
    told: int,
    branches: bool,
) -> tuple[np.ndarray, ...]:
    """Ranks [R, K, D (D + 1) / 2], scores [R, S] and log-probabilities of the root's children [R, CHILDREN].

    branches: then also tokens and ranks as `BranchTrace` has them.
    """
    drafter, end = part.drafters.members[member], text.numel()
    keys = part.cache.data[:, :, member : member + 1, :, : end - 1]
    padded = torch.cat((text, text.new_full((depth + 1,), -1)))
    lower = torch.tril_indices(depth, depth)
    found = []
    for start in range(begin, end - 1, ROOTS):
        roots = torch.arange(start, min(start + ROOTS, end - 1), device=text.device)
        newest = roots - 1  # slot of the root
        truth = padded[roots[:, None] + 1 + torch.arange(depth, device=text.device)]
        cache = beside_roots(keys, roots, 2 * sum(top_ks) * depth)
        step = level_step(drafter, cache, outputs[newest], roots, keys.shape[4])
        drafts = expand_widths(logits[newest], top_ks, depth, truth, step, drafter.token_ids, told, branches)
        best = best_children(logits[newest], CHILDREN)
        ranks = drafts.ranks[:, :, lower[0], lower[1]]
        scores = drafts.scores.clamp(min=-6e4)  # the least that float16 holds
        own = ranks.cpu().numpy().astype(np.uint16), scores.half().cpu().numpy(), best.half().cpu().numpy()
        if branches:
            below = drafts.branch.ranks[:, :, lower[0], lower[1]]
            own += drafts.branch.tokens.cpu().numpy(), below.cpu().numpy().astype(np.uint16)
        found.append(own)
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))
