"""The `answers` artifact: conversations as token ids, with the target's own tokens marked.

Shards are Arrow streams (`train-00000.arrow`), read by memory mapping; `datasets.Dataset.from_file`
reads them too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drafterforge.artifacts.folder import open_artifact, remake_hint
from drafterforge.artifacts.manifest import Manifest
from drafterforge.errors import ArtifactError, shorten

SPLITS = ("train", "val", "test")

_SCHEMA = pa.schema(
    {
        "index": pa.int32(),  # of the prompt in its split: shards are sorted by length
        "id": pa.string(),
        "domain": pa.string(),
        "task": pa.string(),
        "split": pa.string(),
        "input_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.uint8()),
        "prompt_tokens": pa.int32(),
        "answer_tokens": pa.int32(),
        "finished": pa.bool_(),
    }
)


@dataclass(frozen=True)
class Answer:
    """One conversation; `input_ids[:prompt_tokens]` is a prompt to decode from."""

    id: str
    domain: str
    task: str
    split: str
    input_ids: list[int]  # the whole conversation, up to the last answer token
    loss_mask: list[int]  # 1 where the target emitted the token, its end of turn included
    prompt_tokens: int  # tokens before the first answer token
    answer_tokens: int  # sum of loss_mask
    finished: bool  # the last answer ended by itself rather than by the length limit


def encode_shard(answers: Sequence[tuple[int, Answer]]) -> bytes:
    """Returns an Arrow stream with these rows of (index in the split, answer)."""
    columns = {name: [getattr(a, name) for _, a in answers] for name in _SCHEMA.names[1:]}
    columns["index"] = [index for index, _ in answers]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        stream.write_table(pa.table(columns, schema=_SCHEMA))
    return sink.getvalue().to_pybytes()


def read_shard(path: Path) -> pa.Table:
    """The rows of an Arrow stream, memory-mapped; ArtifactError unless they are what `encode_shard` writes.

    Arrow trusts the offsets in a file, so a forged one would make it read any memory.
    """
    try:
        with pa.ipc.open_stream(pa.memory_map(str(path))) as stream:
            schema = stream.schema
            if not schema.equals(_SCHEMA):
                raise _damaged(path, f"its columns are {shorten(schema.to_string(show_field_metadata=False))}")
            table = stream.read_all()
        table.validate(full=True)
    except FileNotFoundError:  # of a stream, whose oldest shards are deleted
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, shorten(error)) from None
    if empty := [name for name in _SCHEMA.names if table.column(name).null_count]:
        raise _damaged(path, f"{empty[0]} has empty cells")
    if not len(table):
        return table
    ids, mask = table.column("input_ids"), table.column("loss_mask")
    lengths = pc.list_value_length(ids)
    if not lengths.equals(pc.list_value_length(mask)):
        raise _damaged(path, "input_ids and loss_mask differ in length")
    if pc.list_flatten(ids).null_count or pc.list_flatten(mask).null_count:
        raise _damaged(path, "a token is empty")
    prompts = table.column("prompt_tokens")
    if pc.any(pc.or_(pc.less(prompts, 0), pc.greater(prompts, lengths))).as_py():
        raise _damaged(path, "prompt_tokens is beyond the tokens")
    return table


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged ({reason}); {remake_hint(path.parent)}")


class Rows(Sequence[Answer]):
    """A lazy sequence of answers; a slice is a list."""

    @overload
    def __getitem__(self, item: int) -> Answer: ...
    @overload
    def __getitem__(self, item: slice) -> list[Answer]: ...
    def __getitem__(self, item: int | slice) -> Answer | list[Answer]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        return self.answer(item)

    @abstractmethod
    def answer(self, item: int) -> Answer:
        """Returns one answer."""


class AnswerRows(Rows):
    """The answers of one split in the order of its prompts, memory-mapped."""

    def __init__(self, shards: Sequence[Path]) -> None:
        tables = [read_shard(shard) for shard in shards]
        self.table = pa.concat_tables(tables) if tables else _SCHEMA.empty_table()
        self._order = np.argsort(self.table.column("index").to_numpy(), kind="stable")

    def __len__(self) -> int:
        return len(self._order)

    def answer(self, item: int) -> Answer:
        row = self.table.slice(int(self._order[item]), 1)
        input_ids, loss_mask = self.arrays(item)
        return Answer(
            **{
                name: row.column(name)[0].as_py()
                for name in _SCHEMA.names[1:]
                if name not in ("input_ids", "loss_mask")
            },
            input_ids=input_ids.tolist(),
            loss_mask=loss_mask.tolist(),
        )

    def arrays(self, item: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (input_ids int32, loss_mask uint8) of one answer, read-only, without a copy."""
        row = int(self._order[item])
        ids = self.table.column("input_ids")[row].values.to_numpy()
        return ids, self.table.column("loss_mask")[row].values.to_numpy()

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each answer with its prompt, int64."""
        lengths = pc.list_value_length(self.table.column("input_ids"))
        return lengths.to_numpy().astype(np.int64)[self._order]

    @property
    def domains(self) -> np.ndarray:
        return self.table.column("domain").to_numpy()[self._order]

    def prompts(self) -> list[bytes]:
        """The prompt tokens of each answer, as bytes that can be compared and hashed."""
        counts = self.table.column("prompt_tokens").to_numpy()[self._order]
        return [self.arrays(row)[0][:count].tobytes() for row, count in enumerate(counts.tolist())]


class AnswerSet:
    """An opened `answers` artifact."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._rows: dict[str, AnswerRows] = {}

    @classmethod
    def open(
        cls,
        path: Path | str,
        target_fingerprint: str | None = None,
        *,
        target: str | None = None,
        verify: bool = True,
    ) -> AnswerSet:
        """Opens an `answers` folder after checking its hashes and its target."""
        manifest = open_artifact(path, "answers", target_fingerprint=target_fingerprint, target=target, verify=verify)
        return cls(Path(path), manifest)

    def rows(self, split: str = "train") -> AnswerRows:
        """Returns the answers of a split in the order of its prompts."""
        assert split in SPLITS, split
        if split not in self._rows:
            names = sorted(n for n in self.manifest.files if n.startswith(f"{split}-"))
            self._rows[split] = AnswerRows([self.path / name for name in names])
        return self._rows[split]


def answer_stats(shards: Sequence[Path]) -> dict[str, Any]:
    """Returns counts, token lengths and the share of finished answers by split, and counts by domain."""
    splits: dict[str, Any] = {}
    domains: Counter[str] = Counter()
    for split in SPLITS:
        table = AnswerRows([shard for shard in shards if shard.name.startswith(f"{split}-")]).table
        if not len(table):
            continue
        splits[split] = {
            "answers": len(table),
            "prompt_tokens": _distribution(table.column("prompt_tokens").to_numpy()),
            "answer_tokens": _distribution(table.column("answer_tokens").to_numpy()),
            "finished": round(float(table.column("finished").to_numpy().mean()), 4),
        }
        domains.update(table.column("domain").to_pylist())
    return {"splits": splits, "domains": dict(sorted(domains.items()))}


def _distribution(values: np.ndarray) -> dict[str, float]:
    """Returns sum, mean, percentiles and maximum of token counts."""
    names = {"p50": 50, "p90": 90, "p99": 99}
    return {
        "sum": int(values.sum()),
        "mean": round(float(values.mean()), 2),
        **{name: round(float(np.percentile(values, q)), 1) for name, q in names.items()},
        "max": int(values.max()),
    }
