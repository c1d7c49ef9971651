"""Finished parts of an evaluation, kept on disk so that an interrupted one goes on where it was.

Each part is one file, written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from drafterforge.artifacts.atomic import save_json_atomic, write_bytes_atomic
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.ledger import Entry, load_entries, save_entries
from drafterforge.replay.plays import Story, Trees
from drafterforge.runtime.batch import Generation

TREES = ("accept_length", "depth", "num_nodes", "top_k", "divergence")
ARRAYS = ("gamma", "accepted", "chosen")
WORDS = ("names", "depths", "begin", "end", "every")


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

    def stories(self, name: str, make: Callable[[], Mapping[str, Story]]) -> dict[str, Story]:
        """Stories of one answer, by scheduler."""
        path = self.folder / f"{name}.safetensors"
        if (known := _stories(path)) is not None:
            return known
        stories, arrays, words = dict(make()), {}, {}
        for scheduler, story in stories.items():
            parts = {key: getattr(story, key) for key in ARRAYS}
            parts |= {f"{n}.{key}": getattr(tree, key) for n, tree in enumerate(story.trees) for key in TREES}
            arrays |= {f"{scheduler}/{key}": np.ascontiguousarray(v) for key, v in parts.items() if v is not None}
            words[scheduler] = {key: getattr(story, key) for key in WORDS} | {"trees": len(story.trees)}
        write_bytes_atomic(path, save(arrays, metadata={"stories": json.dumps(words)}))
        return stories

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


def _stories(path: Path) -> dict[str, Story] | None:
    try:
        arrays = load_file(path)
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        words = json.loads(header["__metadata__"]["stories"])
        return {scheduler: _read(scheduler, dict(one), arrays) for scheduler, one in words.items()}
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _read(scheduler: str, words: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Story:
    trees = [
        Trees(**{key: arrays.get(f"{scheduler}/{number}.{key}") for key in TREES})
        for number in range(words.pop("trees"))
    ]
    return Story(**words, trees=trees, **{key: arrays.get(f"{scheduler}/{key}") for key in ARRAYS})
