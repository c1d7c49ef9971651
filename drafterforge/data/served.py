"""Recordings of served traffic: finished answers, and the target's outputs that were captured while serving.

A recording is a folder of shards.  NAME.arrow holds answers in the form of the `answers` artifact.  NAME.safetensors,
which is written first, holds `ID.features` [C, 3H] and `ID.states` [C, H] of an answer's first C tokens.  A writer that
does not know the target's final norm stores the last layer's `ID.outputs` [C, H] instead of the states.  An answer
whose outputs are incomplete has none there.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.data.answers import Answer, AnswerRows, encode_shard
from drafterforge.data.features import CachedCapture, Captured
from drafterforge.data.rows import Row
from drafterforge.data.turns import conversations
from drafterforge.errors import ArtifactError, quote
from drafterforge.prompts.prompt import Transcript

log = logging.getLogger(__name__)
MAX_ERROR = 0.2  # median relative distance of the outputs of one target in different programs and dtypes
CHECKED_TOKENS = 256  # of an answer whose recorded outputs are compared with the target's


@dataclass(frozen=True)
class ServedAnswer:
    """An answer, and the target's outputs for it if all of its tokens but the last were captured."""

    answer: Answer
    features: Tensor | None = None  # [C, 3H]
    states: Tensor | None = None  # [C, H]
    outputs: Tensor | None = None  # of the last layer before the final norm, [C, H]; instead of the states


def encode_served(answers: Sequence[ServedAnswer]) -> dict[str, bytes]:
    """The files of a shard, by suffix, in the order in which they must be written; ArtifactError if an id repeats."""
    names = Counter(served.answer.id for served in answers)
    for name, count in names.items():
        if count > 1:
            raise ArtifactError(
                f"{count} answers of a shard have the id {quote(name)}, by which features are stored; "
                "give each prompt an id of its own"
            )
    tensors = {
        f"{served.answer.id}.{kind}": tensor.contiguous()
        for served in answers
        for kind in ("features", "states", "outputs")
        if (tensor := getattr(served, kind)) is not None
    }
    texts = encode_shard(list(enumerate(served.answer for served in answers)))
    return ({".safetensors": save(tensors)} if tensors else {}) | {".arrow": texts}


def write_shard(folder: Path, name: str, answers: Sequence[ServedAnswer]) -> int:
    """Write a shard; returns its bytes.  A kill at any moment leaves all of its answers or none."""
    files = encode_served(answers)
    for suffix, content in files.items():
        write_bytes_atomic(folder / f"{name}{suffix}", content)
    return sum(map(len, files.values()))


def served_shards(path: str | Path) -> Iterator[tuple[Path, AnswerRows]]:
    """The shards of a recording; those that cannot be read are skipped with a warning."""
    for shard in sorted(Path(path).expanduser().glob("*.arrow")):
        try:
            yield shard, AnswerRows([shard])
        except FileNotFoundError:  # a server has deleted it since, as its folder was full
            continue
        except (OSError, ArtifactError, KeyError) as error:
            log.warning("%s cannot be read and was skipped: %s", shard, error)


def served_rows(path: str | Path) -> Iterator[Row]:
    """The answers of a recording; shards that cannot be read are skipped with a warning.

    The turns of a conversation have one task, so that all of them are in one split.
    """
    rows = list[Row]()
    for shard, answers in served_shards(path):
        for answer in answers:
            transcript = Transcript(tuple(answer.input_ids), answer.prompt_tokens, answer.finished)
            rows.append(Row((), shard.name, len(rows), answer.id, transcript=transcript))
    begun = conversations((row.transcript.ids, row.transcript.prompt_tokens) for row in rows)
    for row in rows:
        first = begun[row.transcript.ids[: row.transcript.prompt_tokens]]
        yield replace(row, task=sha256(repr(first).encode()).hexdigest()[:16])
    if not rows:
        raise ArtifactError(
            f"{path} holds no recorded answers; wanted the folder that `drafterforge serve learn=on` or `record` of a "
            "vLLM server fills"
        )


class TargetOutputs(Protocol):
    """What the trainer's copy of the target computes."""

    def __call__(self, sequences: list[list[int]]) -> Sequence[Captured]:
        """Captures of complete texts."""

    def argmax(self, states: Tensor) -> Tensor:
        """Most probable next ids, [C], by final states [C, H]."""

    def normed(self, outputs: Tensor) -> Tensor:
        """Final states [C, H] by the last layer's outputs [C, H]."""

    def layer_inputs(self, ids: Sequence[int]) -> Tensor:
        """Inputs of all L layers, [L, C, H]."""

    @property
    def taps(self) -> Sequence[int]:
        """The layers whose inputs are the features."""


class ServedCaptures:
    """The target's outputs for recorded answers; those that were not captured are computed.

    The first recorded outputs are compared with this target's own before any is returned.
    """

    def __init__(self, path: str | Path, target: TargetOutputs) -> None:
        """path: folder of the recording."""
        self.target, self.checked = target, False
        self.shards: dict[str, Path] = {}  # by answer id
        self.open(Path(path).expanduser().glob("*.safetensors"))

    def open(self, shards: Iterable[Path]) -> None:
        """Read these .safetensors files instead of those before."""
        self.shards = {}
        for shard in sorted(shards):
            try:
                with safe_open(shard, "pt") as file:
                    names = list(file.keys())
            except (OSError, SafetensorError) as error:
                log.warning("%s cannot be read; its outputs are computed again: %s", shard, error)
                continue
            self.shards |= {name.removesuffix(".features"): shard for name in names if name.endswith(".features")}

    def __call__(self, rows: Sequence[Answer]) -> list[Captured]:
        """One capture per answer, in order.  At the last position, whose token may never have been read, it is zero."""
        captures: dict[int, Captured] = {}
        for i, row in enumerate(rows):
            with contextlib.suppress(FileNotFoundError):  # a server has deleted the shard since, as its folder was full
                if row.id in self.shards:
                    captures[i] = self._read(row)
        missing = [i for i in range(len(rows)) if i not in captures]
        computed = self.target([list(rows[i].input_ids) for i in missing]) if missing else []
        captures |= dict(zip(missing, computed, strict=True))
        return [captures[i] for i in range(len(rows))]

    def prompt_features(self, row: Answer) -> Tensor:
        """Features of the last token of a prompt, [1, 3H]; computed if they were not captured."""
        with contextlib.suppress(FileNotFoundError):
            if row.id in self.shards:
                with safe_open(self.shards[row.id], "pt") as file:
                    return file.get_slice(f"{row.id}.features")[row.prompt_tokens - 1 : row.prompt_tokens]
        return self.target([list(row.input_ids[: row.prompt_tokens])])[0].features[-1:]

    def _read(self, row: Answer) -> CachedCapture:
        length = len(row.input_ids)
        with safe_open(self.shards[row.id], "pt") as file:
            is_normed = f"{row.id}.states" in file.keys()  # noqa: SIM118
            names = "features", "states" if is_normed else "outputs"
            features, states = (file.get_slice(f"{row.id}.{name}")[: length - 1] for name in names)
        if not is_normed:
            states = self.target.normed(states)
        if not self.checked:
            check_outputs(row, features, states, self.target, self.shards[row.id])
            self.checked = True
        argmax = torch.zeros(length, dtype=torch.long)
        argmax[row.prompt_tokens - 1 : length - 1] = self.target.argmax(states[row.prompt_tokens - 1 :]).cpu()
        return CachedCapture(F.pad(features, (0, 0, 0, 1)), F.pad(states, (0, 0, 0, 1)), argmax)


def check_outputs(row: Answer, features: Tensor, states: Tensor, target: TargetOutputs, shard: Path) -> None:
    """ArtifactError if the recorded outputs of an answer are not this target's.

    Each third of the features must be nearer to the input of its tapped layer than to that of any other layer:
    neighbouring layers of a deep target differ by less than its outputs do between dtypes.
    """
    count, taps = min(CHECKED_TOKENS, len(features)), list(target.taps)
    inputs = target.layer_inputs(row.input_ids[:count]).cpu().float()  # [L, C, H]
    hint = "type target= as it was served, or data.features=online to use the texts alone"
    if features.shape[1] != len(taps) * inputs.shape[2] or states.shape[1] != inputs.shape[2]:
        raise ArtifactError(
            f"{shard} was recorded with another target: its features and states are {features.shape[1]} and "
            f"{states.shape[1]} wide, but this target's are {len(taps) * inputs.shape[2]} and {inputs.shape[2]}; {hint}"
        )
    recorded = features[:count].float().unflatten(1, (len(taps), -1)).unbind(1)
    distances = [torch.stack([relative_distance(part, layer) for layer in inputs]) for part in recorded]
    nearest = [int(distance.argmin()) for distance in distances]
    exact = target([row.input_ids[:count]])[0].states[:count].cpu().float()
    errors = [float(distance.min()) for distance in distances] + [
        float(relative_distance(states[:count].cpu().float(), exact))
    ]
    if not max(errors) <= MAX_ERROR:  # nan is an error, too
        raise ArtifactError(
            f"{shard} was recorded with another target: its features and states differ from this target's by "
            f"{', '.join(f'{error:.2g}' for error in errors)}; {hint}"
        )
    if nearest != taps:
        raise ArtifactError(
            f"{shard} was recorded with other taps: its features match the inputs of layers {_listed(nearest)}, but "
            f"layers {_listed(taps)} were expected; record them again, or type "
            f"target.taps=[{','.join(map(str, nearest))}] to train on these"
        )


def _listed(layers: Sequence[int]) -> str:
    return f"{', '.join(map(str, layers[:-1]))} and {layers[-1]}"


def relative_distance(values: Tensor, reference: Tensor) -> Tensor:
    """Median over rows of the distance from the reference, relative to its norm."""
    return ((values - reference).norm(dim=1) / reference.norm(dim=1)).median()
