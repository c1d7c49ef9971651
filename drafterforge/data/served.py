"""Recordings of served traffic: finished answers, and the target's outputs that were captured while serving.

A recording is a folder of shards.  NAME.arrow holds answers in the form of the `answers` artifact.  NAME.safetensors,
which is written first, holds `ID.features` [C, 3H] and `ID.states` [C, H] of an answer's first C tokens in half
precision.  An answer whose outputs are incomplete has none there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.data.answers import Answer, AnswerRows, encode_shard
from drafterforge.data.features import CachedCapture, Captured
from drafterforge.data.sources import Row
from drafterforge.errors import ArtifactError
from drafterforge.prompts.prompt import Transcript

log = logging.getLogger(__name__)
MAX_ERROR = 0.2  # median relative distance of the outputs of one target in different programs and dtypes


@dataclass(frozen=True)
class ServedAnswer:
    """An answer, and the target's outputs for it if all of its tokens but the last were captured."""

    answer: Answer
    features: Tensor | None = None  # [C, 3H]
    states: Tensor | None = None  # [C, H]


def write_shard(folder: Path, name: str, answers: Sequence[ServedAnswer]) -> int:
    """Write a shard; returns its bytes.  A kill at any moment leaves all of its answers or none."""
    tensors = {
        f"{served.answer.id}.{kind}": tensor.contiguous()
        for served in answers
        for kind, tensor in (("features", served.features), ("states", served.states))
        if tensor is not None
    }
    outputs = save(tensors) if tensors else b""
    if outputs:
        write_bytes_atomic(folder / f"{name}.safetensors", outputs)
    texts = encode_shard(list(enumerate(served.answer for served in answers)))
    write_bytes_atomic(folder / f"{name}.arrow", texts)
    return len(outputs) + len(texts)


def served_rows(path: str | Path) -> Iterator[Row]:
    """The answers of a recording; shards that cannot be read are skipped with a warning."""
    folder, number = Path(path).expanduser(), 0
    for shard in sorted(folder.glob("*.arrow")):
        try:
            answers = AnswerRows([shard])
        except (OSError, pa.ArrowException, KeyError) as error:
            log.warning("%s cannot be read and was skipped: %s", shard, error)
            continue
        for answer in answers:
            transcript = Transcript(tuple(answer.input_ids), answer.prompt_tokens, answer.finished)
            yield Row((), shard.name, number, answer.id, transcript=transcript)
            number += 1
    if not number:
        raise ArtifactError(f"{path} holds no recorded answers; type path=FOLDER as in `record` of the vLLM server")


class ServedCaptures:
    """The target's outputs for recorded answers; those that were not captured are computed."""

    def __init__(
        self,
        path: str | Path,
        argmax: Callable[[Tensor], Tensor],
        compute: Callable[[Sequence[Answer]], Sequence[Captured]],
    ) -> None:
        """argmax: the target's most probable next ids, [C], by its final states [C, H]."""
        self.argmax, self.compute, self.checked = argmax, compute, False
        self.shards: dict[str, Path] = {}  # by answer id
        for shard in sorted(Path(path).expanduser().glob("*.safetensors")):
            try:
                with safe_open(shard, "pt") as file:
                    names = list(file.keys())
            except (OSError, SafetensorError) as error:
                log.warning("%s cannot be read; its outputs are computed again: %s", shard, error)
                continue
            self.shards |= {name.removesuffix(".states"): shard for name in names if name.endswith(".states")}

    def __call__(self, rows: Sequence[Answer]) -> list[Captured]:
        """One capture per answer, in order.  At the last position, whose token may never have been read, it is zero."""
        captures: dict[int, Captured] = {i: self._read(row) for i, row in enumerate(rows) if row.id in self.shards}
        missing = [i for i in range(len(rows)) if i not in captures]
        computed = self.compute([rows[i] for i in missing]) if missing else []
        captures |= dict(zip(missing, computed, strict=True))
        return [captures[i] for i in range(len(rows))]

    def _read(self, row: Answer) -> CachedCapture:
        length = len(row.input_ids)
        with safe_open(self.shards[row.id], "pt") as file:
            features, states = (file.get_slice(f"{row.id}.{name}")[: length - 1] for name in ("features", "states"))
        if not self.checked:
            self._check(row, features, states)
            self.checked = True
        argmax = torch.zeros(length, dtype=torch.long)
        argmax[row.prompt_tokens - 1 : length - 1] = self.argmax(states[row.prompt_tokens - 1 :]).cpu()
        return CachedCapture(F.pad(features, (0, 0, 0, 1)), F.pad(states, (0, 0, 0, 1)), argmax)

    def _check(self, row: Answer, features: Tensor, states: Tensor) -> None:
        """ArtifactError if the recorded outputs of an answer are not this target's."""
        exact = self.compute([row])[0]
        for name, recorded, computed in (("features", features, exact.features), ("states", states, exact.states)):
            computed = computed[:-1].cpu().float()
            same_shape = recorded.shape == computed.shape
            error = float(relative_distance(recorded.float(), computed)) if same_shape else float("inf")
            if not error <= MAX_ERROR:
                raise ArtifactError(
                    f"{self.shards[row.id]} was recorded with another target or other taps: its {name} are "
                    f"{list(recorded.shape)} and differ from this target's {list(computed.shape)} by {error:.2g}; "
                    "type target= as it was served, or data.features=online to use the texts alone"
                )


def relative_distance(values: Tensor, reference: Tensor) -> Tensor:
    """Median over rows of the distance from the reference, relative to its norm."""
    return ((values - reference).norm(dim=1) / reference.norm(dim=1)).median()
