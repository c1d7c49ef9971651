"""Shared parts of all layouts: facts about the target, lossless dtypes, atomic writing of a folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig

from drafterforge import __version__
from drafterforge.artifacts.folder import write_folder
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import HEAD
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
MADE_BY = "drafterforge"  # key in the header of the weights that marks our exports; other programs ignore it
DEPTH = 3  # drafted tokens per cycle in printed commands, as in most published ones


class UnfitError(ArtifactError):
    """A drafter that a format cannot hold."""


@dataclass(frozen=True)
class TargetFacts:
    """Facts about a target that layouts need, read without loading the model."""

    name: str  # its folder under runs/
    model: str  # that a server loads: a hub id or a folder; of another revision than the hub's default, its snapshot
    fingerprint: str
    config: PretrainedConfig
    architectures: list[str]  # model classes, from its config
    embedding: Tensor  # [V, H], in the stored dtype
    taps: tuple[int, ...]  # layers whose inputs are the features
    folder: Path  # of its files

    @property
    def dtype(self) -> str:
        """The dtype that the target was published in."""
        dtype = getattr(self.config, "dtype", None)
        return str(dtype).removeprefix("torch.") if dtype is not None else "bfloat16"


def read_target(config: TargetConfig) -> TargetFacts:
    """The facts of a target, which is downloaded if it is not local."""
    name, folder = locate_target(config)
    is_on_hub = config.source == "hf" and not Path(config.model).expanduser().is_dir()
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} holds no config.json; wanted a Hugging Face model folder")
    try:
        model_config = read_config(folder)
    except ArtifactError:
        raise
    except Exception as error:  # transformers raises many types
        raise ArtifactError(
            f"{folder / 'config.json'} does not describe a model that transformers supports ({shorten(error, 200)})"
        ) from error
    decoder = model_config.get_text_config()
    return TargetFacts(
        name=name,
        model=config.model if is_on_hub and not config.revision else str(folder.resolve()),
        fingerprint=fingerprint(folder),
        config=decoder,
        architectures=list(model_config.architectures or []),
        embedding=target_embedding(folder),
        taps=taps_of(decoder.num_hidden_layers, True, config.taps),
        folder=folder,
    )


def target_embedding(folder: Path) -> Tensor:
    """The input embedding [V, H] of the model in `folder`, in the stored dtype."""
    weights = TargetWeights(folder)
    names = [name for name in weights.paths if name.endswith("embed_tokens.weight")]
    if EMBEDDING in names:  # checkpoints with built-in draft layers have further ones
        names = [EMBEDDING]
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise ArtifactError(f"{folder} has {len(names)} tensors named *embed_tokens.weight ({listed}); wanted one")
    with safe_open(weights.paths[names[0]], "pt") as file:
        return file.get_tensor(names[0])


def target_head(folder: Path) -> Tensor | None:
    """The output head [V, H] of the model in `folder`; None if it has none of its own."""
    path = TargetWeights(folder).paths.get(HEAD)
    if path is None:
        return None
    with safe_open(path, "pt") as file:
        return file.get_tensor(HEAD)


def lossless_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """bfloat16 if that loses nothing, as for trained drafters; else float32, as for merged LoRA experts."""
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    exact = all(torch.equal(tensor.bfloat16().to(tensor.dtype), tensor) for tensor in floats)
    return torch.bfloat16 if exact else torch.float32


def served_spec(spec: DrafterSpec, config: PretrainedConfig) -> DrafterSpec:
    """The spec with the target's max_position_embeddings, unless the rope frequencies depend on it."""
    served = replace(spec, max_positions=config.max_position_embeddings)
    (frequencies, scale), (served_frequencies, served_scale) = spec.rotary(), served.rotary()
    equal = (
        scale == served_scale
        and torch.equal(frequencies, served_frequencies)
        and spec.rope_parameters.get("rope_type") != "dynamic"
    )
    return served if equal else spec


def tensors_of(drafter: Eagle3Drafter, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Weights and vocabulary maps under published names.  dtype: of the weights; None: the smallest lossless one."""
    state = {name: tensor.detach().cpu() for name, tensor in drafter.state_dict().items()}
    dtype = dtype or lossless_dtype(state)
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def dtype_name(tensors: Mapping[str, Tensor]) -> str:
    return str(tensors["fc.weight"].dtype).removeprefix("torch.")


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], layout: str) -> None:
    header = {"format": "pt", MADE_BY: __version__, "layout": layout}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata=header)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


@contextlib.contextmanager
def write_export(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a staging folder that is renamed to `path` at the end; replaces only an earlier export.

    Without `overwrite`, an earlier export of the same bytes stays as it is, so that a killed command can be repeated.
    """
    staged: list[Path] = []

    def check() -> None:
        if not staged or not is_export(path) or not _equal_exports(path, staged[0]):
            refuse_export(path, overwrite or not staged)

    with write_folder(path, check) as folder:
        staged.append(folder)
        yield folder


def _equal_exports(*folders: Path) -> bool:
    """Whether two exports are equal; safetensors writes the keys of a header's metadata in any order."""
    configs, headers, tensors = [], [], []
    for folder in folders:
        configs.append((folder / FILES[0]).read_bytes())
        with safe_open(folder / FILES[1], "pt") as file:
            headers.append(file.metadata())
        tensors.append(load_file(folder / FILES[1]))
    (config, config_now), (header, header_now), (weights, weights_now) = configs, headers, tensors
    equal = config == config_now and header == header_now and weights.keys() == weights_now.keys()
    return equal and all(
        tensor.dtype == weights_now[name].dtype and torch.equal(tensor, weights_now[name])
        for name, tensor in weights.items()
    )


def refuse_export(path: Path, overwrite: bool) -> None:
    """Raises ArtifactError unless `path` is empty, or an earlier export and `overwrite` is set."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_export(path):
        raise ArtifactError(f"{path} exists and is not an export; type out=OTHER, or move it")
    if not overwrite:
        raise ArtifactError(f"{path} exists already; type overwrite=true to replace it, or out=OTHER")


def is_export(path: Path) -> bool:
    """Whether a folder holds exactly the files of `write_model`."""
    if not path.is_dir() or sorted(file.name for file in path.iterdir()) != sorted(FILES):
        return False
    try:
        with safe_open(path / "model.safetensors", "pt") as file:
            return MADE_BY in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
