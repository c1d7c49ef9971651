"""Chooses the implementation of the kernels for a device and a dtype: native.c, torch, or torch with Triton on a GPU.

The choice is made once for each device and dtype, when the first target or drafter of them is loaded.  A new
implementation is a `Kernels` and a line in `_choose`; code outside this room does not depend on the choice.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from drafterforge.kernels import (
    attention,
    gate,
    gpu_kernels,
    low_rank,
    native,
    native_kernels,
    native_layers,
    native_linear,
    native_retrieval,
    native_trees,
    norm,
    trees,
    triton_support,
)
from drafterforge.kernels.attention import AttendLayer, Heads
from drafterforge.kernels.candidates import Candidates
from drafterforge.kernels.masks import Mask
from drafterforge.kernels.native_draft import PackedDraftLayer
from drafterforge.kernels.native_retrieval import LookUpSpec, SuffixArray

PackLinear = Callable[[Tensor, Tensor | None, bool, bool], native_linear.PackedLinear | None]
PackDecoder = Callable[[Sequence[native_layers.DecoderLayer], Heads, float], native_layers.PackedDecoder | None]
PackDraftLayer = Callable[
    [Tensor, Mapping[str, native_layers.Linear], Mapping[str, Tensor], Heads, float, bool, bool],
    PackedDraftLayer | None,
]
CandidatePool = Candidates | native_trees.NativeCandidates  # of a draft's candidates
LookUp = Callable[[array, SuffixArray | None, LookUpSpec, int], tuple[Tensor, Tensor]]
PackMLP = Callable[[Tensor, Tensor, float, Sequence[tuple[Tensor, Tensor]]], native.PackedMLP | None]


@dataclass(frozen=True)
class Kernels:
    """One implementation of every kernel; the torch implementation documents what each computes."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    grouped_attention: Callable[..., Tensor]
    rotated_attention: Callable[..., AttendLayer]
    argmax: Callable[[Tensor], Tensor]
    top_children: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    best_children: Callable[[Tensor, int], Tensor]
    ancestors: Callable[[Tensor, int], Tensor]
    walk: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
    pack_walks: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    tree_mask: Callable[[Tensor, Tensor, int, torch.dtype], Mask]  # only for these kernels, and `additive_mask`
    children_state: Callable[[Tensor, float], Tensor]
    reach: Callable[[Tensor, int], Tensor]
    worth: Callable[[Tensor, Tensor, Tensor], Tensor]
    candidates: Callable[[int, int, Tensor | None], CandidatePool]
    add_low_rank: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    add_expert_low_rank: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    pack_linear: PackLinear  # returns None if weights are not packed
    pack_decoder: PackDecoder  # returns None if kernels are called one by one
    pack_draft_layer: PackDraftLayer  # returns None likewise
    pack_mlp: PackMLP  # returns None if torch computes
    prompt_chunk: int  # prompt tokens of one pass: as few as take no longer, each, than those of a longer pass


TORCH = Kernels(
    norm.rms_norm,
    gate.swiglu,
    attention.grouped_attention,
    attention.rotated_attention,
    trees.argmax,
    trees.top_children,
    trees.best_children,
    trees.ancestors,
    trees.walk,
    trees.pack_walks,
    trees.tree_mask,
    trees.children_state,
    trees.reach,
    trees.worth,
    Candidates,
    low_rank.add_low_rank,
    low_rank.add_expert_low_rank,
    pack_linear=lambda weight, bias, rounds, int8: None,
    pack_decoder=lambda layers, heads, eps: None,
    pack_draft_layer=lambda embedding, linears, gains, heads, eps, norm_before_residual, norm_output: None,
    pack_mlp=lambda mean, scale, farthest, layers: None,
    prompt_chunk=128,
)
GPU = replace(
    TORCH,
    grouped_attention=gpu_kernels.grouped_attention,
    rotated_attention=gpu_kernels.rotated_attention,
    tree_mask=gpu_kernels.tree_mask,
    add_low_rank=gpu_kernels.add_low_rank,
    add_expert_low_rank=gpu_kernels.add_expert_low_rank,
    prompt_chunk=2048,
)
NATIVE = Kernels(
    native_kernels.rms_norm,
    native_kernels.swiglu,
    native_kernels.grouped_attention,
    native_kernels.rotated_attention,
    native_kernels.argmax,
    native_kernels.top_children,
    native_kernels.best_children,
    native_kernels.ancestors,
    native_kernels.walk,
    native_kernels.pack_walks,
    native_kernels.tree_mask,
    native_kernels.children_state,
    native_kernels.reach,
    native_kernels.worth,
    native_trees.NativeCandidates,
    low_rank.add_low_rank,
    low_rank.add_expert_low_rank,
    pack_linear=native_linear.PackedLinear,
    pack_decoder=native_layers.pack_decoder,
    pack_draft_layer=PackedDraftLayer,
    pack_mlp=native.PackedMLP,
    prompt_chunk=48,
)

MATRIX = replace(NATIVE, prompt_chunk=128)  # with a matrix unit


def _choose(device_type: str, dtype: torch.dtype) -> Kernels:
    if device_type != "cpu":
        return GPU
    if dtype != torch.float32 or not is_compiled():
        return TORCH
    return MATRIX if native.multiplies_matrices() else NATIVE


class _Choices(dict[tuple[str, torch.dtype], Kernels]):
    """Kernels by type of device and dtype, chosen at their first use."""

    def __missing__(self, key: tuple[str, torch.dtype]) -> Kernels:
        return self.setdefault(key, _choose(*key))


KERNELS = _Choices()


def kernels_of(x: Tensor) -> Kernels:
    """The kernels for the device and dtype of x."""
    return KERNELS[x.device.type, x.dtype]


def tree_kernels(x: Tensor) -> Kernels:
    """The kernels for trees on the device of x, whose scores are float32."""
    return KERNELS[x.device.type, torch.float32]


class RetrievalKernels(NamedTuple):
    """Retrieval, which the host computes whatever the target's device is; see `native_retrieval`."""

    look_up: LookUp
    likeliest: Callable[..., tuple[list[int], list[int], list[int], list[float]]]


def retrieval_kernels() -> RetrievalKernels | None:
    """None without native.c: then callers compute in Python."""
    return RetrievalKernels(native_retrieval.look_up, native_retrieval.likeliest) if is_compiled() else None


def is_compiled() -> bool:
    """Whether native.c was compiled, which serves float32 on a CPU."""
    return native.library() is not None


def multiplies_bfloat16() -> bool:
    """Whether native.c multiplies in bfloat16, which needs AVX512-BF16."""
    return native.multiplies_bfloat16()


def kernel_version() -> str:
    """The version of the kernels of this CPU; costs that another version was measured with are not comparable."""
    return native.version()


def describe_kernels(device: torch.device) -> str:
    """The implementation that decodes on a device, and why, in a few words."""
    if device.type != "cpu":
        reason = triton_support.why_not() if device.type == "cuda" else "Triton kernels need CUDA"
        return f"those of torch: {reason}" if reason else "those of torch, and Triton's where trials find them faster"
    if native.why_not():
        return f"those of torch: {native.why_not()}"
    return f"native.c{', with AMX' if native.multiplies_matrices() else ''}, compiled in {native.cache_dir()}"
