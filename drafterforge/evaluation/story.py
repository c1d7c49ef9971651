"""What every drafter of a pool would have done at every position of an answer, and selectors replayed on it.

Decoding is lossless, so that the text does not depend on who drafted it: a cycle that begins at a position goes as it
would have gone after any other cycles.  One pass over the text then tells the accept lengths of all drafters, and a
selector's choices, cycles and regret follow without decoding again.
Axes: N drafters, T tokens of prompt and answer, B roots looked at together, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.judging import Truth
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.proposers.eagle3 import draft_levels
from drafterforge.runtime.proposers.pool import PoolProposer
from drafterforge.runtime.proposers.solo import SoloProposer
from drafterforge.runtime.proposers.stack import StackProposer
from drafterforge.selectors.base import Context, Evaluation, Feedback, Selector
from drafterforge.target.load import Target
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask

ROOTS = 64  # drafted from at once


@dataclass(frozen=True)
class Story:
    """An answer as every drafter would have met it; position t is the t-th token of prompt and answer."""

    names: list[str]
    depths: list[int]  # levels that each drafts
    begin: int  # position of the answer's first token, the root of the first cycle
    end: int  # after the answer's last token
    accept_length: np.ndarray  # [N, T] tokens a cycle with its root there emits, bonus included
    gamma: np.ndarray  # [N, T] probability that a token there is accepted; greedy: as `accepted`
    accepted: np.ndarray  # [N, T] whether the token there is among the drafter's proposals

    def cycles(self, drafter: int) -> int:
        """Cycles that the answer takes with this drafter alone."""
        return len(self.play(lambda _: drafter))

    def play(self, pick, after=lambda *_: None) -> list[tuple[int, int]]:
        """Cycles as (drafter, accept length); pick(root) names the drafter, after(root, drafter, length) is told."""
        played, root = [], self.begin
        while root < self.end - 1:
            drafter = pick(root)
            length = int(self.accept_length[drafter, root])
            after(root, drafter, length)
            played.append((drafter, min(length, self.end - 1 - root)))
            root += length
        return played


def tell(target: Target, pool: Pool, shape: TreeShape, answer: Generation) -> Story:
    """The story of a greedy answer.  shape: trees of drafters without their own."""
    text = torch.tensor(answer.prompt + answer.tokens, device=target.device)
    begin, end = len(answer.prompt), text.numel()
    with torch.inference_mode():
        positions = torch.arange(end, device=target.device)[None]
        features = target.forward(text[None], positions, None)[1][0]
        parts = PoolProposer(pool, shape).parts
        accept_length, accepted = {}, {}
        for names, part in parts:
            shapes = [pool.shape_of(name, shape) for name in names]
            look = _stack if isinstance(part, StackProposer) else _solo
            for name, lengths, hits in zip(names, *look(part, shapes, text, features, begin), strict=True):
                accept_length[name], accepted[name] = lengths, hits
    hits = np.stack([accepted[name] for name in pool.names])
    lengths = np.stack([accept_length[name] for name in pool.names])
    depths = [pool.shape_of(name, shape).depth for name in pool.names]
    return Story(pool.names, depths, begin, end, lengths, hits, hits)


def _stack(
    part: StackProposer, shapes: Sequence[TreeShape], text: Tensor, features: Tensor, begin: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Accept lengths and hits of drafters that read in one pass."""
    end = text.numel()
    part.admit(text[:2], features[:1])
    first = part.last, part.logits
    rest = text[None, 2:]
    part.commit(rest, features[None, 1 : end - 1], [end - 2])
    judgement = part.read(Truth(rest, None), [one.top_k for one in shapes])
    outputs, logits = (torch.cat((one, more), dim=1) for one, more in zip(first, part.outputs, strict=True))
    lengths = []
    for member, (drafter, shape) in enumerate(zip(part.drafters.members, shapes, strict=True)):
        found = np.ones(end, dtype=np.int64)
        for start in range(begin, end - 1, ROOTS):
            roots = torch.arange(start, min(start + ROOTS, end - 1), device=text.device)
            keys = part.cache.data[:, :, member : member + 1, :, : end - 1]
            tree = _trees(drafter, keys, outputs[member], logits[member], text, roots, shape)
            found[start : start + len(roots)] = _lengths(tree, text, roots, shape.depth)
        lengths.append(found)
    hits = np.zeros((len(lengths), end))
    hits[:, 2:] = judgement.accepted[:, 0].cpu().numpy()
    return lengths, hits


def _trees(
    drafter: FusedDrafter,
    keys: Tensor,
    outputs: Tensor,
    logits: Tensor,
    text: Tensor,
    roots: Tensor,
    shape: TreeShape,
) -> Tree:
    """Trees below roots [B] of one text, of which every row reads what stands before its root."""
    cache = KeyValueCache(1, len(roots), keys.shape[3], keys.shape[5], keys.dtype, keys.device)
    base = keys.shape[4]
    cache.reserve(base + shape.top_k * shape.depth)
    cache.data[:, :, :, :, :base] = keys
    newest = roots - 1  # slot of the root
    return draft_levels(drafter, cache, outputs[newest], text[roots], roots, base, shape, logits[newest])


def _solo(
    part: SoloProposer, shapes: Sequence[TreeShape], text: Tensor, features: Tensor, begin: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Accept lengths and hits of a drafter that reads token by token."""
    end, shape = text.numel(), shapes[0]
    found, hits = np.ones(end, dtype=np.int64), np.zeros((1, end))
    part.admit(text[: begin + 1], features[:begin])
    for root in range(begin, end - 1):
        tree = part.draft(0, [0], text[root : root + 1], shape)
        found[root] = _lengths(tree, text, torch.tensor([root], device=text.device), shape.depth)[0]
        following = text[None, root + 1 : root + 2]
        part.commit(following, features[None, root : root + 1], [1], tell=True)
        judgement = part.read(Truth(following, None), [shape.top_k])
        hits[0, root + 1] = judgement.accepted[0, 0, 0].item()
    return [found], hits


def _lengths(tree: Tree, text: Tensor, roots: Tensor, depth: int) -> np.ndarray:
    """Tokens that cycles with these roots [B] emit: behind the text's end nothing matches."""
    padded = torch.cat((text, text.new_full((depth + 1,), -1)))
    chosen = padded[roots[:, None] + 1 + tree.levels]
    return accepted_path(tree, chosen, ancestor_mask(tree.parents, depth), depth)[1].cpu().numpy()


def replay(selector: Selector, story: Story, prompt: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Cycles as (drafter, accept length) that the selector would have led to, told as the engine tells it."""
    cycles = 0

    def pick(root: int) -> int:
        return selector.select(Context(cycles, root - story.begin)).drafter

    def after(root: int, drafter: int, length: int) -> None:
        nonlocal cycles
        cycles += 1
        stop = min(root + 1 + length, story.end)
        seen = slice(root + 1, stop)
        evaluation = Evaluation(root + 1, story.gamma[:, seen], story.accepted[:, seen])
        asked = selector.needs.evaluation
        divergence = (length - 1) / max(story.depths) if selector.needs.divergence else None
        selector.observe(
            Feedback(
                drafter,
                root + 1,
                length,
                story.depths[drafter],
                divergence=divergence,
                evaluation=evaluation if asked else None,
            )
        )

    selector.begin(list(prompt))
    played = story.play(pick, after)
    selector.end()
    return played
