"""Finished parts of an evaluation, kept on disk so that an interrupted one goes on where it was.

Each part is one file, written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
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

ARRAYS = ("accepted", "choices")
WORDS = ("names", "depths", "begin", "end", "hold_cycles")


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

    def counterfactuals(self, name: str, make: Callable[[], Mapping[str, Counterfactual]]) -> dict[str, Counterfactual]:
        """Counterfactuals of one answer, by scheduler."""
        path = self.folder / f"{name}.safetensors"
        if (known := _counterfactuals(path)) is not None:
            return known
        counterfactuals, arrays, words = dict(make()), {}, {}
        for scheduler, each in counterfactuals.items():
            parts = {key: getattr(each, key) for key in ARRAYS}
            parts |= {
                f"{n}.{key}": v for n, outcomes in enumerate(each.outcomes) for key, v in outcomes.arrays().items()
            }
            arrays |= {f"{scheduler}/{key}": np.ascontiguousarray(v) for key, v in parts.items() if v is not None}
            words[scheduler] = {key: getattr(each, key) for key in WORDS} | {"outcomes": len(each.outcomes)}
        write_bytes_atomic(path, save(arrays, metadata={"counterfactuals": json.dumps(words)}))
        return counterfactuals

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


def _counterfactuals(path: Path) -> dict[str, Counterfactual] | None:
    try:
        arrays = load_file(path)
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        words = json.loads(header["__metadata__"]["counterfactuals"])
        return {scheduler: _read(scheduler, dict(one), arrays) for scheduler, one in words.items()}
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _read(scheduler: str, words: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Counterfactual:
    keys = [key.name for key in fields(CycleOutcomes)]
    outcomes = [
        CycleOutcomes(**{key: arrays.get(f"{scheduler}/{number}.{key}") for key in keys})
        for number in range(words.pop("outcomes"))
    ]
    return Counterfactual(**words, outcomes=outcomes, **{key: arrays.get(f"{scheduler}/{key}") for key in ARRAYS})
