"""The `features` artifact: the target's hidden states and argmax of every answer token, cached on disk for training.

Shards are safetensors: `features` [N, 3H] and `states` [N, H] in half precision and `argmax` [N] int32 of concatenated
sequences, whose lengths are in `index.json`.  About 8 H bytes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drafterforge.artifacts.atomic import atomic_file, link_or_copy, save_json_atomic
from drafterforge.artifacts.folder import open_artifact, remake_hint
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.run import ArtifactRun, NamedTarget, artifact_run
from drafterforge.data.answers import Answer, AnswerSet
from drafterforge.errors import ArtifactError, shorten

MAX_INDEX_BYTES = 256 << 20  # of index.json: 30 million sequences
SPLITS = ("train", "val")  # training never reads test answers
ROWS_ON_DEVICE = 16  # whose captures are there at a time; those of an 8B target take 32 KB a token
ONLINE = "data.features=online"  # what a user types to leave cached features alone


class Captured(Protocol):
    """The target's outputs for one sequence of T tokens."""

    features: Tensor  # [T, 3H]
    states: Tensor  # [T, H]
    argmax: Tensor  # [T]


Capture = Callable[[list[list[int]]], Sequence[Captured]]


@dataclass(frozen=True)
class CachedCapture:
    """A capture read from disk."""

    features: Tensor
    states: Tensor
    argmax: Tensor


class OnlineFeatures:
    """Runs the target at every training step instead of caching its features."""

    def __init__(self, answers: AnswerSet, capture: Capture) -> None:
        self.answers, self.capture = answers, capture

    def reader(self, split: str) -> Callable[[list[int]], Sequence[Captured]]:
        """A function from row indices of a split to captures."""
        rows = self.answers.rows(split)
        return lambda indices: self.capture([list(rows[i].input_ids) for i in indices])


@dataclass(frozen=True)
class SplitIndex:
    """The shards of one split."""

    shards: list[str]  # file names
    lengths: list[list[int]]  # tokens of each sequence, by shard


class FeatureSet:
    """Reads a finished `features` artifact."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        content = read_json(path / "index.json", MAX_INDEX_BYTES)
        self.index = parse_as(dict[str, SplitIndex], content, f"{path / 'index.json'}:")
        for name, part in self.index.items():
            counts = [*part.lengths, *([] if len(part.shards) == len(part.lengths) else [[0]])]
            if any(length < 1 for lengths in counts for length in lengths) or not {*part.shards} <= {*manifest.files}:
                raise _damaged(path, f"its index lists other shards of {shorten(name)} than it holds")

    @staticmethod
    def open(path: Path, target_fingerprint: str) -> FeatureSet:
        """Open a folder; ArtifactError if it is not one of features of this target."""
        return FeatureSet(path, open_artifact(path, "features", target_fingerprint=target_fingerprint, verify=False))

    def reader(self, split: str) -> Callable[[list[int]], list[CachedCapture]]:
        """A function from row indices of a split to captures; shards are memory-mapped."""
        if split not in self.index:
            raise _damaged(self.path, f"it has no split {split}")
        part = self.index[split]
        taps = self.manifest.config.get("taps")
        if not isinstance(taps, list):
            raise _damaged(self.path, f"its manifest has taps={shorten(taps)}")
        slices = [_open_shard(self.path / name, sum(part.lengths[i]), len(taps)) for i, name in enumerate(part.shards)]
        extents: list[tuple[int, int, int]] = []
        for shard, lengths in enumerate(part.lengths):
            start = 0
            for length in lengths:
                extents.append((shard, start, start + length))
                start += length

        def read(indices: list[int]) -> list[CachedCapture]:
            captures = []
            for shard, start, end in (extents[i] for i in indices):
                features, states, argmax = (slices[shard][key][start:end] for key in ("features", "states", "argmax"))
                captures.append(CachedCapture(features, states, argmax.long()))
            return captures

        return read


class JoinedFeatures:
    """Features of several artifacts."""

    def __init__(self, parts: Sequence[FeatureSet | OnlineFeatures]) -> None:
        self.parts = parts

    def reader(self, split: str) -> Callable[[Sequence[tuple[int, int]]], list[Captured]]:
        """A function from (artifact, row index of its split) to captures."""
        readers = [part.reader(split) for part in self.parts]

        def read(indices: Sequence[tuple[int, int]]) -> list[Captured]:
            captures: dict[int, Captured] = {}
            for part, reader in enumerate(readers):
                positions = [i for i, (number, _) in enumerate(indices) if number == part]
                if positions:
                    captures |= zip(positions, reader([indices[i][1] for i in positions]), strict=True)
            return [captures[i] for i in range(len(indices))]

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
    splits: Sequence[str] = SPLITS,
    alternative: str = ONLINE,
) -> FeatureSet:
    """Capture all training and validation answers; a killed run resumes at its first unfinished shard.

    progress: called with tokens done and total tokens.  splits: those to capture.  alternative: see `features_run`.
    """
    run = features_run(answers, path, target, config, overwrite, alternative)
    if run.existing is not None:
        return FeatureSet(path, run.existing)
    staging = run.stage(shard_rows=shard_rows)
    total = sum(int(answers.rows(split).lengths.sum()) for split in splits)
    done, index = 0, {}
    for split in splits:
        rows, names, lengths = answers.rows(split), [], []
        for first in range(0, len(rows), shard_rows):
            part = rows[first : first + shard_rows]
            names.append(f"{split}-{first // shard_rows:05d}.safetensors")
            lengths.append([len(row.input_ids) for row in part])
            if not _is_intact(staging / names[-1], sum(lengths[-1])):
                _save_shard(staging / names[-1], _capture_on_host(part, capture))
            done += sum(lengths[-1])
            if progress is not None:
                progress(done, total)
        index[split] = {"shards": names, "lengths": lengths}
    with run.write({"tokens": total}) as folder:
        for split in splits:
            for name in index[split]["shards"]:
                link_or_copy(staging / name, folder / name)
        save_json_atomic(folder / "index.json", index)
    return FeatureSet.open(path, target.fingerprint)


def features_run(
    answers: AnswerSet,
    path: Path,
    target: NamedTarget,
    config: Mapping[str, Any],
    overwrite: bool,
    alternative: str = ONLINE,
) -> ArtifactRun:
    """The features of these answers; ArtifactError if `path` holds others.

    Existing ones are not hashed, as they may have hundreds of GB.  alternative: what a user types to keep others.
    """
    settings = {**config, "answers": answers.manifest.digest}
    options = {"overwrite": overwrite, "alternative": alternative, "verify": False}
    return artifact_run(path, "features", target, settings, [answers.manifest], **options)


def _capture_on_host(
    rows: Sequence[Answer], capture: Callable[[Sequence[Answer]], Sequence[Captured]]
) -> list[Captured]:
    """Captures of answers on the CPU; only those of a few answers are on the device at a time."""
    captures: list[Captured] = []
    for first in range(0, len(rows), ROWS_ON_DEVICE):
        for part in capture(rows[first : first + ROWS_ON_DEVICE]):
            captures.append(CachedCapture(part.features.cpu(), part.states.cpu(), part.argmax.cpu()))
    return captures


def _save_shard(path: Path, captures: Sequence[Captured]) -> None:
    """Write captures on the CPU as a shard, atomically; float32 tensors are stored as bfloat16."""

    def concatenated(parts: list[Tensor]) -> Tensor:
        tensor = torch.cat(parts)
        return tensor.to(torch.bfloat16) if tensor.dtype in (torch.float32, torch.float64) else tensor

    tensors = {
        "features": concatenated([capture.features for capture in captures]),
        "states": concatenated([capture.states for capture in captures]),
        "argmax": torch.cat([capture.argmax for capture in captures]).to(torch.int32),
    }
    with atomic_file(path) as temporary:
        save_file(tensors, temporary)


def _open_shard(path: Path, tokens: int, num_taps: int) -> dict[str, Any]:
    """Slices of a shard's tensors; ArtifactError unless they hold this number of tokens and taps."""
    try:
        file = safe_open(path, "pt")
        slices = {key: file.get_slice(key) for key in ("features", "states", "argmax")}
    except (OSError, SafetensorError) as error:
        raise _damaged(path, shorten(error)) from None
    shapes = {key: part.get_shape() for key, part in slices.items()}
    width = shapes["states"][-1:]
    features = [tokens, *(num_taps * size for size in width)]
    expected = {"features": features, "states": [tokens, *width], "argmax": [tokens]}
    are_half = {slices[key].get_dtype() for key in ("features", "states")} <= {"BF16", "F16"}
    if shapes != expected or not are_half or slices["argmax"].get_dtype() != "I32":
        raise _damaged(path, f"its tensors have shapes {shorten(shapes)}, wanted {expected}")
    return slices


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged ({reason}); {remake_hint(path.parent)}")


def _is_intact(path: Path, tokens: int) -> bool:
    """Whether a staged shard can be read and holds the expected number of tokens."""
    try:
        with safe_open(path, "pt") as file:
            return all(file.get_slice(key).get_shape()[0] == tokens for key in ("features", "states", "argmax"))
    except (OSError, SafetensorError):
        return False
