"""Matrix products whose rows do not depend on how many there are.

In half precision a tree of nodes and a single token give different numbers, because a matrix product adds in an order
that depends on its number of rows.  On a given machine some row counts share one order.  They are found by trial, and
any other count is split into, or padded to, those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def trial_data(
    rows: int, out: int, width: int, dtype: torch.dtype, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Weights [out, width] and inputs [rows, width] that tell orders of summation apart.

    In the first, products of very different sizes all but cancel: what is left of a sum is then as small as the error
    of adding it up, so that another order shows even after rounding to half precision.  The second is plain noise.
    """
    generator = torch.Generator().manual_seed(0)
    half = width // 2

    def draw(count: int) -> Tensor:
        return torch.randn(count, width, generator=generator)

    weight, x, order = draw(out), draw(rows), torch.randperm(width, generator=generator)
    x *= 2.0 ** torch.randint(-8, 9, x.shape, generator=generator)
    weight[:, half : 2 * half] = weight[:, :half]
    x[:, half : 2 * half] = -x[:, :half]
    x[torch.arange(rows), x.abs().argmin(dim=1)] *= 1 + 2**-6
    pairs = [(weight[:, order], x[:, order]), (draw(out), draw(rows))]
    return [(weight.to(device=device, dtype=dtype), x.to(device=device, dtype=dtype)) for weight, x in pairs]


def find_plan(trials: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]]) -> RowPlan:
    """The row counts up to N for which products of inputs [N, width] have bit-equal rows in every trial.

    trials: products, and what to apply them to.  Either the counts from one on that agree with one row at a time or,
    where those are few, the counts up to N that agree with N rows.
    """
    count = trials[0][1].shape[0]
    as_one, as_whole, steady = count, count, True  # counts 1 to as_one agree, so do the last as_whole ones
    for product, x in trials:
        alone = torch.cat([product(x[row : row + 1]) for row in range(count)])
        whole = product(x)
        # a row's place in a call must not matter either
        steady &= product(x.roll(1, dims=0)).roll(-1, dims=0).equal(whole)
        results = [product(x[:size].contiguous()) for size in range(1, count + 1)]
        same = [found.equal(alone[: len(found)]) for found in results]
        as_one = min(as_one, len(list(takewhile(bool, same))))
        same = [found.equal(whole[: len(found)]) for found in reversed(results)]
        as_whole = min(as_whole, len(list(takewhile(bool, same))))
    if as_one < ENOUGH_ROWS and as_whole > as_one and steady:
        return RowPlan(tuple(range(count - as_whole + 1, count + 1)))
    return RowPlan(tuple(range(1, as_one + 1)))
