"""What the layouts of other programs share: facts about the target, lossless weights, folders that appear whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from drafterforge import __version__
from drafterforge.artifacts.folder import write_folder
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.errors import ArtifactError, shorten
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.targets.load import locate_target
from drafterforge.targets.stored import read_config
from drafterforge.targets.taps import taps_of

FILES = ("config.json", "model.safetensors")
EMBEDDING = "model.embed_tokens.weight"
MADE_BY = "drafterforge"  # key in the header of the weights; other programs do not read it
DEPTH = 3  # drafted tokens a cycle in the commands that are printed, as in most published ones


@dataclass(frozen=True)
class TargetFacts:
    """A target as far as layouts name it, read without loading the model."""

    name: str  # its folder under runs/
    model: str  # what a server is told to load: a hub id, or a folder
    fingerprint: str
    config: PretrainedConfig
    architectures: list[str]  # classes of the model, as its config names them
    embedding: Tensor  # [V, H], as stored
    taps: tuple[int, ...]  # layers whose input drafters read

    @property
    def dtype(self) -> str:
        """In which the target was published."""
        dtype = getattr(self.config, "dtype", None)
        return str(dtype).removeprefix("torch.") if dtype is not None else "bfloat16"


def read_target(config: TargetConfig) -> TargetFacts:
    """The facts of the target that `config` names; it is fetched when it is not here."""
    name, folder = locate_target(config)
    given = config.source == "hf" and not Path(config.model).expanduser().is_dir()
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} holds no config.json; wanted a Hugging Face model folder")
    try:
        read = read_config(folder)
    except ArtifactError:
        raise
    except Exception as error:  # transformers has its own for every kind of mistake
        raise ArtifactError(
            f"{folder / 'config.json'} describes no model that transformers knows ({shorten(error, 200)})"
        ) from error
    decoder = read.get_text_config()
    return TargetFacts(
        name=name,
        model=config.model if given else str(folder.resolve()),
        fingerprint=fingerprint(folder),
        config=decoder,
        architectures=list(read.architectures or []),
        embedding=target_embedding(folder),
        taps=taps_of(decoder.num_hidden_layers, True, config.taps),
    )


def target_embedding(folder: Path) -> Tensor:
    """The input embedding [V, H] of the model in `folder`, as stored."""
    weights = TargetWeights(folder)
    names = [name for name in weights.paths if name.endswith("embed_tokens.weight")]
    if EMBEDDING in names:  # beside it, checkpoints with prediction layers of their own have more
        names = [EMBEDDING]
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ArtifactError(f"{folder} has {len(names)} tensors named *embed_tokens.weight ({found}); wanted one")
    with safe_open(weights.paths[names[0]], "pt") as file:
        return file.get_tensor(names[0])


def lossless_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """bfloat16 if every weight is a bfloat16 number, as those of trained drafters are; float32 for merged experts."""
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    exact = all(torch.equal(tensor.bfloat16().to(tensor.dtype), tensor) for tensor in floats)
    return torch.bfloat16 if exact else torch.float32


def served_spec(spec: DrafterSpec, config: PretrainedConfig) -> DrafterSpec:
    """The spec with the target's longest sequence, unless the rope's frequencies depend on that number."""
    served = replace(spec, max_positions=config.max_position_embeddings)
    (ours, scale), (theirs, other) = spec.rotary(), served.rotary()
    same = scale == other and torch.equal(ours, theirs) and spec.rope_parameters.get("rope_type") != "dynamic"
    return served if same else spec


def tensors_of(drafter: Eagle3Drafter, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Weights and maps under published names; dtype: of the weights, None: the smallest that loses nothing."""
    state = {name: tensor.detach().cpu() for name, tensor in drafter.state_dict().items()}
    dtype = dtype or lossless_dtype(state)
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def dtype_name(tensors: Mapping[str, Tensor]) -> str:
    """The dtype of the weights in `tensors_of`."""
    return str(tensors["fc.weight"].dtype).removeprefix("torch.")


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], layout: str) -> None:
    """Fill `folder` with `config.json` and `model.safetensors`."""
    header = {"format": "pt", MADE_BY: __version__, "layout": layout}
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata=header)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


@contextlib.contextmanager
def write_export(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a folder to fill that becomes `path` when it is whole; only an earlier export is ever replaced."""
    with write_folder(path, lambda: refuse_export(path, overwrite)) as folder:
        yield folder


def refuse_export(path: Path, overwrite: bool) -> None:
    """Raises if what is at `path` must stay: anything but an earlier export, and that too without `overwrite`."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_export(path):
        raise ArtifactError(f"{path} is there and was not written by an export; type out=OTHER, or move it")
    if not overwrite:
        raise ArtifactError(f"{path} exists already; type overwrite=true to replace it, or out=OTHER")


def is_export(path: Path) -> bool:
    """Whether a folder holds what `write_model` wrote, and nothing else."""
    if not path.is_dir() or sorted(one.name for one in path.iterdir()) != sorted(FILES):
        return False
    try:
        with safe_open(path / "model.safetensors", "pt") as file:
            return MADE_BY in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
