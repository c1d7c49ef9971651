"""Judges the drafters of a pool on committed tokens: would their proposals have been accepted?

Axes: N drafters, B rows, A committed tokens, W draft vocabulary, V target vocabulary, k children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Truth:
    """The target's choice at the committed positions."""

    tokens: Tensor  # committed target ids, [B, A]
    distributions: Tensor | None  # that each token was sampled from, [B, A, V]; None: all greedy


@dataclass(frozen=True)
class Judgement:
    """Scores of every drafter at every committed position, [N, B, A], float32."""

    accepted: Tensor  # 1 if the committed token is among the drafter's top k
    gamma: Tensor  # target probability of the drafter's top k

    def add_proposals(self, rows: Sequence[int], extra: Judgement, by_mass: bool = True) -> Judgement:
        """Add the proposals of other drafters, `extra` [n], to those of drafters `rows` [n].

        A token is accepted if either proposes it.  gamma is the larger mass, a lower bound of the union's mass; unless
        `by_mass`, because `extra` was judged without distributions, it is `accepted`, whose mean is the union's mass.
        """
        rows, accepted, gamma = list(rows), self.accepted.clone(), self.gamma.clone()
        accepted[rows] = torch.maximum(accepted[rows], extra.accepted)
        gamma[rows] = torch.maximum(gamma[rows], extra.gamma) if by_mass else accepted[rows]
        return Judgement(accepted, gamma)

    @staticmethod
    def join(parts: list[Judgement]) -> Judgement:
        """Concatenate the judgements of several groups."""
        return Judgement(torch.cat([part.accepted for part in parts]), torch.cat([part.gamma for part in parts]))


def judge(
    logits: Tensor,
    token_ids: Tensor,
    draft_ids: Tensor,
    truth: Truth,
    top_k: Sequence[int],
    limits: Tensor | None = None,
) -> Judgement:
    """Judge drafters by their logits.

    logits: for each committed token, [N, B, A, W].  token_ids: target id of every draft id, [N, W].  draft_ids: draft
    id of every target id or -1, [N, V].  top_k: number of proposals that count, of each drafter, [N].  limits: `top_k`
    on the device, [N], if it is there.
    """
    count, batch, width, size = logits.shape
    logits = logits.float()
    ids = draft_ids[:, truth.tokens]  # [N, B, A]
    in_vocab = ids >= 0
    token_logits = logits.gather(-1, ids.clamp(min=0)[..., None])
    num_better = (logits > token_logits).sum(dim=-1)
    ties = logits == token_logits
    if logits.device.type != "cpu" or int(ties.sum()) > ids.numel():
        num_better += (ties & (torch.arange(size, device=ids.device) < ids[..., None])).sum(
            dim=-1
        )  # break ties as `top_children` does
    limits = (torch.tensor(top_k, device=logits.device) if limits is None else limits)[:, None, None]
    accepted = (in_vocab & (num_better < limits)).float()
    gamma = accepted
    if truth.distributions is not None:
        width_k = min(max(top_k), size)
        children = logits.topk(width_k, dim=-1).indices
        children = token_ids[:, None, None].expand(-1, batch, width, -1).gather(-1, children)
        mass = truth.distributions.expand(count, -1, -1, -1).gather(-1, children)
        gamma = (mass * (torch.arange(width_k, device=logits.device) < limits[..., None])).sum(dim=-1).float()
    return Judgement(accepted, gamma)


def judge_sets(children: list[list[dict[int, float]]], truth: Truth, top_k: Sequence[int]) -> Judgement:
    """Judge one drafter by its proposals.

    children: proposals for each committed token of each row, with probabilities, best first.
    """
    accepted = torch.zeros(truth.tokens.shape)
    gamma = accepted if truth.distributions is None else torch.zeros(truth.tokens.shape)
    for row, (tokens, row_proposals) in enumerate(zip(truth.tokens.tolist(), children, strict=True)):
        for position, (token, proposals) in enumerate(zip(tokens, row_proposals, strict=False)):
            best = list(proposals)[: top_k[0]]
            accepted[row, position] = token in best
            if truth.distributions is not None and best:
                gamma[row, position] = truth.distributions[row, position, best].sum().item()
    return Judgement(*(part[None].to(truth.tokens.device) for part in (accepted, gamma)))


def draft_id_table(token_ids: Tensor, vocab_size: int) -> Tensor:
    """Draft id of every target id, or -1, [N, V].  token_ids: [N, W]."""
    count, size = token_ids.shape
    table = torch.full((count, vocab_size), -1, dtype=torch.long, device=token_ids.device)
    return table.scatter_(1, token_ids, torch.arange(size, device=token_ids.device).expand(count, -1))
