"""Batch-invariant matrix products: a row's result does not depend on the number of rows.

In half precision a token verified in a tree and alone gets different numbers, because the order in which a matrix
product sums depends on its number of rows.  On a given machine some row counts share one order.  They are found by
trial; products of other row counts are split or padded to these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

MAX_ROWS = 32  # largest row count tried
ENOUGH_ROWS = 8  # a plan with counts 1 to this is preferred to one that must pad single rows


@dataclass(frozen=True)
class RowPlan:
    """Row counts, ascending, whose products have bit-equal rows."""

    sizes: tuple[int, ...]

    def split(self, count: int) -> list[tuple[int, int]]:
        """(rows used, rows computed) of the calls that cover `count` rows; few calls matter more than few rows."""
        calls = []
        while count:
            size = next((size for size in self.sizes if size >= count), self.sizes[-1])
            calls.append((min(size, count), size))
            count -= calls[-1][0]
        return calls

    def apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x) for x [N, in], computed with these row counts."""
        outs, start = [], 0
        for used, size in self.split(x.shape[0]):
            part = x[start : start + used]
            if size > used:
                part = torch.cat((part, part.new_zeros(size - used, part.shape[1])))
            outs.append(function(part)[:used])
            start += used
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def trial_data(
    rows: int, out: int, width: int, dtype: torch.dtype, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Weights [out, width] and inputs [rows, width] that reveal different orders of summation.

    In the first pair, products of very different sizes nearly cancel, so a sum is as small as its rounding errors, and
    another order shows even after rounding to half precision.  The second pair is plain noise.
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

    trials: products, and their inputs.  The plan has the counts from 1 on that agree with single rows; if these are
    few, the counts up to N that agree with N rows.
    """
    count = trials[0][1].shape[0]
    num_single, num_full, steady = count, count, True  # counts 1 to num_single agree, and the last num_full ones
    for product, x in trials:
        alone = torch.cat([product(x[row : row + 1]) for row in range(count)])
        together = product(x)
        # a row's position in a call must not matter either
        steady &= product(x.roll(1, dims=0)).roll(-1, dims=0).equal(together)
        results = [product(x[:size].contiguous()) for size in range(1, count + 1)]
        agrees = [result.equal(alone[: len(result)]) for result in results]
        num_single = min(num_single, len(list(takewhile(bool, agrees))))
        agrees = [result.equal(together[: len(result)]) for result in reversed(results)]
        num_full = min(num_full, len(list(takewhile(bool, agrees))))
    if num_single < ENOUGH_ROWS and num_full > num_single and steady:
        return RowPlan(tuple(range(count - num_full + 1, count + 1)))
    return RowPlan(tuple(range(1, num_single + 1)))
