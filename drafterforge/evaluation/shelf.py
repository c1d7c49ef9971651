"""Finished parts of an evaluation, kept on disk so that an interrupted one goes on where it was.

Each part is one file, written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from drafterforge.artifacts.atomic import save_json_atomic, write_bytes_atomic
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.ledger import Entry, load_entries, save_entries
from drafterforge.evaluation.story import Story
from drafterforge.runtime.batch import Generation

ARRAYS = ("accept_length", "gamma", "accepted", "divergence")


@dataclass(frozen=True)
class Shelf:
    """A folder of parts; what is there is not made again."""

    folder: Path

    def answers(self, name: str, make: Callable[[], Sequence[Generation]]) -> list[Generation]:
        """Answers without their times and cycles."""
        path = self.folder / f"{name}.json"
        if (known := _json(path)) is not None:
            return [Generation(**one) for one in known]
        found = [Generation(one.prompt, one.tokens, one.text, stop_reason=one.stop_reason) for one in make()]
        kept = [{key: value for key, value in asdict(one).items() if key not in ("cycles", "time_s")} for one in found]
        save_json_atomic(path, kept)
        return found

    def story(self, name: str, make: Callable[[], Story]) -> Story:
        """A story."""
        path = self.folder / f"{name}.safetensors"
        if (known := _story(path)) is not None:
            return known
        story = make()
        arrays = {key: np.ascontiguousarray(value) for key in ARRAYS if (value := getattr(story, key)) is not None}
        words = {key: getattr(story, key) for key in ("names", "depths", "begin", "end", "limited")}
        write_bytes_atomic(path, save(arrays, metadata={"story": json.dumps(words)}))
        return story

    def entries(self, name: str, make: Callable[[], Sequence[Entry]]) -> list[Entry]:
        """What was measured."""
        path = self.folder / f"{name}.parquet"
        try:
            return load_entries(path)
        except ArtifactError:  # not there, or damaged
            found = list(make())
            save_entries(path, found)
            return found


def _json(path: Path) -> list[dict[str, Any]] | None:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _story(path: Path) -> Story | None:
    try:
        arrays = load_file(path)
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError, SafetensorError):
        return None
    return Story(**json.loads(header["__metadata__"]["story"]), **arrays)
