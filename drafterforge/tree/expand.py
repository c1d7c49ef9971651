"""Level-by-level drafting: EAGLE-2's beam over any model that scores the children of beam nodes.

Axes: B rows, K beam nodes, k children of each, L level slots written so far, W draft vocabulary.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from drafterforge.kernels.candidates import Candidates
from drafterforge.kernels.dispatch import CandidatePool, kernels_of
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.masked_growth import MaskedGrowth
from drafterforge.tree.merge import RetrievalEvidence, merge_trees
from drafterforge.tree.tries import Tries, merge_tries

# step(level, tokens [B, K], origin [B, K], reads [B, K, L]) -> logits [B, K, W]
Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Growth(Protocol):
    """When trees stop growing, decided while they are drafted."""

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """Whether each row drafts another level, [B] bool.  scores: [B, n] of the candidates of `level`, the newest."""

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """Nodes to verify of each row, root included, [B].

        depths: levels drafted, [B].  scores: [B, P] of all candidates, level by level, -inf beyond a row's depth.
        """


class ReachGrowth:
    """A `Growth` that drafts another level of a row while its beam is likely enough to be accepted."""

    def __init__(self, shape: TreeShape, least: Sequence[float], device: torch.device) -> None:
        """least: a level is followed by another one if its best top_k candidates have this summed probability, [B]."""
        self.shape, self.least = shape, torch.tensor(least, dtype=torch.double, device=device)
        self.limits = list(least)  # the same on the host
        self.num_levels = 1  # that were drafted
        self.reaches: list[list[float]] = []  # summed probabilities of each row, after each level but the last
        self.clock: list[float] = []  # when each of these was known, in seconds of a monotonic clock

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        best = scores.topk(min(self.shape.top_k, scores.shape[1]), dim=1).values
        reach = best.exp().sum(dim=1, dtype=torch.double)
        self.reaches.append(reach.tolist())
        self.clock.append(time.perf_counter())
        self.num_levels += any(value >= limit for value, limit in zip(self.reaches[-1], self.limits, strict=True))
        return reach >= self.least

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return torch.full_like(depths, self.shape.num_tokens)


class LevelSteps(ABC):
    """A `Step` that can also draft all levels at once."""

    @abstractmethod
    def __call__(self, level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        """See `Step`."""

    @abstractmethod
    def draft(self, pool: CandidatePool, logits: Tensor, shape: TreeShape, growth: ReachGrowth | None) -> bool:
        """Add all levels to an empty pool, and tell `growth` what was decided; False: it does not, for this pool."""


def expand(
    root: Tensor,
    logits: Tensor,
    shape: TreeShape,
    step: Step,
    token_ids: Tensor | None = None,
    growth: Growth | None = None,
    retrieval: RetrievalEvidence | Tries | None = None,
) -> Tree:
    """Draft a tree below each root [B] from the logits [B, W] of its children.

    step: reads the beam of a level and scores its children.  `origin` is each node's parent in the beam before;
    `reads` says which level slots a node may read: its drafted ancestors and itself.  The newest K slots are the
    beam's own.  token_ids: target id of each draft id, [W] or, for each row, [B, W]; None: the same.  growth: may end
    rows before the shape's depth, and sets the number of nodes; a `MaskedGrowth` drafts the whole shape all the same.
    retrieval: its likeliest nodes join the tree; then probabilities set the number of nodes, not `growth`.  `Tries`
    need a `MaskedGrowth`.
    """
    if shape.depth == 0 or shape.num_tokens <= 1:
        if isinstance(growth, MaskedGrowth):
            growth.drafted = torch.zeros_like(root)
        return root_only(root)
    if growth is None and retrieval is None:
        shape = shape.drafted
    logits, batch = logits.float(), root.numel()
    masked = isinstance(growth, MaskedGrowth)
    if masked or (token_ids is not None and token_ids.dim() == 2):
        pool = Candidates(batch, shape.pool_size, token_ids)
        pool.widths = growth.widths if masked else None
    else:
        pool = kernels_of(logits).candidates(batch, shape.pool_size, token_ids)
    at_once = isinstance(step, LevelSteps) and (growth is None or isinstance(growth, ReachGrowth))
    depths = torch.ones_like(root)
    if not (at_once and step.draft(pool, logits, shape, growth)):
        depths = _add_levels(pool, logits, shape, step, growth)
    if masked:
        growth.drafted = torch.minimum(depths, growth.depths)
    if isinstance(retrieval, Tries):
        pooled = pool.tokens, pool.scores, pool.parents, pool.levels
        return merge_tries(root, *pooled, retrieval, shape.num_tokens, shape.depth, growth.sizes)
    if retrieval is not None:
        return merge_trees(root, pool.tokens, pool.scores, pool.parents, shape.num_tokens, retrieval)
    if growth is None:
        return Tree(*pool.cut(root, shape.num_tokens))
    counts = growth.nodes(depths, pool.scores)
    return Tree(*pool.cut(root, shape.num_tokens if masked else int(counts.max()), counts))


def _add_levels(pool: CandidatePool, logits: Tensor, shape: TreeShape, step: Step, growth: Growth | None) -> Tensor:
    """Add levels to an empty pool one by one; returns those of each row, [B].  Arguments as for `expand`."""
    top_k, masked = min(shape.top_k, logits.shape[-1]), isinstance(growth, MaskedGrowth)
    tokens, origin, newest = pool.level(logits[:, None], top_k, top_k)
    reads = torch.empty(len(logits), 1, 0, dtype=torch.bool, device=logits.device)
    depths, growing = torch.ones(len(logits), dtype=torch.long, device=logits.device), None
    for level in range(1, shape.depth):
        if growth is not None:
            going = growth.go_on(level, newest)
            growing = going if growing is None else growing & going
            if not masked and not bool(growing.any()):
                break
            depths = depths + growing
        reads = pool.reads(reads, origin)
        logits = step(level, tokens, origin, reads).float()
        tokens, origin, newest = pool.level(logits, top_k, shape.top_k, growing)
    return depths
