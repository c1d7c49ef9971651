"""Low-rank additions of several experts as two grouped matrix products in Triton.

A program multiplies a block of rows with the weights of one expert.  Where each row has an expert of its own, programs
pass over rows of other experts, and end at once if no row of their block has their expert: no weight is copied, no row
is sorted, and the weights of unused experts are not read.
Axes: N experts, R rows, I inputs, O outputs, r rank, P parts of the inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafterforge.kernels.triton_support import block_size, num_parts, operand_type

WIDTH = 64  # inputs, or outputs, of one step of a program
MAX_PARTS = 16


def add_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """See `low_rank.add_low_rank`."""
    count = down.shape[0]
    return _add(out.expand(count, -1, -1), x.expand(count, -1, -1), down, up, None)


def add_expert_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor, experts: Tensor) -> Tensor:
    """See `low_rank.add_expert_low_rank`."""
    return _add(out[None], x[None], down, up, experts.contiguous())[0]


def _add(added: Tensor, x: Tensor, down: Tensor, up: Tensor, experts: Tensor | None) -> Tensor:
    """added + x @ down.T @ up, [N or 1, R, O].

    added: [N or 1, R, O].  x: [N or 1, R, I].  down: [N, r, I].  up: [N, r, O].  experts: [R], with one matrix of rows.
    """
    added, x, down, up = (part if part.stride(-1) == 1 else part.contiguous() for part in (added, x, down, up))
    (count, rank, width), (groups, rows, outputs) = down.shape, added.shape
    block = block_size(rows, 16, 64)
    blocks = triton.cdiv(rows, block)
    parts = num_parts(groups * blocks, min(MAX_PARTS, triton.cdiv(width, 4 * WIDTH)), x.device)
    part_width = triton.cdiv(triton.cdiv(width, parts), WIDTH) * WIDTH
    low = torch.empty(parts, groups, rows, rank, dtype=torch.float32, device=x.device)
    out = torch.empty(groups, rows, outputs, dtype=added.dtype, device=x.device)
    sizes = {
        "ROWS": block,
        "RANK": block_size(rank, 16, 1024),
        "WIDTH": WIDTH,
        "HAS_EXPERTS": experts is not None,
        "OPERAND": operand_type(x.dtype),
    }
    # a group's stride is 0 where all experts share one matrix of rows
    group = 0 if experts is not None else 1
    experts = out if experts is None else experts
    _project_down[count, blocks, parts](
        x,
        down,
        experts,
        low,
        rows,
        rank,
        width,
        part_width,
        x.stride(0) * group,
        x.stride(1),
        *down.stride()[:2],
        low.stride(0),
        low.stride(1) * group,
        **sizes,
    )
    _project_up[count, blocks, triton.cdiv(outputs, WIDTH)](
        low,
        up,
        experts,
        added,
        out,
        rows,
        rank,
        outputs,
        parts,
        low.stride(0),
        low.stride(1) * group,
        *up.stride()[:2],
        added.stride(0) * group,
        added.stride(1),
        out.stride(0) * group,
        **sizes,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _project_down(
    x,
    down,
    experts,
    low,
    num_rows,
    rank,
    width,
    part_width,
    x_group,
    x_row,
    down_expert,
    down_rank,
    low_part,
    low_group,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_EXPERTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Rows times one part of an expert's `down`; programs: [N, blocks of rows, P]."""
    expert, part = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    if HAS_EXPERTS:
        inside = inside & (tl.load(experts + rows, mask=inside, other=-1) == expert)
    rows = rows.to(tl.int64)
    ranks, steps = tl.arange(0, RANK), tl.arange(0, WIDTH)
    in_rank = ranks < rank
    if tl.max(inside.to(tl.int32), axis=0) > 0:
        sums = tl.zeros([ROWS, RANK], tl.float32)
        for step in range(0, part_width, WIDTH):
            inputs = part * part_width + step + steps
            in_width = inputs < width
            states = tl.load(
                x + expert * x_group + rows[:, None] * x_row + inputs[None, :],
                mask=inside[:, None] & in_width[None, :],
                other=0.0,
            )
            weights = tl.load(
                down + expert * down_expert + ranks[None, :] * down_rank + inputs[:, None],
                mask=in_width[:, None] & in_rank[None, :],
                other=0.0,
            )
            sums += tl.dot(states.to(OPERAND), weights.to(OPERAND), input_precision="ieee")
        target = low + part * low_part + expert * low_group + rows[:, None] * rank + ranks[None, :]
        tl.store(target, sums, mask=inside[:, None] & in_rank[None, :])


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def _project_up(
    low,
    up,
    experts,
    added,
    out,
    num_rows,
    rank,
    num_outputs,
    num_parts,
    low_part,
    low_group,
    up_expert,
    up_rank,
    added_group,
    added_row,
    out_group,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_EXPERTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Adds low-rank rows times an expert's `up`; programs: [N, blocks of rows, blocks of outputs]."""
    expert = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    if HAS_EXPERTS:
        inside = inside & (tl.load(experts + rows, mask=inside, other=-1) == expert)
    rows = rows.to(tl.int64)
    ranks, outputs = tl.arange(0, RANK), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    in_rank, in_outputs = ranks < rank, outputs < num_outputs
    if tl.max(inside.to(tl.int32), axis=0) > 0:
        in_low = inside[:, None] & in_rank[None, :]
        source = low + expert * low_group + rows[:, None] * rank + ranks[None, :]
        states = tl.zeros([ROWS, RANK], tl.float32)
        for part in range(0, num_parts):
            states += tl.load(source + part * low_part, mask=in_low, other=0.0)
        weights = tl.load(
            up + expert * up_expert + ranks[:, None] * up_rank + outputs[None, :],
            mask=in_rank[:, None] & in_outputs[None, :],
            other=0.0,
        )
        in_out = inside[:, None] & in_outputs[None, :]
        base = tl.load(
            added + expert * added_group + rows[:, None] * added_row + outputs[None, :], mask=in_out, other=0.0
        )
        # torch rounds the low-rank rows to the dtype, too
        sums = base.to(tl.float32) + tl.dot(states.to(OPERAND), weights.to(OPERAND), input_precision="ieee")
        target = out + expert * out_group + rows[:, None] * num_outputs + outputs[None, :]
        tl.store(target, sums.to(out.dtype.element_ty), mask=in_out)
