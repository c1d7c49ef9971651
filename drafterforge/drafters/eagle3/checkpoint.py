"""Reading and writing drafters in the SGLang layout: `config.json` + `model.safetensors`; strict on load.

A head whose rows are the target's embedding is not stored a second time: the config says so, and exports have it whole.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.artifacts.typed import read_json
from drafterforge.config.hints import typed_taps
from drafterforge.drafters.eagle3.lora import ADAPTER, Adapter, load_adapter, merge
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec, check_spec
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.targets.load import Target

HEAD = "lm_head.weight"
TIED = "head_rows"  # key of a config whose drafter has no head of its own
EMBEDDING = "target_embedding"  # what it says


def save_drafter(folder: Path, drafter: Eagle3Drafter, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write weights in `dtype` (maps stay int64 and bool) and the config beside them."""
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
    """The target's embedding [V, H] of every draft id, [W, H]."""
    return embedding[d2t.to(embedding.device) + torch.arange(d2t.numel(), device=embedding.device)]


def load_drafter(folder: Path, embedding: Tensor) -> Eagle3Drafter:
    """The drafter in `folder`, fp32, on the device of `embedding` ([V, H], the target's); a LoRA expert comes merged.

    Raises ArtifactError as `load_full` and `load_adapter` do.
    """
    drafter, adapter = load_expert(folder, embedding)
    return drafter if adapter is None else merge(drafter, adapter)


def load_expert(folder: Path, embedding: Tensor) -> tuple[Eagle3Drafter, Adapter | None]:
    """The generalist that the LoRA expert in `folder` adds to, and its additions; or a drafter and None."""
    generalist = generalist_of(folder)
    if generalist is None:
        return load_full(folder, embedding), None
    drafter = load_full(generalist, embedding)
    return drafter, load_adapter(folder / ADAPTER, drafter)


def generalist_of(folder: Path) -> Path | None:
    """The whole drafter, beside it or shipped, that the LoRA expert in `folder` adds to; None for a whole drafter."""
    if not (folder / ADAPTER).is_dir():
        return None
    parents = [parent for parent in Manifest.read(folder).parents if parent["kind"] == "drafters"]
    if len(parents) != 1:
        raise ArtifactError(f"{folder} names {len(parents)} drafters that it adds to, wanted one; train it again")
    name, digest = parents[0]["name"], parents[0]["sha256"]
    sibling = folder.absolute().with_name(name)
    candidates = [
        path for path in (sibling, SHIPPED / sibling.parts[-3] / "drafters" / name) if (path / MANIFEST).is_file()
    ]
    if not candidates:
        raise ArtifactError(f"{folder} adds to the drafter {quote(name)}, which is not beside it; put it at {sibling}")
    digests = [Manifest.read(path).digest for path in candidates]
    if digest in digests:
        return candidates[digests.index(digest)]
    raise ArtifactError(
        f"{folder} adds to a {quote(name)} with digest {digest[:8]}, but {candidates[0]} has {digests[0][:8]}; "
        f"type drafterforge train-drafter domain=... name={folder.name} drafter=lora overwrite=true"
    )


def load_full(folder: Path, embedding: Tensor) -> Eagle3Drafter:
    """The drafter in `folder` with weights of its own.

    Raises ArtifactError on any missing, unexpected or misshapen tensor and on an impossible vocabulary map.
    """
    path = folder / "model.safetensors"
    config = read_json(folder / "config.json")
    try:
        spec = DrafterSpec.from_config(config, str(folder / "config.json"))
        check_spec(spec, str(folder / "config.json"))
        tensors = load_file(path)
    except (OSError, TypeError, ValueError, AttributeError, IndexError, SafetensorError) as error:
        raise ArtifactError(
            f"{folder} is no readable drafter ({shorten(error, 200)}); wanted config.json and model.safetensors"
        ) from None
    tensors.pop("embed_tokens.weight", None)  # some writers add the target's
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
    with torch.device("meta"):  # what is described is compared with what is stored before it costs memory
        expected = Eagle3Drafter(spec, embedding).state_dict()
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
    drafter = Eagle3Drafter(spec, embedding)
    if tied:
        tensors[HEAD] = embedding_rows(embedding, tensors["d2t"])
    drafter.load_state_dict(tensors)
    return drafter.to(embedding.device)


def check_vocabulary(d2t: Tensor, t2d: Tensor, source: str) -> None:
    """Refuse a map whose ids are out of range or repeated, or that t2d contradicts."""
    ids = d2t.long() + torch.arange(d2t.numel())
    if ids.min() < 0 or ids.max() >= t2d.numel() or ids.unique().numel() != ids.numel():
        raise ArtifactError(f"{source}: d2t does not map draft ids to distinct target ids below {t2d.numel()}")
    if not torch.equal(t2d.bool().nonzero()[:, 0], ids.sort().values):
        raise ArtifactError(f"{source}: t2d and d2t name different tokens")


def check_taps(folder: Path, drafter: Eagle3Drafter, target: Target) -> None:
    """Refuse a drafter that reads other layers of the target."""
    if drafter.spec.tap_layers != target.backbone.taps:
        raise ArtifactError(
            f"{folder} reads the inputs of layers {drafter.spec.tap_layers}; this target is tapped at "
            f"{target.backbone.taps}; type {typed_taps(drafter.spec.tap_layers)}, or train a drafter for it"
        )
