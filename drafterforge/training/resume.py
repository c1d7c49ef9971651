"""Lightning checkpoints without pickle: one safetensors file, all but tensors as JSON in its header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafterforge.artifacts.atomic import atomic_file
from drafterforge.errors import ArtifactError, shorten

DIGEST = "sha256"  # key in the header of a file, of all its other content


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON of nested dicts, lists, tuples and tensors; the tensors are moved into `tensors`."""
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_flatten(key, tensors), _flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be saved in a training checkpoint")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_restore(key, tensors): _restore(item, tensors) for key, item in content}
    items = [_restore(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically, with the digest of its content in its header."""
    metadata = metadata or {}
    with atomic_file(path) as temporary:
        save_file(tensors, temporary, metadata={**metadata, DIGEST: _digest(tensors, metadata)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file that `save_tensors` wrote; ArtifactError if a bit of them has changed."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"{path} is no training checkpoint ({shorten(error, 200)}); delete {Path(path).parent} to start again"
        ) from None
    digest = metadata.pop(DIGEST, None)  # files of earlier versions have none
    if digest is not None and digest != _digest(tensors, metadata):
        raise ArtifactError(
            f"{path} is damaged (its content does not match its digest); delete {Path(path).parent} to start again"
        )
    return tensors, metadata


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def shift_batches(checkpoint: dict[str, Any], rescale: Callable[[int], int]) -> None:
    """Rescale the number of finished training batches; unfinished ones stay unfinished."""
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        shift = rescale(counts["ready"]) - counts["ready"]
        counts.update({name: count + shift for name, count in counts.items()})


class SafetensorsCheckpointIO(CheckpointIO):
    """Writes and reads lightning's checkpoint dict; a file appears whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write to a temporary sibling, then rename."""
        tensors: dict[str, Tensor] = {}
        save_tensors(Path(path), tensors, {"checkpoint": json.dumps(_flatten(checkpoint, tensors))})

    def load_checkpoint(self, path: str | Path, map_location: Any | None = None, **unused: Any) -> dict[str, Any]:
        """Read what `save_checkpoint` wrote."""
        tensors, metadata = load_tensors(Path(path))
        try:
            return _restore(json.loads(metadata["checkpoint"]), tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{path} is no training checkpoint ({error}); delete {Path(path).parent} to start again"
            ) from None

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the file."""
        Path(path).unlink(missing_ok=True)
