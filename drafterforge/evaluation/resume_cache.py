"""Saves finished parts of an evaluation, one file each, so that an interrupted one resumes."""

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
from drafterforge.runtime.rows import Generation

ARRAYS = ("accepted", "prompt_hit_rates", "choices")
METADATA = ("names", "depths", "begin", "end", "hold_cycles")


@dataclass(frozen=True)
class ResumeCache:
    """A folder of finished parts; a missing part is made and saved."""

    folder: Path

    def answers(self, name: str, make: Callable[[], Sequence[Generation]]) -> list[Generation]:
        """Answers, without times and cycles."""
        path = self.folder / f"{name}.json"
        if (cached := _json(path)) is not None:
            return [Generation(**entry) for entry in cached]
        answers = [Generation(a.prompt, a.tokens, a.text, stop_reason=a.stop_reason) for a in make()]
        save_json_atomic(path, [{k: v for k, v in asdict(a).items() if k not in ("cycles", "time_s")} for a in answers])
        return answers

    def counterfactuals(self, name: str, make: Callable[[], Mapping[str, Counterfactual]]) -> dict[str, Counterfactual]:
        """Counterfactuals of one answer, by scheduler."""
        path = self.folder / f"{name}.safetensors"
        if (cached := _counterfactuals(path)) is not None:
            return cached
        counterfactuals, arrays, metadata = dict(make()), {}, {}
        for scheduler, counterfactual in counterfactuals.items():
            parts = {key: getattr(counterfactual, key) for key in ARRAYS}
            for number, outcomes in enumerate(counterfactual.outcomes):
                parts |= {f"{number}.{key}": array for key, array in outcomes.arrays().items()}
            arrays |= {f"{scheduler}/{key}": np.ascontiguousarray(v) for key, v in parts.items() if v is not None}
            metadata[scheduler] = {key: getattr(counterfactual, key) for key in METADATA}
            metadata[scheduler]["outcomes"] = len(counterfactual.outcomes)
        write_bytes_atomic(path, save(arrays, metadata={"counterfactuals": json.dumps(metadata)}))
        return counterfactuals

    def measurements(self, name: str, make: Callable[[], Sequence[Measurement]]) -> list[Measurement]:
        """Timed answers, with their cycles and seconds."""
        path = self.folder / f"{name}.parquet"
        try:
            return load_measurements(path)
        except ArtifactError:  # missing or damaged
            measurements = list(make())
            save_measurements(path, measurements)
            return measurements

    def facts(self, name: str) -> dict[str, Any]:
        """What was saved beside a part."""
        return _json(self.folder / f"{name}.json") or {}

    def save_facts(self, name: str, facts: Mapping[str, Any]) -> None:
        """Save facts beside a part, before it is finished."""
        save_json_atomic(self.folder / f"{name}.json", dict(facts))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _counterfactuals(path: Path) -> dict[str, Counterfactual] | None:
    try:
        arrays = load_file(path)
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        metadata = json.loads(header["__metadata__"]["counterfactuals"])
        return {scheduler: _read(scheduler, dict(entry), arrays) for scheduler, entry in metadata.items()}
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def _read(scheduler: str, metadata: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Counterfactual:
    """A counterfactual; KeyError if it lacks hit rates on prompts, as in files of earlier versions."""
    keys = [key.name for key in fields(CycleOutcomes)]
    outcomes = [
        CycleOutcomes(**{key: arrays.get(f"{scheduler}/{number}.{key}") for key in keys})
        for number in range(metadata.pop("outcomes"))
    ]
    recorded = {key: arrays[f"{scheduler}/{key}"] for key in ("accepted", "prompt_hit_rates")}
    choices = arrays.get(f"{scheduler}/choices")
    return Counterfactual(**metadata, outcomes=outcomes, choices=choices, **recorded)
