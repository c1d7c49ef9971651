"""Trees with torch operations that never wait for a GPU: best children, cuts, masks, walks, scheduling decisions.

Axes: B rows (sequences), P pool candidates (level order), T tree nodes (root first), W draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels.attention import additive


def ordered(scores: Tensor) -> Tensor:
    """Indices that sort [..., P] by score descending; equal scores keep their order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def argmax(x: Tensor) -> Tensor:
    """Indices of the largest numbers along the last axis, [...] of [..., W]; the first of equal ones."""
    return x.argmax(dim=-1)


def top_children(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of the best `count`, descending, each [..., count], of float32 logits [..., W].

    Equal logits are ordered by id, also across the cut.
    """
    ids = _best_ids(logits, count)
    values = logits.gather(-1, ids)
    best = values[..., :1]
    lse = (logits - best).exp_().sum(dim=-1, keepdim=True).log_() + best  # faster than logsumexp
    # a probability of 1 may round to a log of +1e-7, which would lift a child above its parent
    return (values - lse).clamp_(max=0.0), ids


def best_children(logits: Tensor, count: int) -> Tensor:
    """The log-probabilities of `top_children` without ids."""
    best = logits.topk(count, dim=-1).values
    return (best - logits.logsumexp(dim=-1, keepdim=True)).clamp_(max=0.0)


def _best_ids(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest `count` of [..., W] in the order (logit descending, id ascending)."""
    width = logits.shape[-1]
    if logits.device.type != "cpu":  # looking for ties would wait for the device, so make all keys different
        bits = logits.view(torch.int32).long()
        bits = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # integers in the order of the floats
        ids = torch.arange(width, device=logits.device)
        return width - 1 - ((bits * width + (width - 1 - ids)).topk(count, dim=-1).values % width)
    values, ids = logits.topk(min(count + 1, width), dim=-1)
    if count < width and bool((values[..., count - 1] == values[..., count]).any()):
        return ordered(logits)[..., :count]
    ids = ids[..., :count].sort(dim=-1).values
    return ids.gather(-1, ordered(logits.gather(-1, ids)))


def cut(
    root: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    levels: Tensor,
    num_tokens: int,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, parents and levels, [B, T], of the root and the best num_tokens - 1 candidates of each row's pool.

    root: [B] target ids.  tokens, scores: [B, P].  parents: [B, P], pool index of the parent, -1 for the root's
    children.  levels: [B, P] or [P].  counts: nodes of each row, [B], if some have fewer; their trees are padded, and
    scores of -inf are left out.
    """
    keep = ordered(scores)[:, : max(num_tokens - 1, 0)]
    if counts is not None:
        return _cut_rows(root, tokens, scores, parents, levels.expand_as(scores), keep, counts)
    keep = keep.sort(dim=-1).values
    batch, count = keep.shape
    node_of = torch.zeros(batch, tokens.shape[1] + 1, dtype=torch.long, device=tokens.device)
    node_of.scatter_(1, keep + 1, torch.arange(1, count + 1, device=tokens.device).expand(batch, -1))
    zero = torch.zeros(batch, 1, dtype=torch.long, device=tokens.device)
    return (
        torch.cat((root[:, None], tokens.gather(1, keep)), dim=1),
        torch.cat((zero, node_of.gather(1, parents.gather(1, keep) + 1)), dim=1),
        torch.cat((zero, levels.expand(batch, -1).gather(1, keep)), dim=1),
    )


def _cut_rows(
    root: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, levels: Tensor, keep: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `cut`, with the first counts[b] - 1 of each row's best candidates `keep` [B, T - 1]."""
    (batch, count), size = keep.shape, scores.shape[1]
    index = torch.arange(count, device=keep.device)
    dropped = (index >= counts[:, None] - 1) | (scores.gather(1, keep) == -torch.inf)
    keep = keep.masked_fill(dropped, size).sort(dim=-1).values  # dropped ones become padding at the end
    padding = keep == size
    keep = keep.clamp(max=size - 1)
    node = (index + 1).expand(batch, -1)
    node_of = torch.zeros(batch, size + 2, dtype=torch.long, device=keep.device)
    node_of.scatter_(1, torch.where(padding, size + 1, keep + 1), node)
    zero = torch.zeros(batch, 1, dtype=torch.long, device=keep.device)
    above = node_of.gather(1, parents.gather(1, keep) + 1)
    return (
        torch.cat((root[:, None], tokens.gather(1, keep).masked_fill(padding, 0)), dim=1),
        torch.cat((zero, torch.where(padding, node, above)), dim=1),
        torch.cat((zero, levels.gather(1, keep).masked_fill(padding, 0)), dim=1),
    )


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """Whether node j is node i or an ancestor of it, [B, T, T]; `depth` is at least the deepest level."""
    batch, count = parents.shape
    mask = torch.eye(count, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    ancestor = parents
    for _ in range(depth):
        mask.scatter_(2, ancestor[:, :, None], True)
        ancestor = parents.gather(1, ancestor)
    return mask


def walk(
    tokens: Tensor, parents: Tensor, levels: Tensor, next_tokens: Tensor, ancestors: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Nodes of the confirmed walks, [B, D + 1], padded with the root, and their lengths [B].

    tokens, parents, levels: of the trees, [B, T].  next_tokens: the target's token after each node, [B, T].
    ancestors: see the function.
    """
    batch, count = tokens.shape
    index = torch.arange(count, device=tokens.device).expand(batch, -1)
    matches = (tokens == next_tokens.gather(1, parents)) & (parents != index)
    matches[:, 0] = True
    confirmed = (matches[:, None, :] | ~ancestors).all(dim=2)
    deepest = torch.where(confirmed, levels, -1).argmax(dim=1, keepdim=True)
    on_walk = ancestors.gather(1, deepest[:, :, None].expand(-1, -1, count))[:, 0]
    path = torch.zeros(batch, depth + 2, dtype=torch.long, device=tokens.device)
    path.scatter_(1, torch.where(on_walk, levels, depth + 1), index)
    return path[:, : depth + 1], levels.gather(1, deepest)[:, 0] + 1


def pack_walks(parents: Tensor, path: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
    """For each row: number of nodes without padding, length of the walk, the walk, the token after each of its nodes.

    parents: of the trees, [B, T].  path, tokens: [B, D + 1].  lengths: [B].  Returns [B, 2 + 2 (D + 1)].
    """
    sizes = (parents != torch.arange(parents.shape[1], device=path.device)).sum(dim=1) + 1
    return torch.cat((sizes[:, None], lengths[:, None], path, tokens), dim=1)


def tree_mask(reads: Tensor, lengths: Tensor, base: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, K, base + L]: each row's first lengths [B] slots, and after `base` those of reads [B, K, L].

    Slots between a row's text and `base` are masked.
    """
    past = torch.arange(base, device=reads.device) < lengths[:, None]
    return additive(torch.cat((past[:, None].expand(-1, reads.shape[1], -1), reads), dim=2), dtype)


def children_state(logp: Tensor, least: float) -> Tensor:
    """Logp [N, C] rounded to float16 and at least `least`, their exponentials, and 1 less their sum.

    [N, 2C + 1].
    """
    logp = logp.half().float().clamp(min=least)
    probs = logp.exp()
    return torch.cat((logp, probs, 1.0 - probs.sum(dim=1, keepdim=True)), dim=1)


def reach(scores: Tensor, most: int) -> Tensor:
    """Sum of the exponentials of each row's best `most` scores [N, S], rounded to float16, [N]."""
    return scores.half().float().topk(most, dim=1).values.exp().double().cumsum(dim=1)[:, -1].float()


def worth(scores: Tensor, sizes: Tensor, prices: Tensor) -> Tensor:
    """For each row of scores [N, P] the size with the most expected tokens less its price, [N].

    sizes: [V] int64, rising, root included, 2 or more.  prices: [V] float64, in tokens.
    """
    best = scores.half().float().sort(dim=1, descending=True).values
    expected = best.exp().double().cumsum(dim=1)
    filled = (sizes - 2).clamp(max=expected.shape[1] - 1)  # sizes above the number of candidates add no tokens
    return sizes[(expected[:, filled] - prices).argmax(dim=1)]
