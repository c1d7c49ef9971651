"""Temporary store of captures made while answering, so building the `features` artifact needs no second target pass.

Files are safetensors; the key of a capture is the sha256 of its sequence.
"""

from __future__ import annotations

import hashlib
import shutil
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from drafterforge.artifacts.atomic import atomic_file
from drafterforge.data.answers import Answer
from drafterforge.data.features import CachedCapture, Captured

FLUSH_TOKENS = 65536


def _key(ids: Sequence[int], prompt_tokens: int) -> str:
    return hashlib.sha256(array("q", [prompt_tokens, *ids]).tobytes()).hexdigest()[:32]


class CaptureSpool:
    """A folder of captures; those of a killed run are reused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pending: dict[str, torch.Tensor] = {}
        self.tokens = 0
        self.paths: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(path, "pt") as file:
                    names = list(file.keys())
            except (OSError, SafetensorError):
                path.unlink()  # cut off by a kill
                continue
            self.paths |= {name.split(".")[0]: path for name in names}

    def add(self, ids: Sequence[int], prompt_tokens: int, capture: Captured) -> None:
        key = _key(ids, prompt_tokens)
        for name in ("features", "states", "argmax"):
            self.pending[f"{key}.{name}"] = getattr(capture, name).cpu().contiguous()
        self.tokens += len(ids)
        if self.tokens >= FLUSH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write pending captures to one file, atomically."""
        if not self.pending:
            return
        name = hashlib.sha256("".join(sorted(self.pending)).encode()).hexdigest()[:16]
        path = self.folder / f"{name}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            save_file(self.pending, temporary)
        self.paths |= {name.split(".")[0]: path for name in self.pending}
        self.pending, self.tokens = {}, 0

    def capture(
        self, rows: Sequence[Answer], compute: Callable[[list[list[int]]], Sequence[Captured]]
    ) -> list[Captured]:
        """Captures of answers: from the spool, else from `compute`.

        The spool serves single-turn answers only: the argmax of earlier turns was not captured.
        """
        self.flush()
        captures: dict[int, Captured] = {}
        for index, row in enumerate(rows):
            key = _key(row.input_ids, row.prompt_tokens)
            if key in self.paths and row.prompt_tokens + row.answer_tokens == len(row.input_ids):
                with safe_open(self.paths[key], "pt") as file:
                    features, states, argmax = (
                        file.get_tensor(f"{key}.{name}") for name in ("features", "states", "argmax")
                    )
                captures[index] = CachedCapture(features, states, argmax.long())
        missing = [index for index in range(len(rows)) if index not in captures]
        fresh = compute([list(rows[index].input_ids) for index in missing]) if missing else []
        captures |= dict(zip(missing, fresh, strict=True))
        return [captures[index] for index in range(len(rows))]

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
