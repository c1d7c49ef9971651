"""What every drafter of a pool would have done at every position of an answer, and selectors replayed on it.

Decoding is lossless, so that the text does not depend on who drafted it: a cycle that begins at a position goes as it
would have gone after any other cycles.  One pass over the text then tells the accept lengths of all drafters, and a
selector's choices, cycles and regret follow without decoding again.
Axes: N drafters, T tokens of prompt and answer, B roots looked at together, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.errors import DrafterforgeError
from drafterforge.evaluation.branches import Branches
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
    divergence: np.ndarray | None = None  # [N, T] block divergence of a draft with its root there, if it was asked for
    limited: bool = False  # whether the answer was cut at its length limit, near which less is drafted

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


def tell(target: Target, pool: Pool, shape: TreeShape, answer: Generation, divergences: bool = False) -> Story:
    """The story of a greedy answer.  shape: trees of drafters without their own.

    divergences: also what MetaSD's selectors are rewarded by, for which the target reads every drafter's branches.
    """
    text = torch.tensor(answer.prompt + answer.tokens, device=target.device)
    begin, end = len(answer.prompt), text.numel()
    limited = answer.stop_reason in ("length", "context")
    depths = [pool.shape_of(name, shape).depth for name in pool.names]
    branches = Branches(text, max(1, *depths)) if divergences else None
    with torch.inference_mode():
        positions = torch.arange(end, device=target.device)[None]
        features = target.forward(text[None], positions, None)[1][0]
        parts = PoolProposer(pool, shape).parts
        accept_length, accepted = {}, {}
        for names, part in parts:
            shapes = [pool.shape_of(name, shape) for name in names]
            look = _stack if isinstance(part, StackProposer) else _solo
            numbers = [pool.names.index(name) for name in names]
            seen = look(part, shapes, text, features, begin, limited, branches, numbers)
            for name, lengths, hits in zip(names, *seen, strict=True):
                accept_length[name], accepted[name] = lengths, hits
        told = None if branches is None else branches.divergences(target, len(pool.names))
    hits = np.stack([accepted[name] for name in pool.names])
    lengths = np.stack([accept_length[name] for name in pool.names])
    return Story(pool.names, depths, begin, end, lengths, hits, hits, told, limited)


def _rooms(begin: int, end: int, shape: TreeShape, limited: bool) -> Iterator[tuple[list[int], TreeShape]]:
    """Roots that are drafted from together, with their trees: as live, no deeper than could count."""
    last = max(end - 2 - shape.depth, begin - 1) if limited else end - 2  # root with room for all levels
    for start in range(begin, last + 1, ROOTS):
        yield list(range(start, min(start + ROOTS, last + 1))), shape
    for root in range(last + 1, end - 2):
        yield [root], TreeShape(shape.num_tokens, end - 2 - root, shape.top_k)


def _stack(
    part: StackProposer,
    shapes: Sequence[TreeShape],
    text: Tensor,
    features: Tensor,
    begin: int,
    limited: bool,
    branches: Branches | None,
    numbers: Sequence[int],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Accept lengths and hits of drafters that read in one pass; numbers: theirs in the pool."""
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
        for some, own in _rooms(begin, end, shape, limited):
            if own.depth == 0 or own.num_tokens == 1:
                continue
            roots = torch.tensor(some, device=text.device)
            keys = part.cache.data[:, :, member : member + 1, :, : end - 1]
            tree = _trees(drafter, keys, outputs[member], logits[member], text, roots, own)
            found[some] = _lengths(tree, text, roots, own.depth)
            if branches is not None:
                branches.note(numbers[member], some, tree)
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
    part: SoloProposer,
    shapes: Sequence[TreeShape],
    text: Tensor,
    features: Tensor,
    begin: int,
    limited: bool,
    branches: Branches | None,
    numbers: Sequence[int],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Accept lengths and hits of a drafter that reads token by token; numbers: its own in the pool."""
    end, shape = text.numel(), shapes[0]
    trees = {root: own for some, own in _rooms(begin, end, shape, limited) for root in some}
    found, hits = np.ones(end, dtype=np.int64), np.zeros((1, end))
    part.admit(text[: begin + 1], features[:begin])
    for root in range(begin, end - 1):
        own = trees.get(root)
        if own is not None and own.depth and own.num_tokens > 1:
            tree = part.draft(0, [0], text[root : root + 1], own)
            found[root] = _lengths(tree, text, torch.tensor([root], device=text.device), own.depth)[0]
            if branches is not None:
                branches.note(numbers[0], [root], tree)
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


def replay(
    selector: Selector, story: Story, prompt: Sequence[int] = (), advice: np.ndarray | None = None
) -> list[tuple[int, int]]:
    """Cycles as (drafter, accept length) that the selector would have led to, told as the engine tells it.

    advice: a router's law for the prompt, [N].
    """
    if selector.needs.divergence and story.divergence is None:
        raise DrafterforgeError(f"{selector.name} needs stories with divergences; tell them with divergences=True")
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
        divergence = float(story.divergence[drafter, root]) if selector.needs.divergence else None
        depth = story.depths[drafter]
        selector.observe(
            Feedback(
                drafter,
                root + 1,
                length,
                min(depth, story.end - 2 - root) if story.limited else depth,
                divergence=divergence,
                evaluation=evaluation if asked else None,
            )
        )

    if advice is not None:
        selector.advise(advice)
    selector.begin(list(prompt))
    played = story.play(pick, after)
    selector.end()
    return played
