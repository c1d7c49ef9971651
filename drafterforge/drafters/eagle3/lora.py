"""LoRA experts: low-rank additions to a generalist's projections, stored in peft's files but read without peft.

Axes: r rank, in and out widths of a projection.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from drafterforge.artifacts.json_input import read_json
from drafterforge.config.drafter import LORA_TARGETS
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.errors import ArtifactError, quote, shorten

ADAPTER = "adapter"  # folder of an expert that holds peft's files
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR_NAME = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
# Options of peft beyond W + (alpha / r) B A, each with the value that disables it.
_UNSUPPORTED = {"use_dora": False, "bias": "none", "fan_in_fan_out": False, "lora_bias": False}


@dataclass(frozen=True)
class LowRank:
    """An addition to one projection: x @ (up @ down).T."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r], scaled

    def delta(self) -> Tensor:
        """The dense addition to the weight, [out, in]."""
        return self.up @ self.down


def concatenate_low_rank(parts: list[LowRank | None], widths: list[int]) -> LowRank:
    """One addition to the concatenation of projections with the same input.

    parts: None for a projection without an addition.  widths: out of each part; unused if there is only one.
    """
    if len(parts) == 1:
        return parts[0]
    first = next(part for part in parts if part is not None)
    ups = [first.up.new_zeros(width, 0) if part is None else part.up for part, width in zip(parts, widths, strict=True)]
    return LowRank(torch.cat([part.down for part in parts if part is not None]), torch.block_diag(*ups))


Adapter = dict[str, LowRank]  # by the name of the projection, as in `Eagle3Drafter`


def load_adapter(folder: Path, drafter: Eagle3Drafter) -> Adapter:
    """The additions in peft's `folder`, fp32; ArtifactError if they do not fit the drafter."""
    path = folder / WEIGHTS
    try:
        config = read_json(folder / CONFIG)
        tensors = load_file(path)
        rank = int(config["r"])
        scale = float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
    except ArtifactError as error:
        raise ArtifactError(f"{folder} is not a readable adapter ({error}); wanted {CONFIG} and {WEIGHTS}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, ArithmeticError) as error:
        raise ArtifactError(
            f"{folder} is not a readable adapter ({quote(error)}); wanted {CONFIG} and {WEIGHTS}"
        ) from None
    unsupported = [
        f"{key}={quote(config[key])}"
        for key, plain in _UNSUPPORTED.items()
        if config.get(key, plain) not in (plain, None)
    ]
    unsupported += [key for key in ("rank_pattern", "alpha_pattern", "modules_to_save") if config.get(key)]
    if config.get("peft_type") != "LORA" or unsupported:
        description = ", ".join([str(config.get("peft_type")), *unsupported])
        raise ArtifactError(f"{folder / CONFIG} describes {shorten(description)}; wanted plain LORA of one rank")
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if not (match := _TENSOR_NAME.fullmatch(key)):
            raise ArtifactError(f"{path} holds an unexpected tensor: {shorten(key)}")
        parts.setdefault(match[1], {})[match[2]] = tensor.float().to(drafter.embedding.device)
    modules = dict(drafter.named_modules())
    for name, part in parts.items():
        module = modules.get(name)
        if not isinstance(module, nn.Linear) or name.split(".")[-1] not in LORA_TARGETS:
            raise ArtifactError(f"{path} adds to {shorten(name)}, which is not a projection that LoRA experts adapt")
        expected = {"A": (rank, module.in_features), "B": (module.out_features, rank)}
        shapes = {side: tuple(tensor.shape) for side, tensor in part.items()}
        if shapes != expected:
            raise ArtifactError(f"{path}: {name} has shapes {shapes}, wanted {expected}")
    if not parts:
        raise ArtifactError(f"{path} holds no tensors; wanted lora_A and lora_B of some projection")
    return {name: LowRank(part["A"], part["B"] * scale) for name, part in parts.items()}


@torch.no_grad()
def merge(drafter: Eagle3Drafter, adapter: Adapter) -> Eagle3Drafter:
    """A copy of the drafter with the additions merged into its weights; the embedding stays shared."""
    memo = {id(drafter.embedding): drafter.embedding}
    expert = copy.deepcopy(drafter, memo)
    for name, addition in adapter.items():
        expert.get_submodule(name).weight.add_(addition.delta())
    return expert
