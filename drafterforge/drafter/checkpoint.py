"""Reading and writing drafters in the SGLang layout: `config.json` + `model.safetensors`; strict on load."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.drafter.eagle3 import Eagle3Drafter
from drafterforge.drafter.spec import DrafterSpec
from drafterforge.errors import ArtifactError


def save_drafter(folder: Path, drafter: Eagle3Drafter, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write weights in `dtype` (maps stay int64 and bool) and the config beside them."""
    tensors = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = drafter.spec.to_config(str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_drafter(folder: Path, embedding: Tensor) -> Eagle3Drafter:
    """The drafter in `folder`, fp32, on the device of `embedding` ([V, H], the target's).

    Raises ArtifactError on any missing, unexpected or misshapen tensor and on an impossible vocabulary map.
    """
    path = folder / "model.safetensors"
    try:
        spec = DrafterSpec.from_config(json.loads((folder / "config.json").read_text()), str(folder / "config.json"))
        tensors = load_file(path)
    except (OSError, json.JSONDecodeError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} is no readable drafter ({error}); wanted config.json and model.safetensors"
        ) from None
    tensors.pop("embed_tokens.weight", None)  # some writers add the target's
    if tuple(embedding.shape) != (spec.vocab_size, spec.target_hidden_size):
        raise ArtifactError(
            f"{folder} drafts for a target of vocabulary {spec.vocab_size} and width {spec.target_hidden_size}; "
            f"this target has {embedding.shape[0]} and {embedding.shape[1]}"
        )
    drafter = Eagle3Drafter(spec, embedding)
    wanted = drafter.state_dict()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise ArtifactError(f"{path} lacks {', '.join(missing)}")
    if unexpected := sorted(tensors.keys() - wanted.keys()):
        raise ArtifactError(f"{path} holds unexpected tensors: {', '.join(unexpected)}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ArtifactError(f"{path}: {name} is {list(tensor.shape)}, wanted {list(wanted[name].shape)}")
    check_vocabulary(tensors["d2t"], tensors["t2d"], str(path))
    drafter.load_state_dict(tensors)
    return drafter.to(embedding.device)


def check_vocabulary(d2t: Tensor, t2d: Tensor, source: str) -> None:
    """Refuse a map whose ids are out of range or repeated, or that t2d contradicts."""
    ids = d2t.long() + torch.arange(d2t.numel())
    if ids.min() < 0 or ids.max() >= t2d.numel() or ids.unique().numel() != ids.numel():
        raise ArtifactError(f"{source}: d2t does not map draft ids to distinct target ids below {t2d.numel()}")
    if not torch.equal(t2d.bool().nonzero()[:, 0], ids.sort().values):
        raise ArtifactError(f"{source}: t2d and d2t name different tokens")
