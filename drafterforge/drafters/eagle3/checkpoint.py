"""Reads and writes drafters in the SGLang layout, `config.json` and `model.safetensors`; loading is strict.

A head that equals rows of the target's embedding is not stored, the config marks it as tied. Exports contain the head.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import SHIPPED, is_folder_name
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.config.hints import taps_flag
from drafterforge.drafters.eagle3.lora import ADAPTER, Adapter, load_adapter, merge
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec, check_spec
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.targets.load import Target

HEAD = "lm_head.weight"
TIED = "head_rows"  # config key of drafters whose head is not stored
EMBEDDING = "target_embedding"  # its value


def save_drafter(folder: Path, drafter: Eagle3Drafter, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the weights in `dtype` (vocabulary maps stay int64 and bool) and the config."""
    tensors = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    config = drafter.spec.to_config(str(dtype).removeprefix("torch."))
    if torch.equal(tensors[HEAD], embedding_rows(drafter.embedding, tensors["d2t"]).to(dtype).cpu()):
        config[TIED] = EMBEDDING
        del tensors[HEAD]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def embedding_rows(embedding: Tensor, d2t: Tensor) -> Tensor:
    """Rows of the target's embedding [V, H] for all draft ids, [W, H]."""
    return embedding[d2t.to(embedding.device) + torch.arange(d2t.numel(), device=embedding.device)]


def load_drafter(folder: Path, embedding: Tensor) -> Eagle3Drafter:
    """The drafter in `folder`, fp32, on the device of `embedding` ([V, H], the target's); LoRA experts are merged.

    Raises ArtifactError as `load_full` and `load_adapter` do.
    """
    drafter, adapter = load_expert(folder, embedding)
    return drafter if adapter is None else merge(drafter, adapter)


def load_expert(folder: Path, embedding: Tensor) -> tuple[Eagle3Drafter, Adapter | None]:
    """The generalist and the adapter of the LoRA expert in `folder`; for a drafter with full weights, it and None."""
    generalist = generalist_of(folder)
    if generalist is None:
        return load_full(folder, embedding), None
    drafter = load_full(generalist, embedding)
    return drafter, load_adapter(folder / ADAPTER, drafter)


def generalist_of(folder: Path) -> Path | None:
    """Folder of the LoRA expert's generalist, a sibling of `folder` or shipped; None if `folder` has full weights."""
    if not (folder / ADAPTER).is_dir():
        return None
    parents = [parent for parent in Manifest.read(folder).parents if parent["kind"] == "drafters"]
    if len(parents) != 1:
        raise ArtifactError(f"{folder} names {len(parents)} generalists, wanted one; train it again")
    name, digest = parents[0]["name"], parents[0]["sha256"]
    if not is_folder_name(name):
        raise ArtifactError(f"{folder} names the generalist {quote(name)}, wanted a plain folder name; train it again")
    sibling = folder.absolute().with_name(name)
    candidates = [
        path for path in (sibling, SHIPPED / sibling.parts[-3] / "drafters" / name) if (path / MANIFEST).is_file()
    ]
    if not candidates:
        raise ArtifactError(f"{folder} needs its generalist {quote(name)}; put it at {sibling}")
    digests = [Manifest.read(path).digest for path in candidates]
    if digest in digests:
        return candidates[digests.index(digest)]
    raise ArtifactError(
        f"{folder} needs its generalist {quote(name)} with digest {digest[:8]}, but {candidates[0]} has "
        f"{digests[0][:8]}; type `drafterforge train-drafter domain=... name={folder.name} drafter=lora overwrite=true`"
    )


def load_full(
    folder: Path,
    embedding: Tensor,
    spec_class: type[DrafterSpec] = DrafterSpec,
    drafter_class: Callable[..., Eagle3Drafter] = Eagle3Drafter,
) -> Eagle3Drafter:
    """The drafter in `folder`, which must have full weights.

    Raises ArtifactError on a missing, unexpected or misshapen tensor and on an invalid vocabulary map.
    """
    path = folder / "model.safetensors"
    config = read_json(folder / "config.json")
    try:
        spec = spec_class.from_config(config, str(folder / "config.json"))
        check_spec(spec, str(folder / "config.json"))
        tensors = load_file(path)
    except (OSError, TypeError, ValueError, AttributeError, IndexError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} is not a readable drafter ({shorten(error, 200)}); wanted config.json and model.safetensors"
        ) from None
    tensors.pop("embed_tokens.weight", None)  # some programs store the target's
    tied = config.get(TIED)
    if tied not in (None, EMBEDDING) or (tied and HEAD in tensors):
        raise ArtifactError(
            f"{folder / 'config.json'} has {TIED}={quote(tied)}; wanted {EMBEDDING!r}, and no {HEAD} beside it"
        )
    if tuple(embedding.shape) != (spec.vocab_size, spec.target_hidden_size):
        raise ArtifactError(
            f"{folder} drafts for a target of vocabulary {spec.vocab_size} and width {spec.target_hidden_size}; "
            f"this target has {embedding.shape[0]} and {embedding.shape[1]}"
        )
    with torch.device("meta"):  # compare shapes before allocating memory
        expected = drafter_class(spec, embedding).state_dict()
    if tied:
        del expected[HEAD]
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ArtifactError(f"{path} lacks {', '.join(missing)}")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise ArtifactError(f"{path} holds unexpected tensors: {shorten(', '.join(unexpected), 300)}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ArtifactError(f"{path}: {name} is {list(tensor.shape)}, wanted {list(expected[name].shape)}")
    check_vocabulary(tensors["d2t"], tensors["t2d"], str(path))
    drafter = drafter_class(spec, embedding)
    if tied:
        tensors[HEAD] = embedding_rows(embedding, tensors["d2t"])
    drafter.load_state_dict(tensors)
    return drafter.to(embedding.device)


def check_vocabulary(d2t: Tensor, t2d: Tensor, source: str) -> None:
    """Raise ArtifactError if ids of d2t are out of range or repeated, or t2d contradicts it."""
    ids = d2t.long() + torch.arange(d2t.numel())
    if ids.min() < 0 or ids.max() >= t2d.numel() or ids.unique().numel() != ids.numel():
        raise ArtifactError(f"{source}: d2t does not map draft ids to distinct target ids below {t2d.numel()}")
    if not torch.equal(t2d.bool().nonzero()[:, 0], ids.sort().values):
        raise ArtifactError(f"{source}: t2d and d2t name different tokens")


def check_taps(folder: Path, drafter: Eagle3Drafter, target: Target) -> None:
    """Raise ArtifactError if the drafter reads other target layers than the target taps."""
    if drafter.spec.tap_layers != target.backbone.taps:
        raise ArtifactError(
            f"{folder} reads the inputs of layers {drafter.spec.tap_layers}; this target is tapped at "
            f"{target.backbone.taps}; type {taps_flag(drafter.spec.tap_layers)}, or train a drafter for it"
        )
