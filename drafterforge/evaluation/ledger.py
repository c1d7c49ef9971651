"""`cycles.parquet`: every answer and every cycle that a report is made of, so that each figure can be made again.

One table; a line is an answer (`kind` answer) or a cycle of one (`kind` cycle).  Requests decoded together share a
`group`, and its `seconds` stand at each of their answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.measure import Answered, Method
from drafterforge.evaluation.requests import Request
from drafterforge.runtime.batch import STEPS, Cycle, Generation

FILE = "cycles.parquet"
CYCLE = [one.name for one in fields(Cycle)]
WORDS = ("kind", "source", "method", "selector", "scheduler", "numerics", "dtype", "axis")
ASKED = ("domain", "before", "question")
INTEGERS = ("group", "request", "turn", "prompt_tokens", "num_tokens", "batch_size", "peak_bytes", "cycle")
COUNTED = ("depth", "num_nodes", "accept_length", "accepted", "top_k")
SCHEMA = pyarrow.schema(
    [(name, pyarrow.string()) for name in (*WORDS, *ASKED, "drafter", "stop_reason", "options")]
    + [("drafters", pyarrow.list_(pyarrow.string())), ("tokens", pyarrow.list_(pyarrow.int32()))]
    + [(name, pyarrow.int64()) for name in (*INTEGERS, *COUNTED)]
    + [(name, pyarrow.float64()) for name in ("temperature", "at", "seconds")]
    + [(f"{step}_s", pyarrow.float64()) for step in STEPS]
    + [("refresh_s", pyarrow.float64()), ("external", pyarrow.bool_())]
)


@dataclass(frozen=True)
class Asked:
    """A request as the ledger knows it."""

    request: int  # place in the suite
    domain: str
    before: str = ""
    question: str = ""
    turn: int = 0
    prompt_tokens: int = 0

    @staticmethod
    def of(place: int, request: Request) -> Asked:
        """Of a request of the suite."""
        return Asked(place, request.domain, request.before, request.question, request.turn, len(request.tokens))


@dataclass
class Entry:
    """What one method made of requests that were decoded together, live or replayed."""

    method: str
    asked: list[Asked]
    answers: list[Generation]  # of a replay: cycles without seconds
    seconds: float = 0.0  # of all together; 0: replayed
    source: str = "live"  # live | replay
    selector: str = "none"
    scheduler: str = "none"
    drafters: list[str] = field(default_factory=list)
    numerics: str = ""
    dtype: str = ""
    options: str = ""  # of the selector, as JSON
    external: bool = False
    group: int = 0
    temperature: float = 0.0
    axis: str = ""  # what was varied, in a scaling suite
    at: float = 0.0  # its value
    peak_bytes: int | None = None

    @staticmethod
    def of(method: Method, asked: Sequence[Asked], answered: Answered, dtype: str, **more: Any) -> Entry:
        """Of a live measurement."""
        return Entry(
            method.name,
            list(asked),
            answered.answers,
            answered.seconds,
            selector=method.selector,
            scheduler=method.scheduler,
            drafters=list(method.drafters),
            numerics=method.engine.numerics,
            dtype=dtype,
            external=method.external,
            peak_bytes=answered.peak_bytes,
            **more,
        )

    @property
    def domain(self) -> str:
        """Of its requests, if they agree."""
        found = {one.domain for one in self.asked}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def num_tokens(self) -> int:
        """Of all its answers."""
        return sum(len(one.tokens) for one in self.answers)

    @property
    def cycles(self) -> list[Cycle]:
        """Of all its answers."""
        return [cycle for one in self.answers for cycle in one.cycles]


def save_entries(path: Path, entries: Sequence[Entry]) -> None:
    """Write entries; a kill leaves the whole file or none.  The same entries give the same bytes."""
    lines = [line for entry in entries for line in _lines(entry)]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(lines, schema=SCHEMA), file, compression="zstd")
    write_bytes_atomic(path, file.getvalue())


def load_entries(path: Path) -> list[Entry]:
    """Read what `save_entries` wrote."""
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ArtifactError(f"{path} is no ledger of cycles ({error}); type overwrite=true to measure anew") from error
    if missing := sorted(set(SCHEMA.names) - set(table.column_names)):
        raise ArtifactError(f"{path} has no column {missing[0]}; wanted a cycles.parquet that eval wrote")
    found: list[Entry] = []
    key = None
    for line in table.to_pylist():
        if line["kind"] == "cycle":
            found[-1].answers[-1].cycles.append(_cycle(line))
            continue
        own = tuple(line[name] for name in ("source", "method", "axis", "at", "temperature", "group"))
        if own != key or line["batch_size"] == 1:
            found.append(_entry(line))
            key = own
        found[-1].asked.append(Asked(**{one.name: line[one.name] for one in fields(Asked)}))
        times = {step: line[f"{step}_s"] or 0.0 for step in STEPS}
        found[-1].answers.append(Generation([], line["tokens"], stop_reason=line["stop_reason"], time_s=times))
    return found


def _lines(entry: Entry) -> Iterator[dict[str, Any]]:
    shared = {name: getattr(entry, name) for name in ("source", "method", "selector", "scheduler", "numerics", "dtype")}
    shared |= {name: getattr(entry, name) for name in ("axis", "at", "temperature", "group", "external")}
    shared |= {"batch_size": len(entry.answers), "drafters": entry.drafters, "options": entry.options}
    for asked, answer in zip(entry.asked, entry.answers, strict=True):
        place = {one.name: getattr(asked, one.name) for one in fields(Asked)}
        yield {
            **shared,
            **place,
            "kind": "answer",
            "num_tokens": len(answer.tokens),
            "tokens": answer.tokens,
            "stop_reason": answer.stop_reason,
            "seconds": entry.seconds,
            "peak_bytes": entry.peak_bytes,
            **{f"{step}_s": answer.time_s.get(step, 0.0) for step in STEPS},
        }
        for number, cycle in enumerate(answer.cycles):
            own = {name: getattr(cycle, name) for name in CYCLE}
            yield {**shared, **place, "kind": "cycle", "cycle": number, **own}


def _cycle(line: dict[str, Any]) -> Cycle:
    return Cycle(**{name: line[name] for name in CYCLE})


def _entry(line: dict[str, Any]) -> Entry:
    own = {one.name: line[one.name] for one in fields(Entry) if one.name in line and one.name not in ("tokens",)}
    return Entry(asked=[], answers=[], **{name: value for name, value in own.items() if name not in ("asked",)})
