"""Captures that fall out of answering, kept until the `features` artifact is made: they save a pass over the target.

Files are safetensors named by what they hold; an entry is found again by the sha256 of its sequence.
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

from drafterforge.artifacts.atomic import one_line
from drafterforge.data.answers import Answer
from drafterforge.data.features import CachedCapture, Captured

FLUSH_TOKENS = 65536


def _key(ids: Sequence[int], prompt_tokens: int) -> str:
    return hashlib.sha256(array("q", [prompt_tokens, *ids]).tobytes()).hexdigest()[:32]


class CaptureSpool:
    """A folder of captures; what a dead run left behind is found again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting: dict[str, torch.Tensor] = {}
        self.tokens = 0
        self.where: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(path, "pt") as file:
                    names = list(file.keys())
            except (OSError, SafetensorError):
                path.unlink()  # cut off by a kill
                continue
            self.where |= {name.split(".")[0]: path for name in names}

    def keep(self, ids: Sequence[int], prompt_tokens: int, capture: Captured) -> None:
        """Take a capture over."""
        key = _key(ids, prompt_tokens)
        for name in ("features", "states", "argmax"):
            self.waiting[f"{key}.{name}"] = getattr(capture, name).cpu().contiguous()
        self.tokens += len(ids)
        if self.tokens >= FLUSH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting, whole or not at all."""
        if not self.waiting:
            return
        name = hashlib.sha256("".join(sorted(self.waiting)).encode()).hexdigest()[:16]
        path, temporary = self.folder / f"{name}.safetensors", self.folder / f".{name}.tmp-0"
        with one_line(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(self.waiting, temporary)
            temporary.replace(path)
        self.where |= {name.split(".")[0]: path for name in self.waiting}
        self.waiting, self.tokens = {}, 0

    def capture(
        self, rows: Sequence[Answer], otherwise: Callable[[list[list[int]]], Sequence[Captured]]
    ) -> list[Captured]:
        """Captures of answers: from the spool, else from `otherwise`.

        Only an answer to a single turn is taken from here; of an earlier turn the argmax was not kept.
        """
        self.flush()
        found: dict[int, Captured] = {}
        for index, row in enumerate(rows):
            key = _key(row.input_ids, row.prompt_tokens)
            if key in self.where and row.prompt_tokens + row.answer_tokens == len(row.input_ids):
                with safe_open(self.where[key], "pt") as file:
                    features, states, argmax = (
                        file.get_tensor(f"{key}.{name}") for name in ("features", "states", "argmax")
                    )
                found[index] = CachedCapture(features, states, argmax.long())
        missing = [index for index in range(len(rows)) if index not in found]
        captured = otherwise([list(rows[index].input_ids) for index in missing]) if missing else []
        found |= dict(zip(missing, captured, strict=True))
        return [found[index] for index in range(len(rows))]

    def drop(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
