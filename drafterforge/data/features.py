"""The `features` artifact: what the target says about every answer, kept on disk for many epochs.

Shards are safetensors: `features` [N, 3H] and `states` [N, H] in half precision, `argmax` [N] int32, of sequences laid
end to end, with their lengths in `index.json`.  About 8 H bytes a token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafterforge.artifacts.atomic import link_or_copy, one_line, save_json_atomic
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.run import NamedTarget, artifact_run
from drafterforge.data.answers import Answer, AnswerSet

SPLITS = ("train", "val")  # test prompts are decoded, not taught


class Captured(Protocol):
    """The target's view of one sequence of T tokens."""

    features: Tensor  # [T, 3H]
    states: Tensor  # [T, H]
    argmax: Tensor  # [T]


Capture = Callable[[list[list[int]]], Sequence[Captured]]


@dataclass(frozen=True)
class CachedCapture:
    """The target's view of one sequence, read back from disk."""

    features: Tensor
    states: Tensor
    argmax: Tensor


class OnlineFeatures:
    """Asks the target anew at every step."""

    def __init__(self, answers: AnswerSet, capture: Capture) -> None:
        self.answers, self.capture = answers, capture

    def reader(self, split: str) -> Callable[[list[int]], Sequence[Captured]]:
        """A function from row indices of a split to captures."""
        rows = self.answers.rows(split)
        return lambda indices: self.capture([list(rows[i].input_ids) for i in indices])


class FeatureSet:
    """Reads a finished `features` artifact."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.index: dict[str, dict[str, Any]] = json.loads((path / "index.json").read_text())

    @staticmethod
    def open(path: Path, target_fingerprint: str) -> FeatureSet:
        """Open and check."""
        return FeatureSet(
            path,
            open_artifact(path, "features", target_fingerprint=target_fingerprint, verify=False),
        )

    def reader(self, split: str) -> Callable[[list[int]], list[CachedCapture]]:
        """A function from row indices of a split to captures; shards are memory-mapped."""
        files = [safe_open(self.path / name, "pt") for name in self.index[split]["shards"]]
        slices = [{key: file.get_slice(key) for key in ("features", "states", "argmax")} for file in files]
        places: list[tuple[int, int, int]] = []
        for shard, lengths in enumerate(self.index[split]["lengths"]):
            start = 0
            for length in lengths:
                places.append((shard, start, start + length))
                start += length

        def read(indices: list[int]) -> list[CachedCapture]:
            found = []
            for shard, start, end in (places[i] for i in indices):
                features, states, argmax = (slices[shard][key][start:end] for key in ("features", "states", "argmax"))
                found.append(CachedCapture(features, states, argmax.long()))
            return found

        return read


class JoinedFeatures:
    """Features of several artifacts."""

    def __init__(self, parts: Sequence[FeatureSet | OnlineFeatures]) -> None:
        self.parts = parts

    def reader(self, split: str) -> Callable[[Sequence[tuple[int, int]]], list[Captured]]:
        """A function from (artifact, row index of its split) to captures."""
        readers = [part.reader(split) for part in self.parts]

        def read(places: Sequence[tuple[int, int]]) -> list[Captured]:
            found: dict[int, Captured] = {}
            for part, reader in enumerate(readers):
                own = [at for at, (owner, _) in enumerate(places) if owner == part]
                if own:
                    found |= zip(own, reader([places[at][1] for at in own]), strict=True)
            return [found[at] for at in range(len(places))]

        return read


def prepare_features(
    answers: AnswerSet,
    capture: Callable[[Sequence[Answer]], Sequence[Captured]],
    *,
    path: Path,
    target: NamedTarget,
    config: Mapping[str, Any],
    shard_rows: int = 128,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
) -> FeatureSet:
    """Capture all training and validation answers; resumes after a kill where the shards end.

    progress(tokens done, tokens in all).
    """
    settings = {**config, "answers": answers.manifest.digest}
    run = artifact_run(path, "features", target, settings, [answers.manifest], overwrite=overwrite)
    if run.existing is not None:
        run.drop_staging()
        return FeatureSet(path, run.existing)
    staging = run.stage(shard_rows=shard_rows)
    total = sum(int(answers.rows(split).lengths.sum()) for split in SPLITS)
    done, index = 0, {}
    for split in SPLITS:
        rows, names, lengths = answers.rows(split), [], []
        for first in range(0, len(rows), shard_rows):
            part = rows[first : first + shard_rows]
            names.append(f"{split}-{first // shard_rows:05d}.safetensors")
            lengths.append([len(row.input_ids) for row in part])
            if not _is_whole(staging / names[-1], sum(lengths[-1])):
                _save_shard(staging / names[-1], capture(part))
            done += sum(lengths[-1])
            if progress is not None:
                progress(done, total)
        index[split] = {"shards": names, "lengths": lengths}
    with run.write({"tokens": total}) as folder:
        for split in SPLITS:
            for name in index[split]["shards"]:
                link_or_copy(staging / name, folder / name)
        save_json_atomic(folder / "index.json", index)
    return FeatureSet.open(path, target.fingerprint)


def _save_shard(path: Path, captures: Sequence[Captured]) -> None:
    """Write a shard whole or not at all; float32 features are kept in bfloat16."""

    def half(parts: list[Tensor]) -> Tensor:
        joined = torch.cat([part.cpu() for part in parts])
        return joined.to(torch.bfloat16) if joined.dtype in (torch.float32, torch.float64) else joined

    tensors = {
        "features": half([one.features for one in captures]),
        "states": half([one.states for one in captures]),
        "argmax": torch.cat([one.argmax.cpu() for one in captures]).to(torch.int32),
    }
    temporary = path.with_name(f".{path.name}.tmp-0")
    with one_line(path):
        save_file(tensors, temporary)
        temporary.replace(path)


def _is_whole(path: Path, tokens: int) -> bool:
    """Whether a shard in the staging folder can be read and has the tokens it should have."""
    try:
        with safe_open(path, "pt") as file:
            return all(file.get_slice(key).get_shape()[0] == tokens for key in ("features", "states", "argmax"))
    except (OSError, SafetensorError):
        return False
