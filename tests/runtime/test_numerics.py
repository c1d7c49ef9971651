"""`numerics=invariant`: half precision decodes in trees and batches as it does token by token, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.errors import ConfigError
from drafterforge.kernels import linear as linear_room
from drafterforge.kernels.attention import additive
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.kernels.invariant import RowPlan, find_plan, trial_data
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics, invariance_obstacle
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.tree.grow import TreeShape
from tests.models import FAMILIES, tiny_drafter, tiny_target

PROMPTS = [[3, 14, 15, 9, 26, 5], [7], [4] * 17]
HALF = [torch.bfloat16, torch.float16]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("family", "dtype", "sampling"),
    [(family, torch.bfloat16, GREEDY) for family in FAMILIES]
    + [("llama", torch.float16, GREEDY), ("llama", torch.bfloat16, Sampling(temperature=1.0, seed=3))],
    ids=str,
)
def test_invariant_half_precision_decodes_as_autoregressively(family, dtype, sampling):
    target = tiny_target(family, dtype=dtype, eos_token_id=None)
    expected = Engine(target, numerics="invariant").generate(PROMPTS, 16, sampling)
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    for shape in ((5, 4, 1), (50, 3, 6)):
        answers = Engine(target, drafter, TreeShape(*shape), numerics="invariant").generate(PROMPTS, 16, sampling)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    alone = Engine(target, numerics="invariant").generate([PROMPTS[0]], 16, sampling)
    assert alone[0].tokens == expected[0].tokens


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 200), sizes=st.sets(st.integers(1, 32), min_size=1))
def test_a_plan_covers_all_rows_with_its_sizes(count, sizes):
    plan = RowPlan(tuple(sorted(sizes)))
    calls = plan.split(count)
    assert sum(num_rows for num_rows, _ in calls) == count
    assert all(size in sizes and 0 < num_rows <= size for num_rows, size in calls)
    x = torch.arange(count * 2.0).view(count, 2)
    seen = []
    out = plan.apply(lambda part: seen.append(part.shape[0]) or part * 2, x)
    assert out.equal(x * 2) and seen == [size for _, size in calls]


def summed(weight: torch.Tensor, parts: int):
    """A matrix product that sums in `parts` parts for more than four rows, and in one part otherwise."""

    def product(x: torch.Tensor) -> torch.Tensor:
        pieces = parts if x.shape[0] > 4 else 1
        chunks = zip(x.float().chunk(pieces, 1), weight.float().chunk(pieces, 1), strict=True)
        # row by row, so that only the order of summation differs
        terms = [torch.stack([right @ row for row in left]) for left, right in chunks]
        return torch.stack(terms).sum(dim=0).to(x.dtype)

    return product


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_another_order_of_summation_changes_rounded_results(dtype):
    trials = trial_data(32, 64, 256, dtype, torch.device("cpu"))
    for parts, sizes in ((1, range(1, 33)), (2, range(5, 33))):
        assert find_plan([(summed(weight, parts), x) for weight, x in trials]).sizes == tuple(sizes)
    weight, x = trials[0]  # one trial is enough
    assert find_plan([(summed(weight, 2), x)]).sizes == tuple(range(5, 33))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 32, 33, 70])
def test_an_invariant_product_is_batch_invariant(rows, dtype):
    linear = FrozenLinear(torch.randn(40, 24).to(dtype), torch.randn(40).to(dtype))
    x = torch.randn(rows, 24).to(dtype)
    together = linear(x, invariant=True)
    assert together.equal(torch.cat([linear(row[None], invariant=True) for row in x]))
    torch.testing.assert_close(together, linear(x))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_exact_attention_depends_only_on_unmasked_keys(dtype):
    q, k, v = torch.randn(2, 7, 4, 8), torch.randn(2, 2, 30, 8), torch.randn(2, 2, 30, 8)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    reads = torch.rand(2, 7, 30) < 0.5
    reads[:, :, 0] = True
    together = kernels_of(q).grouped_attention(q, k, v, additive(reads, dtype), exact=True)
    order = torch.randperm(30)
    moved = kernels_of(q).grouped_attention(
        q, k[:, :, order], v[:, :, order], additive(reads[:, :, order], dtype), exact=True
    )
    assert together.dtype == dtype and together.equal(moved)
    for row in range(2):
        for node in range(7):
            keys = reads[row, node]
            row_slice = slice(row, row + 1)
            alone = kernels_of(q).grouped_attention(
                q[row_slice, node : node + 1], k[row_slice][:, :, keys], v[row_slice][:, :, keys], None, exact=True
            )
            assert alone[0, 0].equal(together[row, node])
    wide = kernels_of(q).grouped_attention(q.float(), k.float(), v.float(), additive(reads, torch.float32))
    torch.testing.assert_close(together.float(), wide, atol=2e-2, rtol=2e-2)


def test_auto_is_invariant_in_half_precision_only():
    assert choose_numerics("auto", tiny_target()) == "fast"
    assert choose_numerics("auto", tiny_target(dtype=torch.bfloat16)) == "invariant"
    assert choose_numerics("fast", tiny_target(dtype=torch.bfloat16)) == "fast"
    assert choose_numerics("invariant", tiny_target()) == "invariant"
    with pytest.raises(ConfigError, match="numerics must be one of auto, fast, invariant, got 'exact'"):
        choose_numerics("exact", tiny_target())


def test_a_model_that_runs_through_transformers_modules_is_not_invariant():
    target = tiny_target(forward="modules", dtype=torch.bfloat16)
    assert choose_numerics("auto", target) == "fast"
    with pytest.raises(ConfigError, match=r"runs through its own modules.*type runtime.numerics=fast"):
        choose_numerics("invariant", target)


@pytest.mark.parametrize("name", ["qkv", "head", "norm", "attention", "pass"])
def test_an_operation_that_is_not_invariant_is_named(name, monkeypatch):
    target = tiny_target(dtype=torch.bfloat16)
    backbone = target.backbone

    def row_counting(function):
        """Adds the number of rows, on which no invariant operation may depend."""
        return lambda x, *rest, **named: function(x, *rest, **named) + x.shape[-3 if x.dim() == 4 else 0]

    if name == "qkv":
        monkeypatch.setattr(backbone.layers[0], "qkv", _RowCounting(backbone.layers[0].qkv))
    elif name == "head":
        monkeypatch.setattr(backbone, "head", _RowCounting(backbone.head))
    elif name == "norm":
        kernels = replace(backbone.kernels, rms_norm=row_counting(backbone.kernels.rms_norm))
        monkeypatch.setattr(backbone, "kernels", kernels)
    elif name == "attention":
        kernels = replace(backbone.kernels, grouped_attention=row_counting(backbone.kernels.grouped_attention))
        monkeypatch.setattr(backbone, "kernels", kernels)
    else:
        monkeypatch.setattr(backbone.layers[3], "down", _RowCounting(backbone.layers[3].down))
    expected = {"norm": "RMS norm", "pass": "a whole pass"}.get(name, name)
    assert expected in invariance_obstacle(target)
    assert choose_numerics("auto", target) == "fast"


class _RowCounting:
    """A linear layer whose product depends on the number of rows."""

    def __init__(self, linear: FrozenLinear) -> None:
        self.linear, self.weight = linear, linear.weight

    def __call__(self, x, invariant=False, added=None):
        """The product, and the number of rows."""
        return self.linear(x, invariant, added) + x.shape[0] / 8


def test_a_cpu_without_half_precision_widens_weights_once(monkeypatch):
    monkeypatch.setattr(linear_room, "computes_bfloat16", lambda device: False)
    weight, x = torch.randn(40, 24).bfloat16(), torch.randn(6, 24).bfloat16()
    linear = FrozenLinear(weight)
    assert linear.packing == (2, torch.float32)
    assert linear(x).equal((x.float() @ weight.float().T).bfloat16())
