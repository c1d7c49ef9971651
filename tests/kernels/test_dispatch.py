"""The kernels are chosen in one place, once, and nobody else asks which they are."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest
import torch

import drafterforge
from drafterforge import pipelines
from drafterforge.kernels import dispatch, native, triton_support
from drafterforge.kernels.dispatch import (
    GPU,
    KERNELS,
    NATIVE,
    TORCH,
    Kernels,
    describe_kernels,
    kernels_of,
    tree_kernels,
)

IMPLEMENTATIONS = ("native", "native_kernels", "native_trees", "gpu_kernels", "triton_")
TORCH_ONLY = {"prompt_chunk", "add_low_rank", "add_expert_low_rank"}  # fields that native.c does not implement
ON_GPU = ("grouped_attention", "rotated_attention", "tree_mask", "add_low_rank", "add_expert_low_rank")
FILES = [path for room in (drafterforge, pipelines) for path in Path(room.__file__).parent.rglob("*.py")]


def imported(path: Path) -> set[str]:
    """Names of all that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def test_nobody_outside_the_room_imports_an_implementation():
    kernels = Path(native.__file__).parent
    hidden = {f"drafterforge.kernels.{name}" for name in IMPLEMENTATIONS}
    assert hidden & imported(kernels / "dispatch.py")
    outside = [path for path in FILES if kernels not in path.parents]
    assert len(outside) > 100
    for path in outside:
        assert not {name for name in imported(path) if any(name.startswith(module) for module in hidden)}, path


@pytest.mark.parametrize("name", sorted({field.name for field in dataclasses.fields(Kernels)} - TORCH_ONLY))
def test_every_kernel_has_a_twin_of_torch_with_the_same_arguments(name):
    fast, plain = getattr(NATIVE, name), getattr(TORCH, name)
    assert fast is not plain and list(inspect.signature(fast).parameters) == list(inspect.signature(plain).parameters)


@pytest.mark.parametrize("name", ON_GPU)
def test_a_kernel_of_a_gpu_has_a_twin_of_torch_with_the_same_arguments(name):
    fast, plain = getattr(GPU, name), getattr(TORCH, name)
    assert fast is not plain and list(inspect.signature(fast).parameters) == list(inspect.signature(plain).parameters)


def test_kernels_are_chosen_once_for_a_device_and_a_dtype(monkeypatch):
    keys, choose = [], dispatch._choose
    monkeypatch.setattr(dispatch, "_choose", lambda *key: keys.append(key) or choose(*key))
    before, compiled = dict(KERNELS), dispatch.MATRIX if native.multiplies_matrices() else NATIVE
    KERNELS.clear()
    try:
        for dtype in (torch.float32, torch.bfloat16) * 2:
            x = torch.zeros(2, 2, dtype=dtype)
            assert kernels_of(x) is (compiled if dtype == torch.float32 and native.library() is not None else TORCH)
        assert keys == [("cpu", torch.float32), ("cpu", torch.bfloat16)]
        assert tree_kernels(torch.zeros(2, dtype=torch.long)) is kernels_of(torch.zeros(2))
        assert kernels_of(torch.zeros(2, device="meta")) is GPU
    finally:
        KERNELS.clear()
        KERNELS.update(before)


def test_without_compiled_kernels_those_of_torch_are_chosen_and_doctor_says_why(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(native, "why_not", lambda: "made up")
    assert dispatch._choose("cpu", torch.float32) is TORCH
    assert describe_kernels(torch.device("cpu")) == "those of torch: made up"
    monkeypatch.setattr(triton_support, "why_not", lambda: "made up, too")
    assert describe_kernels(torch.device("cuda")) == "those of torch: made up, too"
    monkeypatch.setattr(triton_support, "why_not", lambda: None)
    assert describe_kernels(torch.device("cuda")) == "those of torch, and Triton's where trials find them faster"


@pytest.mark.skipif(native.library() is None, reason="no compiled kernels")
@pytest.mark.parametrize(("unit", "chunk"), [(True, 128), (False, 48)])
def test_a_matrix_unit_is_named_and_reads_longer_parts_of_prompts(unit, chunk, monkeypatch):
    monkeypatch.setattr(native, "multiplies_matrices", lambda: unit)
    assert dispatch._choose("cpu", torch.float32).prompt_chunk == chunk
    assert ("with AMX" in dispatch.describe_kernels(torch.device("cpu"))) is unit
