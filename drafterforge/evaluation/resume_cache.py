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
from drafterforge.evaluation.measurements import Measurement, load_measurements, save_measurements
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.runtime.batch import Generation

TREES = ("accept_length", "depth", "num_nodes", "top_k", "divergence")
ARRAYS = ("gamma", "accepted", "chosen")
WORDS = ("names", "depths", "begin", "end", "every")


@dataclass(frozen=True)
class ResumeCache:
    """A folder of finished parts; each is made only if it is not there."""

    folder: Path

    def answers(self, name: str, make: Callable[[], Sequence[Generation]]) -> list[Generation]:
        """Answers without their times and cycles."""
        path = self.folder / f"{name}.json"
        if (known := _json(path)) is not None:
            return [Generation(**one) for one in known]
        answers = [Generation(one.prompt, one.tokens, one.text, stop_reason=one.stop_reason) for one in make()]
        plain = [
            {key: value for key, value in asdict(one).items() if key not in ("cycles", "time_s")} for one in answers
        ]
        save_json_atomic(path, plain)
        return answers

    def stories(self, name: str, make: Callable[[], Mapping[str, Counterfactual]]) -> dict[str, Counterfactual]:
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

    def measurements(self, name: str, make: Callable[[], Sequence[Measurement]]) -> list[Measurement]:
        """Timed answers, with their cycles and seconds."""
        path = self.folder / f"{name}.parquet"
        try:
            return load_measurements(path)
        except ArtifactError:  # not there, or damaged
            measurements = list(make())
            save_measurements(path, measurements)
            return measurements


def _json(path: Path) -> list[dict[str, Any]] | None:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _stories(path: Path) -> dict[str, Counterfactual] | None:
    try:
        arrays = load_file(path)
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        words = json.loads(header["__metadata__"]["stories"])
        return {scheduler: _read(scheduler, dict(one), arrays) for scheduler, one in words.items()}
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _read(scheduler: str, words: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Counterfactual:
    trees = [
        CycleOutcomes(**{key: arrays.get(f"{scheduler}/{number}.{key}") for key in TREES})
        for number in range(words.pop("trees"))
    ]
    return Counterfactual(**words, trees=trees, **{key: arrays.get(f"{scheduler}/{key}") for key in ARRAYS})
