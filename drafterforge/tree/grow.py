"""The candidate pool of a cycle and the tree cut from it (EAGLE-2's dynamic tree).

Scores are cumulative log-probabilities in fp32.  Every choice follows one total order: score descending, level
ascending, then index ascending; with log-probabilities <= 0 a parent then always precedes its children, also under
ties, so that the best n candidates are closed under ancestors.
Axes: B rows (sequences), P pool candidates (level order), T tree nodes (root first), W draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels import native, native_trees
from drafterforge.kernels.best import best_logp


@dataclass(frozen=True)
class TreeShape:
    """What a scheduler chooses: nodes verified (root included), drafted levels, beam width."""

    num_tokens: int
    depth: int
    top_k: int

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.num_tokens < 1 or self.depth < 0 or self.top_k < 1:
            raise ConfigError(f"a tree needs num_tokens >= 1, depth >= 0 and top_k >= 1, got {self}")

    @property
    def pool_size(self) -> int:
        """Candidates that drafting yields: k + (d - 1) k^2."""
        return 0 if self.depth == 0 else self.top_k + (self.depth - 1) * self.top_k**2


@dataclass(frozen=True)
class Tree:
    """Nodes to verify, in level order; parents precede children.  Rows may be padded: padding is its own parent."""

    tokens: Tensor  # [B, T] target ids; the root first
    parents: Tensor  # [B, T] index of the parent; the root's is itself
    levels: Tensor  # [B, T] 0 for the root and for padding


def ordered(scores: Tensor) -> Tensor:
    """Indices that sort [..., P] by score descending; equal scores keep their order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and draft ids of the `count` best children, each [..., count], of logits [..., W].

    Equal logits are ordered by id, also across the cut.
    """
    count = min(count, logits.shape[-1])
    logits = logits.float()
    if (found := best_logp(logits, count)) is not None:
        return found
    ids = _best_ids(logits, count)
    values = logits.gather(-1, ids)
    best = values[..., :1]
    lse = (logits - best).exp_().sum(dim=-1, keepdim=True).log_() + best  # logsumexp, which takes longer
    # a probability of one rounds to a log of +1e-7 at times, which would lift a child above its parent
    return (values - lse).clamp_(max=0.0), ids


def _best_ids(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest `count` of [..., W] in the order (logit descending, id ascending)."""
    width = logits.shape[-1]
    if logits.device.type != "cpu":  # looking for ties would stop the device: make every key different instead
        bits = logits.view(torch.int32).long()
        bits = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # integers in the order of the floats
        ids = torch.arange(width, device=logits.device)
        return width - 1 - ((bits * width + (width - 1 - ids)).topk(count, dim=-1).values % width)
    values, ids = logits.topk(min(count + 1, width), dim=-1)
    if count < width and bool((values[..., count - 1] == values[..., count]).any()):
        return ordered(logits)[..., :count]
    ids = ids[..., :count].sort(dim=-1).values
    return ids.gather(-1, ordered(logits.gather(-1, ids)))


def cut_tree(
    root: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    num_tokens: int,
    counts: Tensor | None = None,
) -> Tree:
    """The root and the best num_tokens - 1 candidates of each row's pool.

    root: [B] target ids.  tokens, scores: [B, P].  parents: [B, P], pool index of the parent, -1 for the root's
    children.  levels: [B, P] or [P].  counts: nodes of each row, [B], where some keep fewer; their trees are padded,
    and candidates with a score of -inf are never kept.
    """
    keep = ordered(scores)[:, : max(num_tokens - 1, 0)]
    if counts is not None:
        return _cut_rows(root, tokens, scores, parents, levels.expand_as(scores), keep, counts)
    keep = keep.sort(dim=-1).values
    batch, count = keep.shape
    place = torch.zeros(batch, tokens.shape[1] + 1, dtype=torch.long, device=tokens.device)
    place.scatter_(1, keep + 1, torch.arange(1, count + 1, device=tokens.device).expand(batch, -1))
    zero = torch.zeros(batch, 1, dtype=torch.long, device=tokens.device)
    return Tree(
        tokens=torch.cat((root[:, None], tokens.gather(1, keep)), dim=1),
        parents=torch.cat((zero, place.gather(1, parents.gather(1, keep) + 1)), dim=1),
        levels=torch.cat((zero, levels.expand(batch, -1).gather(1, keep)), dim=1),
    )


def _cut_rows(
    root: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, levels: Tensor, keep: Tensor, counts: Tensor
) -> Tree:
    """As `cut_tree`, with counts [B] - 1 of the best candidates `keep` [B, T - 1] of each row."""
    (batch, count), size = keep.shape, scores.shape[1]
    index = torch.arange(count, device=keep.device)
    dropped = (index >= counts[:, None] - 1) | (scores.gather(1, keep) == -torch.inf)
    keep = keep.masked_fill(dropped, size).sort(dim=-1).values  # what is dropped becomes padding behind the rest
    padding = keep == size
    keep = keep.clamp(max=size - 1)
    node = (index + 1).expand(batch, -1)
    place = torch.zeros(batch, size + 2, dtype=torch.long, device=keep.device)
    place.scatter_(1, torch.where(padding, size + 1, keep + 1), node)
    zero = torch.zeros(batch, 1, dtype=torch.long, device=keep.device)
    above = place.gather(1, parents.gather(1, keep) + 1)
    return Tree(
        tokens=torch.cat((root[:, None], tokens.gather(1, keep).masked_fill(padding, 0)), dim=1),
        parents=torch.cat((zero, torch.where(padding, node, above)), dim=1),
        levels=torch.cat((zero, levels.gather(1, keep).masked_fill(padding, 0)), dim=1),
    )


def root_only(root: Tensor) -> Tree:
    """Trees that draft nothing, of roots [B]."""
    zero = torch.zeros(root.numel(), 1, dtype=torch.long, device=root.device)
    return Tree(root[:, None], zero, zero)


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """Whether node j is node i or an ancestor of it, [B, T, T]; `depth` is at least the deepest level."""
    if parents.device.type == "cpu" and native.library() is not None:
        return native_trees.ancestors(parents.contiguous())
    batch, count = parents.shape
    mask = torch.eye(count, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    ancestor = parents
    for _ in range(depth):
        mask.scatter_(2, ancestor[:, :, None], True)
        ancestor = parents.gather(1, ancestor)
    return mask
