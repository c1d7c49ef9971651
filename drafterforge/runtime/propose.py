"""Draws a tree from an EAGLE-3 drafter, and keeps its cache a function of the committed text alone.

Axes: n stable slots, A accepted tokens, K beam nodes, k children, P pool candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.kernels.attention import additive, grouped_attention
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.tree.grow import Tree, TreeShape, cut_tree, ordered, root_only, top_children


class Eagle3Proposer:
    """One sequence's drafter: its cache holds [stable | this cycle's levels]; only true features ever become stable."""

    def __init__(self, drafter: FusedDrafter) -> None:
        self.drafter, spec = drafter, drafter.spec
        embedding = drafter.embedding
        self.cache = KeyValueCache(1, 1, spec.num_key_heads, spec.head_dim, embedding.dtype, embedding.device)
        self.stable = 0
        self.last: Tensor | None = None  # layer output of the newest stable slot, [1, H]

    def refresh(self, tokens: Tensor, features: Tensor) -> None:
        """Append slots that pair tokens [A] with the target's features [A, 3H] one position before."""
        count = tokens.numel()
        positions = torch.arange(self.stable, self.stable + count, device=tokens.device)
        self.cache.place(self.stable, count)
        drafter = self.drafter
        # only the newest slot is drafted from, and it may read every slot, so no mask is needed
        self.last = drafter.layer(
            drafter.embed(tokens),
            drafter.fuse(features),
            positions,
            self._attend(None),
            rows=slice(count - 1, count),
        )
        self.stable += count

    def _attend(self, mask: Tensor | None):
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache.write(0, k[None], v[None])
            return grouped_attention(q[None], keys, values, mask)[0]

        return attend

    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """The tree below `root`, [] target id, which is the token of the newest stable slot."""
        if shape.depth == 0 or shape.num_tokens <= 1:
            return root_only(root)
        drafter, device = self.drafter, root.device
        logp, ids = top_children(drafter.logits(self.last), shape.top_k)
        beam_tokens, beam_scores = drafter.token_ids[ids[0]], logp[0]
        beam_hidden = self.last.expand(beam_tokens.numel(), -1)
        beam_pool = torch.arange(beam_tokens.numel(), device=device)  # pool index of each beam node
        tokens, scores = [beam_tokens], [beam_scores]
        parents, levels = [torch.full_like(beam_pool, -1)], [torch.ones_like(beam_pool)]
        reads = torch.empty(1, 0, dtype=torch.bool, device=device)  # which level slots each beam parent may read
        origin = torch.zeros_like(beam_pool)
        size = beam_tokens.numel()
        for level in range(1, shape.depth):
            count = beam_tokens.numel()
            reads = torch.cat((reads[origin], torch.eye(count, dtype=torch.bool, device=device)), dim=1)
            allowed = torch.cat((torch.ones(count, self.stable, dtype=torch.bool, device=device), reads), dim=1)
            self.cache.place(self.stable + reads.shape[1] - count, count)
            positions = torch.full((count,), self.stable + level - 1, device=device)
            attend = self._attend(additive(allowed, beam_hidden.dtype)[None])
            hidden = drafter.layer(drafter.embed(beam_tokens), beam_hidden, positions, attend)
            logp, ids = top_children(drafter.logits(hidden), shape.top_k)
            cumulative = (beam_scores[:, None] + logp).flatten()
            children = drafter.token_ids[ids.flatten()]
            origin = torch.arange(count, device=device).repeat_interleave(logp.shape[1])
            tokens.append(children)
            scores.append(cumulative)
            parents.append(beam_pool[origin])
            levels.append(torch.full_like(origin, level + 1))
            beam = ordered(cumulative)[: shape.top_k]
            origin = origin[beam]
            beam_tokens, beam_scores, beam_hidden = children[beam], cumulative[beam], hidden[origin]
            beam_pool = size + beam
            size += cumulative.numel()
        return cut_tree(
            root,
            torch.cat(tokens),
            torch.cat(scores),
            torch.cat(parents),
            torch.cat(levels),
            shape.num_tokens,
        )
