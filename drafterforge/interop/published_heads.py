"""Imports published EAGLE-3 heads; checks every tensor's name and shape, loads no pickle and runs no foreign code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from drafterforge.artifacts.atomic import file_sha256
from drafterforge.artifacts.json_input import read_json
from drafterforge.drafters.eagle3.checkpoint import HEAD, check_vocabulary
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import check_spec
from drafterforge.drafters.registry import KINDS
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.interop.layout import TargetFacts, served_spec, target_head
from drafterforge.interop.published_spec import HeadConfig, explain_taps, head_spec, open_config, read_rope
from drafterforge.interop.vllm.layouts import OURS, THEIRS

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONVERSION = (
    'drafterforge loads no pickle; convert it where you trust it: python -c "import torch; from safetensors.torch '
    "import save_file; save_file({k: v.contiguous() for k, v in torch.load('pytorch_model.bin', weights_only=True)"
    ".items()}, 'model.safetensors')\""
)
FC_NORM = "fc_norm.0.weight"
UNSUPPORTED_VARIANTS = {  # part of a tensor name -> what a head with it does
    "q_norm": "norms queries and keys",
    "k_norm": "norms queries and keys",
    "bias": "has biases",
    "input_norm": "norms features before fc",
}


@dataclass(frozen=True)
class ForeignHead:
    """An imported head."""

    drafter: Eagle3Drafter
    format: str  # eagle3 | speculators, or of another kind
    files: dict[str, str]  # sha256 of each file
    notes: list[str]  # lines to print
    kind: str = "eagle3"


def fetch_head(path: str, revision: str | None = None) -> tuple[Path, str | None]:
    """Local folder and revision of a head; JSON and safetensors files of a hub id are downloaded."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        if revision:
            raise ArtifactError(f"revision= is for hub ids, but path={path} is a folder; leave revision= out")
        return folder, None
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ArtifactError(f"path={path} is no folder and no hub id; wanted an EAGLE-3 head such as path=OWNER/NAME")
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(path, revision=revision, allow_patterns=["*.json", "*.safetensors"])
    except Exception as error:  # the hub client raises many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArtifactError(f"cannot download path={path} from the hub ({reason}); a local folder works too") from error
    return Path(snapshot), Path(snapshot).name


def read_head(
    folder: Path,
    target: TargetFacts,
    format: str = "auto",
    layer_ids: Sequence[int] = (),
    norm_before_residual: bool | None = None,
) -> ForeignHead:
    """The head in `folder` as a drafter for `target`; ArtifactError if anything does not fit.

    layer_ids, norm_before_residual: see `head_spec`.
    """
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} has no config.json; wanted an EAGLE-3 head such as path=OWNER/NAME")
    config = read_json(folder / "config.json")
    for kind in KINDS.values() if isinstance(config, dict) else ():
        if kind.publishes(config):
            if format != "auto" or layer_ids or norm_before_residual is not None:
                raise ArtifactError(
                    f"{folder} is a block drafter; format=, layer_ids= and norm_before_residual= are for EAGLE-3 "
                    "heads, leave them out"
                )
            paths, (config, notes) = weight_files(folder), _with_rope(config, str(folder))
            tensors = _with_target_head(read_tensors(paths), target)
            module = kind.read_published(config, tensors, target.config, target.embedding, str(folder))
            if module.spec.tap_layers != target.taps:
                raise ArtifactError(f"{folder} {explain_taps(module.spec.tap_layers, target.taps)}")
            return ForeignHead(module, module.spec.method, hashes_of(folder, paths), notes, kind.name)
    head = open_config(config, str(folder / "config.json"), format)
    paths = weight_files(folder)
    tensors = _rename_layer(read_tensors(paths), folder)
    _check_embedding(tensors.pop("embed_tokens.weight", None), target, head)
    if "lm_head.weight" not in tensors or tensors["lm_head.weight"].dim() != 2:
        raise ArtifactError(f"{folder} lacks lm_head.weight, [draft vocabulary, width]; wanted an EAGLE-3 head")
    rows = tensors["lm_head.weight"].shape[0]
    spec = head_spec(head, target.config, rows, target.taps, layer_ids, norm_before_residual)
    check_spec(spec, head.source)
    served = served_spec(spec, target.config)
    head.notes += _note_positions(spec.max_positions, served.max_positions, target.config.max_position_embeddings)
    _complete_vocabulary(tensors, target.config.vocab_size, folder)
    with torch.device("meta"):  # compare shapes before allocating memory
        expected = Eagle3Drafter(served, target.embedding).state_dict()
    _check_tensors(tensors, expected, folder)
    check_vocabulary(tensors["d2t"], tensors["t2d"], str(folder))
    drafter = Eagle3Drafter(served, target.embedding)
    drafter.load_state_dict(tensors)
    return ForeignHead(drafter.eval(), head.format, hashes_of(folder, paths), head.notes)


def hashes_of(folder: Path, paths: Sequence[Path]) -> dict[str, str]:
    """sha256 of the config and these files, by name."""
    return {path.name: file_sha256(path) for path in (folder / "config.json", *paths)}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors file of a head, or the shards that its index lists."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        listed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
            raise ArtifactError(f"{folder / INDEX} has no weight_map; wanted the index of safetensors shards")
        names = sorted(set(listed.values()))
        if invalid := [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]:
            raise ArtifactError(
                f"{folder / INDEX} lists {quote(invalid[0])}; wanted safetensors files in the same folder"
            )
    elif (folder / SINGLE).is_file():
        names = [SINGLE]
    elif (folder / "pytorch_model.bin").is_file():
        raise ArtifactError(f"{folder} has its weights in pytorch_model.bin; {CONVERSION}")
    else:
        raise ArtifactError(f"{folder} holds no {SINGLE}; heads published as pytorch_model.bin: {CONVERSION}")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ArtifactError(f"{folder} lacks {shorten(', '.join(missing))}, which {INDEX} lists")
    return [folder / name for name in names]


def read_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of all files; ArtifactError if a name occurs twice."""
    tensors_by_name: dict[str, Tensor] = {}
    for path in paths:
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtifactError(f"{path} is not a readable safetensors file ({shorten(error)})") from None
        if repeated := sorted(tensors_by_name.keys() & tensors.keys()):
            raise ArtifactError(f"{path} holds {shorten(repeated[0])}, which another file of the head holds too")
        tensors_by_name |= tensors
    return tensors_by_name


def _note_positions(positions: int, served: int, target_positions: int) -> list[str]:
    """Notes on a head whose max_position_embeddings is not the target's."""
    if positions == target_positions:
        return []
    if served == positions:
        return [
            f"max_position_embeddings is {positions}, the target's {target_positions}; it stays, as the head's rope "
            "depends on it"
        ]
    copied = "; 2048 is the value of EAGLE's own configs, and servers that read it truncate the text there"
    note = f"max_position_embeddings was {positions} and is now the target's {target_positions}"
    return [note + copied * (positions == 2048)]


def _with_target_head(tensors: dict[str, Tensor], target: TargetFacts) -> dict[str, Tensor]:
    """The tensors with the head of an untied target, [V, H], which published block drafters leave out."""
    is_whole = HEAD in tensors or "d2t" in tensors or target.config.tie_word_embeddings
    head = None if is_whole else target_head(target.folder)
    return tensors if head is None else {**tensors, HEAD: head}


def _rename_layer(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Tensors under our names; speculators calls the decoder layer `layers.0`."""
    names = {(OURS + name.removeprefix(THEIRS) if name.startswith(THEIRS) else name): name for name in tensors}
    if len(names) < len(tensors):
        raise ArtifactError(f"{folder} holds its layer both as {OURS}* and as {THEIRS}*; wanted one of them")
    return {ours: tensors[name] for ours, name in names.items()}


def _with_rope(config: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """The config of a block drafter with `rope_parameters` of its layers, and lines to print."""
    layer = config.get("transformer_layer_config", config)
    if not isinstance(layer, dict):
        return config, []  # its reader refuses it
    head = HeadConfig(source, "block", config, layer)
    layer = {**layer, "rope_parameters": read_rope(head)}
    return (
        {**config, "transformer_layer_config": layer} if "transformer_layer_config" in config else layer
    ), head.notes


def _check_embedding(embedding: Tensor | None, target: TargetFacts, head: HeadConfig) -> None:
    """Drafters share the target's embedding: refuse a head whose own embedding differs by more than its dtype."""
    if embedding is None:
        return
    expected = target.embedding
    if embedding.shape != expected.shape:
        raise head.refuse(
            f"comes with embed_tokens.weight {list(embedding.shape)}; the target's is {list(expected.shape)}"
        )
    dtype = embedding.dtype if embedding.element_size() <= expected.element_size() else expected.dtype
    if not torch.equal(embedding.to(dtype), expected.to(dtype)):
        gap = float((embedding.float() - expected.float()).abs().max())
        raise head.refuse(
            f"comes with an embedding of its own (embed_tokens.weight differs from the target's by up to {gap:.3g}), "
            "but drafters share the target's; check that the head was trained for this target"
        )
    head.notes.append("embed_tokens.weight equals the target's and is not stored again")


def _complete_vocabulary(tensors: dict[str, Tensor], vocab_size: int, folder: Path) -> None:
    """Add missing vocabulary maps: d2t is the identity, t2d follows from d2t."""
    rows = tensors["lm_head.weight"].shape[0]
    if "d2t" not in tensors:
        if rows != vocab_size:
            raise ArtifactError(
                f"{folder} lacks d2t, and lm_head.weight has {rows} rows; only a head with one row for each of the "
                f"target's {vocab_size} tokens needs no map"
            )
        tensors["d2t"] = torch.zeros(rows, dtype=torch.long)
    for name in ("d2t", "t2d"):
        if name in tensors and tensors[name].is_floating_point():
            raise ArtifactError(f"{folder}: {name} is of {tensors[name].dtype}; wanted whole numbers")
    if tensors["d2t"].shape != (rows,):
        raise ArtifactError(f"{folder}: d2t is {list(tensors['d2t'].shape)}, wanted [{rows}]")
    tensors["d2t"] = tensors["d2t"].long()
    if "t2d" not in tensors:
        ids = tensors["d2t"] + torch.arange(rows)
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool)
        tensors["t2d"][ids[(ids >= 0) & (ids < vocab_size)]] = True
    tensors["t2d"] = tensors["t2d"].bool()


def _check_tensors(tensors: dict[str, Tensor], expected: dict[str, Tensor], folder: Path) -> None:
    """ArtifactError on a tensor that is unexpected, missing, misshapen, not finite or of an unsupported dtype."""
    if unexpected := sorted(tensors.keys() - expected.keys()):
        parts = {part for name in unexpected for part in name.split(".")}
        kinds = sorted({description for part, description in UNSUPPORTED_VARIANTS.items() if part in parts})
        explanation = f": this head {' and '.join(kinds)}, which drafterforge does not support" if kinds else ""
        if "fc_norm" in parts and FC_NORM not in expected:
            explanation = ": its config does not set fc_norm=true, without which servers ignore these norms"
        raise ArtifactError(f"{folder} holds unexpected tensors, {shorten(', '.join(unexpected), 300)}{explanation}")
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ArtifactError(f"{folder} lacks {', '.join(missing)}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ArtifactError(f"{folder}: {name} is {list(tensor.shape)}, wanted {list(expected[name].shape)}")
        if expected[name].is_floating_point():
            if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
                raise ArtifactError(f"{folder}: {name} is of {tensor.dtype}; wanted bfloat16, float16 or float32")
            if not tensor.isfinite().all():
                raise ArtifactError(f"{folder}: {name} holds numbers that are not finite")
