"""Judges the drafters of a pool on committed tokens: would their proposals have been accepted?

Axes: N drafters, B rows, A committed tokens, W draft vocabulary, V target vocabulary, k children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    log_q: Tensor | None = None  # drafter's log-probability of the committed token; -inf outside its vocabulary
    divergence: Tensor | None = None  # total variation distance of drafter and target; 1 where q is unknown

    def add_proposals(self, rows: Sequence[int], extra: Judgement) -> Judgement:
        """Add the proposals of other drafters, `extra` [n], to those of drafters `rows` [n].

        A token is accepted if either proposes it; gamma is the larger of the two, a lower bound of the union's mass.
        """
        parts = {}
        for name in ("accepted", "gamma"):
            values = getattr(self, name).clone()
            values[list(rows)] = torch.maximum(values[list(rows)], getattr(extra, name))
            parts[name] = values
        return replace(self, **parts)

    @staticmethod
    def join(parts: list[Judgement]) -> Judgement:
        """Concatenate the judgements of several groups."""
        columns = {name: [getattr(part, name) for part in parts] for name in Judgement.__dataclass_fields__}
        return Judgement(
            **{
                name: None if any(value is None for value in values) else torch.cat(values)
                for name, values in columns.items()
            }
        )


def judge(
    logits: Tensor,
    token_ids: Tensor,
    draft_ids: Tensor,
    truth: Truth,
    top_k: Sequence[int],
    details: bool = False,
    limits: Tensor | None = None,
) -> Judgement:
    """Judge drafters by their logits.

    logits: for each committed token, [N, B, A, W].  token_ids: target id of every draft id, [N, W].  draft_ids: draft
    id of every target id or -1, [N, V].  top_k: number of proposals that count, of each drafter, [N].  details: also
    compute log_q and divergence.  limits: `top_k` on the device, [N], if it is there.
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
    if not details:
        return Judgement(accepted, gamma)
    log_q = (token_logits[..., 0] - logits.logsumexp(dim=-1)).masked_fill(~in_vocab, float("-inf"))
    return Judgement(accepted, gamma, log_q, total_variation(logits, token_ids, truth))


def total_variation(logits: Tensor, token_ids: Tensor, truth: Truth) -> Tensor:
    """1 - sum_v min(p(v), q(v)), [N, B, A]; q is zero outside the drafter's vocabulary."""
    q = logits.softmax(dim=-1)  # [N, B, A, W]
    if truth.distributions is None:  # greedy: p is one-hot
        hit = token_ids[:, None, None] == truth.tokens[None, :, :, None]
        return 1.0 - (q * hit).sum(dim=-1)
    at = token_ids[:, None, None].expand(-1, *truth.tokens.shape, -1)
    p = truth.distributions.expand(len(q), -1, -1, -1).gather(-1, at)
    return 1.0 - torch.minimum(p.float(), q).sum(dim=-1)


def judge_sets(
    children: list[list[dict[int, float]]], truth: Truth, top_k: Sequence[int], details: bool = False
) -> Judgement:
    """Judge one drafter by its proposals.

    children: proposals for each committed token of each row, with probabilities, best first.
    """
    shape = truth.tokens.shape
    accepted, log_q, divergence = torch.zeros(shape), torch.full(shape, float("-inf")), torch.ones(shape)
    gamma = accepted if truth.distributions is None else torch.zeros(shape)
    for row, (tokens, row_proposals) in enumerate(zip(truth.tokens.tolist(), children, strict=True)):
        for position, (token, proposals) in enumerate(zip(tokens, row_proposals, strict=False)):
            best = list(proposals)[: top_k[0]]
            accepted[row, position] = token in best
            if truth.distributions is not None and best:
                gamma[row, position] = truth.distributions[row, position, best].sum().item()
            if details and proposals:
                q = torch.tensor(list(proposals.values()))
                is_token = torch.tensor([guess == token for guess in proposals]).double()
                p = (
                    is_token
                    if truth.distributions is None
                    else truth.distributions[row, position, list(proposals)].cpu()
                )
                log_q[row, position] = (q * is_token).sum().log()
                divergence[row, position] = 1.0 - torch.minimum(p, q).sum()
    parts = (accepted, gamma, log_q, divergence) if details else (accepted, gamma)
    return Judgement(*(part[None].to(truth.tokens.device) for part in parts))


def draft_id_table(token_ids: Tensor, vocab_size: int) -> Tensor:
    """Draft id of every target id, or -1, [N, V].  token_ids: [N, W]."""
    count, size = token_ids.shape
    table = torch.full((count, vocab_size), -1, dtype=torch.long, device=token_ids.device)
    return table.scatter_(1, token_ids, torch.arange(size, device=token_ids.device).expand(count, -1))
