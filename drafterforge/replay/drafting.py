"""What every drafter of a pool would have done at every position of an answer, and selectors replayed on it.

Decoding is lossless, so that the text does not depend on who drafted it: a cycle that begins at a position goes as it
would have gone after any other cycles.  One pass over the text then tells the accept lengths of all drafters, and a
selector's choices, cycles and regret follow without decoding again.
Axes: N drafters, T tokens of prompt and answer, B roots looked at together, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.propose import draft_levels
from drafterforge.drafters.eagle3.stack import StackProposer
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.judging import Truth
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import DrafterforgeError
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.divergence import Branches
from drafterforge.replay.record import beside_roots, read_text
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.pool import Pool
from drafterforge.targets.load import Target
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask
from drafterforge.tree.merge import Others

ROOTS = 64  # drafted from at once


def room_of(target: Target, answer: Generation, max_new_tokens: int | None = None) -> int:
    """Tokens that the answer was allowed; None: as many as its end tells."""
    room = target.max_positions - len(answer.prompt)
    if max_new_tokens is None:
        return len(answer.tokens) if answer.stop_reason in ("length", "context") else room
    if max_new_tokens < len(answer.tokens):
        raise DrafterforgeError(
            f"an answer has {len(answer.tokens)} tokens, more than max_new_tokens={max_new_tokens} that it was allowed"
        )
    return min(max_new_tokens, room)


def tell(
    target: Target,
    pool: Pool,
    shape: TreeShape,
    answer: Generation,
    divergences: bool = False,
    max_new_tokens: int | None = None,
) -> Counterfactual:
    """The counterfactual of a greedy answer.  shape: trees of drafters without their own; no scheduler is asked.

    divergences: also what MetaSD's selectors are rewarded by, for which the target reads every drafter's branches.
    max_new_tokens: that the answer was allowed, near which less is drafted; see `room_of`.
    """
    text = torch.tensor(answer.prompt + answer.tokens, device=target.device)
    begin, end = len(answer.prompt), text.numel()
    room = room_of(target, answer, max_new_tokens)
    depths = [pool.shape_of(name, shape).depth for name in pool.names]
    branches = Branches(text, max(1, *depths)) if divergences else None
    trees, hits = CycleOutcomes.blank(len(pool.names), end), np.zeros((len(pool.names), end))
    with torch.inference_mode():
        positions = torch.arange(end, device=target.device)[None]
        features = target.forward(text[None], positions, None)[1][0]
        for names, part in pool.groups():
            shapes = [pool.shape_of(name, shape) for name in names]
            numbers = [pool.names.index(name) for name in names]
            told = Told(trees, numbers, branches)
            if part.parallel:
                own = [pool.drafters[name] for name in names]
                hits[numbers] = _stack(part, own, shapes, text, features, begin, room, told)
            else:
                hits[numbers] = _solo(part, shapes, text, features, begin, room, told)
        if branches is not None:
            trees = replace(trees, divergence=branches.divergences(target, len(pool.names)))
    return Counterfactual(pool.names, depths, begin, end, [trees], hits, hits)


@dataclass(frozen=True)
class Told:
    """Where what some drafters draft is noted."""

    trees: CycleOutcomes
    numbers: list[int]  # of these drafters in the pool
    branches: Branches | None

    def asked(self, member: int, shape: TreeShape, begin: int, room: int) -> None:
        """The trees that one of them is asked for, as deep as could count."""
        number, end = self.numbers[member], self.trees.depth.shape[1]
        roots = np.arange(begin, end - 1)
        self.trees.depth[number, begin : end - 1] = np.minimum(shape.depth, levels_left(roots, begin, room))
        self.trees.top_k[number, begin : end - 1] = shape.top_k

    def drafted(self, member: int, roots: list[int], tree: Tree, text: Tensor, depth: int) -> None:
        """What became of trees below roots [B]."""
        number = self.numbers[member]
        index = torch.arange(tree.parents.shape[1], device=text.device)
        self.trees.accept_length[number, roots] = _lengths(tree, text, torch.tensor(roots, device=text.device), depth)
        self.trees.num_nodes[number, roots] = 1 + (tree.parents != index).sum(dim=1).cpu().numpy()
        if self.branches is not None:
            self.branches.note(number, roots, tree)


def levels_left(roots: np.ndarray, begin: int, room: int) -> np.ndarray:
    """Levels that could count at roots [R] of an answer that is allowed `room` tokens, as the engine limits them."""
    return room - (roots - begin) - 2


def _rooms(begin: int, end: int, shape: TreeShape, room: int) -> Iterator[tuple[list[int], TreeShape]]:
    """Roots that are drafted from together, with their trees: as live, no deeper than could count."""
    if shape.depth == 0 or shape.num_tokens == 1:
        return
    left = levels_left(np.arange(begin, end - 1), begin, room)
    whole = begin + int((left >= shape.depth).sum())  # roots before it have room for all levels
    for start in range(begin, whole, ROOTS):
        yield list(range(start, min(start + ROOTS, whole))), shape
    for root in range(whole, end - 1):
        if left[root - begin] > 0:
            yield [root], TreeShape(shape.num_tokens, int(left[root - begin]), shape.top_k)


def _stack(
    part: StackProposer,
    own: Sequence[Drafter],
    shapes: Sequence[TreeShape],
    text: Tensor,
    features: Tensor,
    begin: int,
    room: int,
    told: Told,
) -> np.ndarray:
    """Let drafters that read in one pass draft from every root; their hits, [n, T].  own: the pool's, maybe hybrids."""
    end = text.numel()
    outputs, logits, judgement = read_text(part, text, features, [one.top_k for one in shapes])
    hits = np.zeros((len(shapes), end))
    hits[:, 2:] = judgement.accepted[:, 0].cpu().numpy()
    looked_up: dict[tuple, tuple[dict[int, Evidence], np.ndarray]] = {}
    for member, (drafter, mine, shape) in enumerate(zip(part.drafters.members, own, shapes, strict=True)):
        told.asked(member, shape, begin, room)
        keys = part.cache.data[:, :, member : member + 1, :, : end - 1]
        found: dict[int, Evidence] = {}
        kind = kind_of(mine)
        if (indexed := kind.index_key(mine)) is not None:
            key = indexed, shape
            if key not in looked_up:
                looked_up[key] = _look_up(mine, shape, text, features, begin, room)
            found, proposed = looked_up[key]
            hits[member] = np.maximum(hits[member], proposed)
        for some, asked in _rooms(begin, end, shape, room):
            roots = torch.tensor(some, device=text.device)
            draft = partial(_trees, drafter, keys, outputs[member], logits[member], text, roots, asked)
            if indexed is not None:
                tree = kind.draft_with_index(mine, [found[root] for root in some], text[roots], asked, draft)
            else:
                tree = draft(range(len(some)))
            told.drafted(member, some, tree, text, asked.depth)
    return hits


def _look_up(
    drafter: Drafter, shape: TreeShape, text: Tensor, features: Tensor, begin: int, room: int
) -> tuple[dict[int, Evidence], np.ndarray]:
    """What retrieval knows at every root that is drafted from, and its hits, [T]."""
    part, found = kind_of(drafter).index(drafter), {}
    trees = {root: own for some, own in _rooms(begin, text.numel(), shape, room) for root in some}

    def at(root: int) -> None:
        if own := trees.get(root):
            (found[root],) = part.evidence([0], own.depth)

    return found, _walk(part, at, shape.top_k, text, features, begin)


def _trees(
    drafter: FusedDrafter,
    keys: Tensor,
    outputs: Tensor,
    logits: Tensor,
    text: Tensor,
    roots: Tensor,
    shape: TreeShape,
    some: Sequence[int],
    growth: Growth | None = None,
    others: Others | None = None,
) -> Tree:
    """Trees below some of roots [B] of one text, of which every row reads what stands before its root."""
    roots = roots[list(some)]
    cache = beside_roots(keys, roots, shape.top_k * shape.depth)
    newest = roots - 1  # slot of the root
    known = outputs[newest], text[roots], roots, keys.shape[4], shape, logits[newest]
    return draft_levels(drafter, cache, *known, growth, others)


def _solo(
    part: DrafterGroup,
    shapes: Sequence[TreeShape],
    text: Tensor,
    features: Tensor,
    begin: int,
    room: int,
    told: Told,
) -> np.ndarray:
    """Let a drafter that reads token by token draft from every root; its hits, [1, T]."""
    shape = shapes[0]
    told.asked(0, shape, begin, room)
    trees = {root: own for some, own in _rooms(begin, text.numel(), shape, room) for root in some}

    def at(root: int) -> None:
        if own := trees.get(root):
            tree = part.draft(0, [0], text[root : root + 1], own)
            told.drafted(0, [root], tree, text, own.depth)

    return _walk(part, at, shape.top_k, text, features, begin)[None]


def _walk(
    part: DrafterGroup, at: Callable[[int], None], top_k: int, text: Tensor, features: Tensor, begin: int
) -> np.ndarray:
    """Let a drafter read token by token, calling `at` with every root once it has been read; its hits, [T]."""
    end = text.numel()
    hits = np.zeros(end)
    part.admit(text[: begin + 1], features[:begin])
    for root in range(begin, end - 1):
        at(root)
        following = text[None, root + 1 : root + 2]
        part.commit(following, features[None, root : root + 1], [1], tell=True)
        judgement = part.read(Truth(following, None), [top_k])
        hits[root + 1] = judgement.accepted[0, 0, 0].item()
    return hits


def _lengths(tree: Tree, text: Tensor, roots: Tensor, depth: int) -> np.ndarray:
    """Tokens that cycles with these roots [B] emit: behind the text's end nothing matches."""
    padded = torch.cat((text, text.new_full((depth + 1,), -1)))
    chosen = padded[roots[:, None] + 1 + tree.levels]
    return accepted_path(tree, chosen, ancestor_mask(tree.parents, depth), depth)[1].cpu().numpy()
