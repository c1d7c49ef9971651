"""Attention of the training-time test, with memory linear in the sequence length.

At step i the query of slot j reads the first-step keys of slots 0..j of its sequence and, of later steps, only the keys
of slot j: a causal prefix plus i diagonals.  Instead of an S x (S + i) matrix, queries are processed in blocks, whose
probabilities the backward pass recomputes.
Axes: M query rows, N slots, i later steps, Hq query heads, Hk key heads, G = Hq / Hk, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels.devices import autocast_device

BLOCK = 256


@dataclass(frozen=True)
class Span:
    """Query rows [first_row, last_row) of one sequence, whose slots start at first_slot."""

    first_row: int
    last_row: int
    first_slot: int


class Block(NamedTuple):
    """Query rows [first_row, last_row) of one sequence, and the slots [first_slot, last_slot) that they read."""

    first_row: int
    last_row: int
    first_slot: int
    last_slot: int


def query_blocks(spans: Sequence[Span], slots: Sequence[int]) -> Iterator[Block]:
    """The blocks in which `ttt_attention` computes.  slots: of the rows, ascending within a span."""
    for span in spans:
        for first in range(span.first_row, span.last_row, BLOCK):
            last = min(first + BLOCK, span.last_row)
            yield Block(first, last, span.first_slot, slots[last - 1] + 1)


def _fold(x: Tensor, num_keys: int) -> Tensor:
    """[R, Hq, D] -> [Hk, R * G, D]."""
    rows, heads, width = x.shape
    return x.view(rows, num_keys, heads // num_keys, width).transpose(0, 1).reshape(num_keys, -1, width)


def _unfold(x: Tensor, rows: int) -> Tensor:
    """[Hk, R * G, D] -> [R, Hq, D]."""
    num_keys, _, width = x.shape
    return x.view(num_keys, rows, -1, width).transpose(0, 1).reshape(rows, -1, width)


def _probabilities(q: Tensor, k: Tensor, diagonal: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the prefix and the diagonals, [Hk, R * G, S + i], fp32.

    q: [Hk, R * G, D], scaled.  k: [Hk, S, D].  diagonal: [Hk, R, i, D].  allowed: [R * G, S].
    """
    prefix = (q @ k.transpose(1, 2)).float().masked_fill_(~allowed, float("-inf"))
    num_keys, rows = diagonal.shape[:2]
    diagonals = q.view(num_keys, rows, -1, q.shape[-1]) @ diagonal.transpose(2, 3)  # [Hk, R, G, i]
    return torch.cat((prefix, diagonals.reshape(num_keys, q.shape[1], -1).float()), dim=-1).softmax(dim=-1)


class _TttAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, *rest):
        with torch.autocast(autocast_device(q.device), enabled=False):  # scores and probabilities stay in fp32
            return _TttAttention._forward(ctx, q, *rest)

    @staticmethod
    def _forward(ctx, q, k, v, later_k, later_v, row_slots, blocks):
        ctx.blocks = blocks
        out = torch.empty_like(q)
        for block in blocks:
            prob, (_, kb, vb, _, dv, first, last) = _TttAttention._block(block, q, k, v, later_k, later_v, row_slots)
            prob = prob.to(q.dtype)
            size = kb.shape[1]
            mixed = prob[..., :size] @ vb
            if dv.shape[2]:
                later_prob = prob[..., size:].view(*dv.shape[:2], -1, dv.shape[2])  # [Hk, R, G, i]
                mixed = mixed + (later_prob @ dv).reshape(mixed.shape)
            out[first:last] = _unfold(mixed, last - first)
        ctx.save_for_backward(q, k, v, later_k, later_v, row_slots, out)
        return out

    @staticmethod
    def _block(block, q, k, v, later_k, later_v, row_slots):
        """Probabilities of one block, and its inputs."""
        first, last, low, high = block
        num_keys, scale = k.shape[1], q.shape[-1] ** -0.5
        qb = _fold(q[first:last], num_keys) * scale
        kb, vb = k[low:high].transpose(0, 1), v[low:high].transpose(0, 1)
        dk, dv = (
            later_k[:, first:last].permute(2, 1, 0, 3),
            later_v[:, first:last].permute(2, 1, 0, 3),
        )
        allowed = torch.arange(low, high, device=q.device) <= row_slots[first:last, None]
        allowed = allowed.repeat_interleave(q.shape[1] // num_keys, dim=0)
        return _probabilities(qb, kb, dk, allowed), (qb, kb, vb, dk, dv, first, last)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, later_k, later_v, row_slots, out = ctx.saved_tensors
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (
            torch.zeros_like(k, dtype=torch.float32),
            torch.zeros_like(v, dtype=torch.float32),
        )
        grad_later_k, grad_later_v = torch.empty_like(later_k), torch.empty_like(later_v)
        num_keys, scale = k.shape[1], q.shape[-1] ** -0.5
        for block in ctx.blocks:
            prob, (qb, kb, vb, dk, dv, first, last) = _TttAttention._block(block, q, k, v, later_k, later_v, row_slots)
            low, high = block.first_slot, block.last_slot
            size, rows, steps = kb.shape[1], last - first, dk.shape[2]
            g = _fold(grad[first:last], num_keys)
            delta = (g.float() * _fold(out[first:last], num_keys).float()).sum(dim=-1, keepdim=True)
            by_row = (num_keys, rows, -1)
            grad_prefix = (prob[..., :size] * ((g @ vb.transpose(1, 2)).float() - delta)).to(q.dtype)
            gq = grad_prefix @ kb
            grad_k[low:high] += (grad_prefix.transpose(1, 2) @ qb).transpose(0, 1).float()
            grad_v[low:high] += (prob[..., :size].to(q.dtype).transpose(1, 2) @ g).transpose(0, 1).float()
            if steps:
                later_prob = prob[..., size:].view(*by_row, steps)  # [Hk, R, G, i]
                g_rows = g.view(*by_row, g.shape[-1])
                grad_later = (g_rows @ dv.transpose(2, 3)).float() - delta.view(*by_row, 1)
                grad_later = (later_prob * grad_later).to(q.dtype)
                gq = gq + (grad_later @ dk).reshape(gq.shape)
                q_rows = qb.view(*by_row, qb.shape[-1])
                grad_later_k[:, first:last] = (grad_later.transpose(2, 3) @ q_rows).permute(2, 1, 0, 3)
                grad_later_v[:, first:last] = (later_prob.to(q.dtype).transpose(2, 3) @ g_rows).permute(2, 1, 0, 3)
            grad_q[first:last] = _unfold(gq * scale, rows)
        return (
            grad_q,
            grad_k.to(k.dtype),
            grad_v.to(v.dtype),
            grad_later_k,
            grad_later_v,
            None,
            None,
        )


def ttt_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    later_k: Tensor,
    later_v: Tensor,
    row_slots: Tensor,
    blocks: Sequence[Block],
) -> Tensor:
    """Attention output [M, Hq, D].

    q: [M, Hq, D].  k, v: of the first step, for all slots, [N, Hk, D].  later_k, later_v: of later steps, for the
    query rows, [i, M, Hk, D].  row_slots: slot of each row, [M].  blocks: from `query_blocks`.
    """
    return _TttAttention.apply(q, k, v, later_k, later_v, row_slots, blocks)
