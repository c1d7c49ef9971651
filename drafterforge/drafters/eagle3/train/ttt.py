"""Training-time test: unrolls the drafter as in decoding, on its own outputs.

Axes: N slots of a packed batch, M slots that start inside an answer, I steps, P teacher positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.train.attention import Block, Span, query_blocks, ttt_attention


@dataclass(frozen=True)
class PackedBatch:
    """Concatenated sequences of N tokens in total."""

    tokens: Tensor  # [N] target ids
    positions: Tensor  # [N] position of each token in its sequence
    loss_mask: Tensor  # [N] bool: tokens of an answer; always on the host, as it decides the shapes of a step
    lengths: list[int]  # of the sequences
    features: Tensor  # low|mid|high at every position, [N, 3H]
    states: Tensor  # the target's final normed states, [N, H]
    argmax: Tensor  # the target's most probable next id, [N]

    def to(self, device: torch.device) -> PackedBatch:
        """The batch on a device, except `loss_mask`."""
        moved = {
            name: value.to(device) if isinstance(value, Tensor) and name != "loss_mask" else value
            for name, value in vars(self).items()
        }
        return PackedBatch(**moved)

    def without_answers(self) -> PackedBatch:
        """The batch with nothing to predict, so it adds 0 to every count."""
        return replace(self, loss_mask=torch.zeros_like(self.loss_mask))


@dataclass(frozen=True)
class Layout:
    """The slots that start a draft, their predictions at each step, and the blocks of their attention."""

    rows: Tensor  # slot of each row, [M]
    blocks: list[Block]
    teacher_positions: Tensor  # [P] positions whose next token belongs to an answer
    slots: Tensor  # [I, P] row that predicts from a teacher position at each step, or -1; on the host


def lay_out(batch: PackedBatch, steps: int) -> Layout:
    """Rows, blocks and teacher positions of a batch.

    Slot j pairs token j+1 with feature j.  A row is a slot whose token j+1 and predicted token j+2 belong to the same
    answer, as the root of a cycle is always an answer token.  At step i it predicts token j+2+i from teacher j+1+i.
    All of it is computed on the host, so that no shape is read from the device; rows and positions are then moved.
    """
    mask = batch.loss_mask
    total = mask.numel()
    lengths = torch.tensor(batch.lengths)
    ends = lengths.cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    following = torch.zeros(total, dtype=torch.bool)
    following[:-1] = mask[1:] & (sequence[1:] == sequence[:-1])  # the next token belongs to an answer of this sequence
    teacher_positions = following.nonzero()[:, 0]
    # run[t]: length of the gapless run of answer tokens that ends at t, t included
    index = torch.arange(total)
    broken = torch.where(mask, torch.full_like(index, -1), index).cummax(0).values
    begins = ends[sequence] - lengths[sequence]
    run = torch.minimum(index - broken, index - begins + 1)
    # step i reads teacher t from slot t-1-i, whose tokens t-i .. t+1 must all be answer tokens of one run
    run_next = torch.zeros_like(run)
    run_next[:-1] = run[1:]
    row_of_slot = torch.full((total + 1,), -1, dtype=torch.long)
    rows = teacher_positions[run_next[teacher_positions] >= 2] - 1
    rows = rows[rows >= begins[rows.clamp(min=0)]] if rows.numel() else rows
    row_of_slot[rows] = torch.arange(rows.numel())
    slots = torch.full((steps, teacher_positions.numel()), -1, dtype=torch.long)
    for step in range(steps):
        start = teacher_positions - 1 - step
        reachable = (run_next[teacher_positions] >= step + 2) & (start >= begins[teacher_positions])
        slots[step] = torch.where(reachable, row_of_slot[start.clamp(min=0)], -1)
    spans, first_row, first_slot = [], 0, 0
    in_sequence = (
        torch.bincount(sequence[rows], minlength=len(batch.lengths)).tolist()
        if rows.numel()
        else [0] * len(batch.lengths)
    )
    for length, count in zip(batch.lengths, in_sequence, strict=True):
        if count:
            spans.append(Span(first_row, first_row + count, first_slot))
        first_row, first_slot = first_row + count, first_slot + length
    device, blocks = batch.tokens.device, list(query_blocks(spans, rows.tolist()))
    return Layout(rows.to(device), blocks, teacher_positions.to(device), slots)


def join_batches(batches: Sequence[PackedBatch]) -> PackedBatch:
    """The batches laid end to end."""
    columns = {name: [getattr(batch, name) for batch in batches] for name in PackedBatch.__dataclass_fields__}
    lengths = [length for part in columns.pop("lengths") for length in part]
    return PackedBatch(lengths=lengths, **{name: torch.cat(parts) for name, parts in columns.items()})


def join_layouts(layouts: Sequence[Layout], num_slots: Sequence[int]) -> Layout:
    """The layout of batches laid end to end.  num_slots: of each batch."""
    rows, blocks, positions, slots, first_row, first_slot = [], [], [], [], 0, 0
    for layout, count in zip(layouts, num_slots, strict=True):
        rows.append(layout.rows + first_slot)
        positions.append(layout.teacher_positions + first_slot)
        slots.append(torch.where(layout.slots < 0, -1, layout.slots + first_row))
        shift = (first_row, first_row, first_slot, first_slot)
        blocks += [Block(*(a + b for a, b in zip(block, shift, strict=True))) for block in layout.blocks]
        first_row, first_slot = first_row + layout.rows.numel(), first_slot + count
    return Layout(torch.cat(rows), blocks, torch.cat(positions), torch.cat(slots, dim=1))


def unroll(drafter: Eagle3Drafter, batch: PackedBatch, layout: Layout, steps: int, recompute: bool) -> Tensor:
    """Normed layer outputs of all rows at all steps, [I, M, H].

    recompute: checkpoint each step: recompute its intermediate values in the backward pass.
    """
    rows, blocks = layout.rows, layout.blocks
    last = batch.tokens.numel() - 1
    later: list[tuple[Tensor, Tensor]] = []
    outputs = []
    run = (
        (lambda step, *inputs: checkpoint(step, *inputs, use_reentrant=False))
        if recompute
        else (lambda step, *inputs: step(*inputs))
    )

    def first_step(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = drafter.fuse(features)
        keys_values = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_values.extend((k, v))
            no_keys = k.new_empty(0, q.shape[0], *k.shape[1:])
            return ttt_attention(q, k, v, no_keys, no_keys, rows, blocks)

        embeddings = drafter.embed(batch.tokens[(torch.arange(last + 1, device=rows.device) + 1).clamp(max=last)])
        rope = drafter.rotary(batch.positions, hidden.dtype)
        return drafter.layer(embeddings.to(hidden.dtype), hidden, rope, attend, rows), *keys_values

    hidden, k, v = run(first_step, batch.features)
    outputs.append(hidden)
    for step in range(1, steps):
        tokens = batch.tokens[(rows + 1 + step).clamp(max=last)]
        earlier_k = [pair[0] for pair in later]
        earlier_v = [pair[1] for pair in later]

        def next_step(
            hidden: Tensor, tokens=tokens, step=step, earlier_k=earlier_k, earlier_v=earlier_v
        ) -> tuple[Tensor, ...]:
            keys_values = []

            def attend(q: Tensor, step_k: Tensor, step_v: Tensor) -> Tensor:
                keys_values.extend((step_k, step_v))
                return ttt_attention(
                    q,
                    k,
                    v,
                    torch.stack([*earlier_k, step_k]),
                    torch.stack([*earlier_v, step_v]),
                    rows,
                    blocks,
                )

            rope = drafter.rotary(batch.positions[rows] + step, hidden.dtype)
            return drafter.layer(drafter.embed(tokens).to(hidden.dtype), hidden, rope, attend), *keys_values

        hidden, new_k, new_v = run(next_step, hidden)
        later.append((new_k, new_v))
        outputs.append(hidden)
    return drafter.normed(torch.stack(outputs))
