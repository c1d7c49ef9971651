"""Training of LoRA experts with peft: low-rank additions to a frozen generalist."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import nn

from drafterforge.config.drafter import LoraConfig
from drafterforge.drafters.eagle3.lora import CONFIG, WEIGHTS, LowRank
from drafterforge.drafters.eagle3.model import Eagle3Drafter

PREFIX = "base_model.model."  # of tensor names in peft's files


def add_adapter(drafter: Eagle3Drafter, config: LoraConfig, seed: int) -> Eagle3Drafter:
    """Freeze the drafter and add zero-initialised LoRA weights; changes and returns it."""
    torch.manual_seed(seed)
    return peft.inject_adapter_in_model(_peft_config(config), drafter)


def load_additions(drafter: Eagle3Drafter, folder: Path) -> Eagle3Drafter:
    """Load peft's `folder` into the LoRA weights of `add_adapter`, of equal rank; changes and returns the drafter."""
    tensors = {key.removeprefix(PREFIX): tensor for key, tensor in load_file(folder / WEIGHTS).items()}
    keys = peft.set_peft_model_state_dict(drafter, tensors)
    assert not keys.unexpected_keys and not [key for key in keys.missing_keys if "lora_" in key]
    return drafter


def save_adapter(folder: Path, drafter: Eagle3Drafter, config: LoraConfig, generalist: str) -> None:
    """Write peft's two files, in bfloat16.  generalist: name of the base drafter."""
    folder.mkdir()
    peft_config = _peft_config(config)
    peft_config.base_model_name_or_path, peft_config.inference_mode = generalist, True
    peft_config.save_pretrained(folder)
    path = folder / CONFIG  # peft's set of target modules has an order of its own in every process
    values = json.loads(path.read_bytes())
    values["target_modules"] = sorted(values["target_modules"])
    path.write_text(json.dumps(values, indent=2, sort_keys=True))
    state = peft.get_peft_model_state_dict(drafter, save_embedding_layers=False)
    tensors = {PREFIX + key: value.detach().to("cpu", torch.bfloat16) for key, value in state.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def is_adapted(linear: nn.Module) -> bool:
    """Whether the module is a projection with a LoRA addition."""
    return isinstance(linear, LoraLayer)


def addition_of(linear: nn.Module) -> LowRank | None:
    """The LoRA addition to a projection, through which its weights are trained; None if it has none."""
    if not is_adapted(linear):
        return None
    (name,) = linear.active_adapters
    return LowRank(linear.lora_A[name].weight, linear.lora_B[name].weight * linear.scaling[name])


def base_of(linear: nn.Module) -> nn.Linear:
    """The projection without its LoRA addition."""
    return linear.get_base_layer() if is_adapted(linear) else linear


def _peft_config(config: LoraConfig) -> peft.LoraConfig:
    targets = list(config.targets)
    return peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, bias="none")
