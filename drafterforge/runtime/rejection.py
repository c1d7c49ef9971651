"""Rejection verification: chains whose tokens the drafter samples, accepted with probability min(1, p / q).

A rejected token is replaced by one from the residual max(p - q, 0), so every token follows the target's distribution
(Leviathan et al. 2023, Chen et al. 2023).  The output is not that of autoregressive sampling at the same seed: it
depends on the drafter, while sample-and-match does not.  Greedy rows give the same answer with either.
Axes: B rows, D drafted levels, V vocabulary, W draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.stack import Eagle3Proposer
from drafterforge.runtime.acceptance import pack
from drafterforge.runtime.batch import Batch
from drafterforge.tree.grow import root_only

DRAFT, ACCEPT = 1, 2  # streams of noise; tokens that are not drafted take stream 0


def inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative sum of probs [B, V] exceeds uniform [B] of its total, [B]."""
    cumulative = probs.cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).long().argmax(dim=-1)
    return torch.minimum(drawn, last)


def verify_token(p: Tensor, q: Tensor, token: Tensor, accept: Tensor, redraw: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each drafted token is accepted, [B] bool, and the token itself or its replacement, [B].

    p, q: distributions of the target and of the drafter, [B, V]; token: drawn from q, [B].  accept, redraw: uniform
    noise, [B].
    """
    p_token, q_token = (probs.gather(1, token[:, None])[:, 0] for probs in (p, q))
    accepted = accept * q_token < p_token
    residual = (p - q).clamp(min=0.0)
    # p equal to q leaves no residual, and then only rounding can reject
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, p)
    return accepted, torch.where(accepted, token, inverse_cdf(residual, redraw))


class RejectionBatch(Batch):
    """A batch whose drafter samples chains, which the target accepts or corrects."""

    proposer: Eagle3Proposer
    proposals: list[Tensor]  # distributions of the drafted tokens of each level, [B, V]

    def draft(self, record: CycleRecord) -> None:
        """Sample a chain for each row, at the row's temperature."""
        depth, self.proposals = record.bounds.depth, []
        if depth == 0:
            record.tree = root_only(record.root)
            return
        uniform = self.picker.noise(self._next_positions, depth, DRAFT)
        temperature, token_ids = self.picker.temperature, self.proposer.group.drafters.members[0].token_ids
        vocab_size = self.picker.vocab_size

        def draw(level: int, logits: Tensor) -> Tensor:
            best = logits.argmax(dim=-1)
            scaled = (logits - logits.gather(1, best[:, None])).double() / torch.where(temperature > 0, temperature, 1)
            greedy = torch.zeros_like(scaled).scatter_(1, best[:, None], 1.0)
            probs = torch.where(temperature > 0, scaled.softmax(dim=-1), greedy)
            self.proposals.append(probs.new_zeros(len(probs), vocab_size).index_copy_(1, token_ids, probs))
            return best if uniform is None else inverse_cdf(probs, uniform[:, level])

        record.tree = self.proposer.draft_chains(record.root, depth, draw)

    def verify(self, record: CycleRecord) -> None:
        """Run the target on the chains; accept, or replace the first rejected token."""
        self._read_trees(record)
        tree, depth, rows = record.tree, record.bounds.depth, len(self.rows)
        noise = [self.picker.noise(self._next_positions, depth + 1, stream) for stream in (ACCEPT, 0)]
        zero = torch.zeros(rows, dtype=torch.double, device=record.root.device)
        # of each row alone: a batch must not change an answer
        depths = torch.tensor([min(record.shape.depth, limit) for limit in record.limits], device=record.root.device)
        walking = torch.ones(rows, dtype=torch.bool, device=record.root.device)
        counts, tokens = torch.zeros_like(record.root), []
        for level in range(depth + 1):
            p = self.picker.distribution(record.logits[:, level], self.seen)
            accept, redraw = (zero if part is None else part[:, level] for part in noise)
            accepted, token = torch.zeros_like(walking), inverse_cdf(p, redraw)
            if level < depth:
                verified = verify_token(p, self.proposals[level], tree.tokens[:, level + 1], accept, redraw)
                accepted = verified[0] & (level < depths)
                token = torch.where(level < depths, verified[1], token)
            if self.seen is not None:
                update = torch.zeros_like(self.seen).scatter_(1, token[:, None], True)
                self.seen.logical_or_(walking[:, None] & update)
            tokens.append(token)
            counts = counts + walking
            walking = walking & accepted
        record.path = torch.arange(depth + 1, device=record.root.device).expand(rows, -1)
        record.next_tokens = torch.stack(tokens, dim=1)
        record.packed = pack(tree, record.path, counts, record.next_tokens)
