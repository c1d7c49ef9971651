"""Matrix products whose rows do not depend on how many there are.

In half precision a tree of nodes and a single token give different numbers, because a matrix product adds in an order
that depends on its number of rows.  On a given machine some row counts share one order.  They are found by trial, and
any other count is split into, or padded to, those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

MAX_ROWS = 32  # largest row count tried
ENOUGH_ROWS = 8  # a plan up to here is not given up for one that must pad single rows


@dataclass(frozen=True)
class RowPlan:
    """Row counts, ascending, that give bit-equal rows."""

    sizes: tuple[int, ...]

    def split(self, count: int) -> list[tuple[int, int]]:
        """(rows taken, rows computed) of the calls that cover `count` rows: few calls rather than few rows."""
        calls = []
        while count:
            size = next((size for size in self.sizes if size >= count), self.sizes[-1])
            calls.append((min(size, count), size))
            count -= calls[-1][0]
        return calls

    def apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x) for x [N, in], computed in these row counts."""
        outs, start = [], 0
        for taken, size in self.split(x.shape[0]):
            part = x[start : start + taken]
            if size > taken:
                part = torch.cat((part, part.new_zeros(size - taken, part.shape[1])))
            outs.append(function(part)[:taken])
            start += taken
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def telling_data(rows: int, out: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A weight [out, width] and inputs [rows, width] whose products all but cancel.

    What is left of a sum is then as small as the error of adding it up, so that another order shows even after
    rounding to half precision.
    """
    generator = torch.Generator().manual_seed(0)
    half = width // 2
    weight, x = torch.randn(out, width, generator=generator), torch.randn(rows, width, generator=generator)
    order = torch.randperm(width, generator=generator)
    weight[:, half : 2 * half] = weight[:, :half]
    x[:, half : 2 * half] = -x[:, :half]
    x[torch.arange(rows), torch.randint(0, width, (rows,), generator=generator)] *= 1 + 2**-6
    return weight[:, order].to(device=device, dtype=dtype), x[:, order].to(device=device, dtype=dtype)


def find_plan(function: Callable[[Tensor], Tensor], x: Tensor) -> RowPlan:
    """The row counts up to those of x [N, width] for which `function` gives bit-equal rows.

    The counts from one on that agree with one row at a time, or, where those are few, the counts up to N that agree
    with N rows.
    """
    count = x.shape[0]
    alone = torch.cat([function(x[row : row + 1]) for row in range(count)])
    whole = function(x)
    moved = function(x.roll(1, dims=0)).roll(-1, dims=0)  # a row's place in a call must not matter either
    results = {size: function(x[:size].contiguous()) for size in range(1, count + 1)}
    as_one = list(takewhile(lambda size: results[size].equal(alone[:size]), range(1, count + 1)))
    as_whole = list(takewhile(lambda size: results[size].equal(whole[:size]), range(count, 0, -1)))[::-1]
    give_up_one = len(as_one) < ENOUGH_ROWS and len(as_whole) > len(as_one) and moved.equal(whole)
    return RowPlan(tuple(as_whole if give_up_one else as_one))
