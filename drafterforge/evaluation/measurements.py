"""`cycles.parquet`: every answer and cycle behind a report, so that each figure can be recomputed.

A line is an answer (`kind` answer) or one of its cycles (`kind` cycle).  Requests decoded together share a `group`;
each of their answers has the `seconds` of the group.
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
from drafterforge.evaluation.requests import Request
from drafterforge.runtime.rows import STEPS, Cycle, Generation

FILE = "cycles.parquet"
CYCLE_COLUMNS = [column.name for column in fields(Cycle)]
TEXT_COLUMNS = ("kind", "source", "method", "selector", "scheduler", "numerics", "dtype", "axis")
REQUEST_COLUMNS = ("domain", "before", "question")
INTEGER_COLUMNS = ("group", "request", "turn", "prompt_tokens", "num_tokens", "batch_size", "peak_bytes", "cycle")
TREE_COLUMNS = ("depth", "num_nodes", "accept_length", "accepted", "top_k")
SCHEMA = pyarrow.schema(
    [(name, pyarrow.string()) for name in (*TEXT_COLUMNS, *REQUEST_COLUMNS, "drafter", "stop_reason", "options")]
    + [("drafters", pyarrow.list_(pyarrow.string())), ("tokens", pyarrow.list_(pyarrow.int32()))]
    + [(name, pyarrow.int64()) for name in (*INTEGER_COLUMNS, *TREE_COLUMNS)]
    + [(name, pyarrow.float64()) for name in ("temperature", "at", "seconds")]
    + [(f"{step}_s", pyarrow.float64()) for step in STEPS]
    + [("refresh_s", pyarrow.float64()), ("external", pyarrow.bool_())]
    + [("other_cores", pyarrow.float64()), ("session", pyarrow.int64())]
)
OPTIONAL_COLUMNS = ("other_cores", "session")  # columns that files of earlier versions do not have


@dataclass(frozen=True)
class RequestInfo:
    """A request without its answer."""

    request: int  # index in the suite
    domain: str
    before: str = ""
    question: str = ""
    turn: int = 0
    prompt_tokens: int = 0

    @staticmethod
    def of(index: int, request: Request) -> RequestInfo:
        return RequestInfo(index, request.domain, request.before, request.question, request.turn, len(request.tokens))


@dataclass
class Measurement:
    """Answers of one method to requests that were decoded together, live or replayed."""

    method: str
    requests: list[RequestInfo]
    answers: list[Generation]  # replayed cycles have no seconds
    seconds: float = 0.0  # of the group; 0: replayed
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
    axis: str = ""  # the quantity that a scaling suite varies
    at: float = 0.0  # value on that axis
    peak_bytes: int | None = None
    other_cores: float | None = None  # processor cores that other programs used meanwhile
    session: int = 0  # Unix time at which the measuring process began

    @property
    def domain(self) -> str:
        """Domain of its requests; `mixed` for several."""
        domains = {request.domain for request in self.requests}
        return domains.pop() if len(domains) == 1 else "mixed"

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def cycles(self) -> list[Cycle]:
        return [cycle for answer in self.answers for cycle in answer.cycles]


def save_measurements(path: Path, measurements: Sequence[Measurement]) -> None:
    """Write measurements atomically; equal measurements give equal bytes."""
    lines = [line for measurement in measurements for line in _lines(measurement)]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(lines, schema=SCHEMA), file, compression="zstd")
    write_bytes_atomic(path, file.getvalue())


def load_measurements(path: Path) -> list[Measurement]:
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ArtifactError(f"{path} is no table of cycles ({error}); type overwrite=true to measure again") from error
    if missing := sorted(set(SCHEMA.names) - set(OPTIONAL_COLUMNS) - set(table.column_names)):
        raise ArtifactError(f"{path} has no column {missing[0]}; wanted a cycles.parquet that eval wrote")
    measurements: list[Measurement] = []
    key = None
    for line in table.to_pylist():
        if line["kind"] == "cycle":
            measurements[-1].answers[-1].cycles.append(Cycle(**{name: line[name] for name in CYCLE_COLUMNS}))
            continue
        group = tuple(line[name] for name in ("source", "method", "axis", "at", "temperature", "batch_size", "group"))
        if group != key or line["batch_size"] == 1:
            measurements.append(_measurement(line))
            key = group
        measurements[-1].requests.append(RequestInfo(**{info.name: line[info.name] for info in fields(RequestInfo)}))
        times = {step: line[f"{step}_s"] or 0.0 for step in STEPS}
        answer = Generation([], line["tokens"], stop_reason=line["stop_reason"], time_s=times)
        measurements[-1].answers.append(answer)
    return measurements


def _lines(measurement: Measurement) -> Iterator[dict[str, Any]]:
    keys = ("source", "method", "selector", "scheduler", "numerics", "dtype", "axis", "at", "temperature", "group")
    keys += ("external", "drafters", "options", "other_cores", "session")
    shared = {name: getattr(measurement, name) for name in keys} | {"batch_size": len(measurement.answers)}
    for request, answer in zip(measurement.requests, measurement.answers, strict=True):
        shared |= {info.name: getattr(request, info.name) for info in fields(RequestInfo)}
        yield {
            **shared,
            "kind": "answer",
            "num_tokens": len(answer.tokens),
            "tokens": answer.tokens,
            "stop_reason": answer.stop_reason,
            "seconds": measurement.seconds,
            "peak_bytes": measurement.peak_bytes,
            **{f"{step}_s": answer.time_s.get(step, 0.0) for step in STEPS},
        }
        for number, cycle in enumerate(answer.cycles):
            yield {**shared, "kind": "cycle", "cycle": number, **{name: getattr(cycle, name) for name in CYCLE_COLUMNS}}


def _measurement(line: dict[str, Any]) -> Measurement:
    names = {column.name for column in fields(Measurement)} - {"requests", "answers"}
    return Measurement(requests=[], answers=[], **{name: line[name] for name in names if line.get(name) is not None})
