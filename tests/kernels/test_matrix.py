"""Products by the matrix unit of a processor (AMX) are those of its vectors, in any number of rows."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from drafterforge.kernels import native, native_linear

pytestmark = pytest.mark.usefixtures("matrix_unit")
ROWS = (*range(1, 19), 31, 32, 33, 47, 48, 65)


@pytest.fixture
def matrix_unit() -> None:
    torch.manual_seed(0)
    if not native.multiplies_matrices():
        pytest.skip("no AMX")


def packed(weight: torch.Tensor, bias: torch.Tensor | None, size: int) -> native_linear.PackedLinear:
    layer = native_linear.PackedLinear(weight, bias, rounds=size == 2, int8=size == 1)
    assert layer.size == size
    return layer


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("out", "depth"), [(64, 64), (70, 576), (1, 1536), (200, 1152)])
def test_sums_are_those_of_vectors_and_do_not_depend_on_other_rows(out, depth, size, monkeypatch):
    weight, bias = torch.randn(out, depth).bfloat16().float(), torch.randn(out)
    x, added = torch.randn(max(ROWS), depth), torch.randn(max(ROWS), out)
    layer = packed(weight, bias, size)
    assert layer.matrix and layer.projection.matrix
    product = layer(x)
    for rows in ROWS:
        assert layer(x[-rows:]).equal(product[-rows:])
    torch.testing.assert_close(layer(x, added), product + added)
    monkeypatch.setattr(native, "multiplies_matrices", lambda: False)
    by_vectors = packed(weight, bias, size)
    assert not by_vectors.matrix
    if size == 1:  # its sums are exact
        assert by_vectors(x).equal(product)
    torch.testing.assert_close(by_vectors(x), product, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize(("size", "depth"), [(1, 32), (1, 100), (2, 16), (2, 48), (2, 62)])
def test_depths_that_do_not_fill_a_register_are_left_to_vectors(size, depth):
    weight, x = torch.randn(40, depth).bfloat16().float(), torch.randn(20, depth)
    layer = packed(weight, None, size)
    assert not layer.matrix
    reference = F.linear(x, weight)
    assert (layer(x) - reference).norm() <= 0.03 * reference.norm()


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_additions_of_experts_are_added_in_full_precision(size, experts):
    weight, rank = torch.randn(70, 128).bfloat16().float(), 4
    down, up = torch.randn(experts, rank, 128), torch.randn(experts, 70, rank)
    base = packed(weight, None, size)
    layer = native_linear.PackedAddition(base, *((down, up) if experts > 1 else (down[0], up[0])))
    for rows in (1, 5, 11, 32, 40):
        x = torch.randn(experts, rows, 128)
        expected = base(x.flatten(0, 1)) + (x @ down.transpose(1, 2) @ up.transpose(1, 2)).flatten(0, 1)
        torch.testing.assert_close(layer(x.flatten(0, 1)), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_leaves_the_others_alone(odd, size):
    layer, x = packed(torch.randn(40, 64).bfloat16().float(), None, size), torch.randn(20, 64)
    expected = layer(x)
    x[7, 33] = odd
    product = layer(x)
    assert not product[7].isfinite().any()
    rest = torch.arange(20) != 7
    assert product[rest].equal(expected[rest])


def test_threads_share_a_product():
    layer, x = packed(torch.randn(3000, 576).bfloat16().float(), None, 2), torch.randn(33, 576)
    threads, product = torch.get_num_threads(), layer(x)
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert layer(x).equal(product)
    finally:
        torch.set_num_threads(threads)


def test_torchs_own_products_by_the_unit_are_left_alone():
    layer, x = packed(torch.randn(300, 576).bfloat16().float(), None, 2), torch.randn(33, 576)
    weight, inputs = torch.randn(300, 576).bfloat16(), torch.randn(70, 576).bfloat16()
    product, by_torch = layer(x), F.linear(inputs, weight)
    for _ in range(3):
        assert F.linear(inputs, weight).equal(by_torch) and layer(x[:5]).equal(product[:5]) and layer(x).equal(product)


def test_callers_on_several_threads_get_the_same_sums():
    layer, x = packed(torch.randn(3000, 576).bfloat16().float(), None, 2), torch.randn(33, 576)
    product = layer(x)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda rows: layer(x[:rows]).equal(product[:rows]), [1, 33, 17, 16] * 8))


def test_a_forked_process_may_use_the_unit():
    layer, x = packed(torch.randn(300, 576).bfloat16().float(), None, 2), torch.randn(33, 576)
    layer(x)
    process = multiprocessing.get_context("fork").Process(target=layer, args=(x,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
