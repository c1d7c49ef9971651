"""Totals of the pool on vLLM's `/metrics`.

The proposer runs in the engine's process, and another process serves `/metrics`.  `PoolMeter` counts on the device and
writes the totals to a file of its process; `PoolCollector` adds the files up at each scrape.  An environment variable
names the folder, so that child processes inherit it.
Axes: N drafters, B requests.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

import torch
from prometheus_client import REGISTRY, multiprocess
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from torch import Tensor

logger = logging.getLogger("vllm.drafterforge")
FOLDER = "DRAFTERFORGE_METRICS_DIR"  # environment variable: the folder of the totals
INTERVAL_S = 1.0  # between two writes
_file_numbers = itertools.count()


@dataclass(frozen=True)
class PoolTotals:
    """What one process counted since it started, by drafter."""

    cycles: dict[str, float]
    accepted_tokens: dict[str, float]
    drafted_tokens: dict[str, float]
    weights: dict[str, float]  # of the last cycle; empty if the selector has none
    switches: float
    selection_seconds: float
    cycle_seconds: float

    @staticmethod
    def read(path: Path) -> PoolTotals | None:
        """The totals in a file; None if it is missing or damaged."""
        with suppress(OSError, ValueError, TypeError):
            return PoolTotals(**json.loads(path.read_bytes()))
        return None


class PoolMeter:
    """Totals of one engine process.  A thread writes them, so a cycle waits neither for the device nor for the disk."""

    def __init__(
        self, names: Sequence[str], device: torch.device, folder: Path | None, interval_s: float = INTERVAL_S
    ) -> None:
        """folder: where the totals are written; None: nowhere."""
        self.names, self.device, self.interval_s = list(names), torch.device(device), interval_s
        self.path = folder / f"{os.getpid()}-{next(_file_numbers)}.json" if folder else None
        width = len(names) + 1  # the last column counts cycles in which nothing was drafted
        self.totals = torch.zeros(3 * width + 1 + len(names), dtype=torch.float64, device=device)
        self.counts = self.totals[: 3 * width].view(3, width)  # cycles, accepted and drafted tokens
        self.switches, self.weights = self.totals[3 * width], self.totals[3 * width + 1 :]
        self.has_weights, self.selection_s, self.cycle_s = False, 0.0, 0.0
        self.changed, self.stopped, self.writing = threading.Event(), threading.Event(), threading.Lock()
        self.thread: threading.Thread | None = None
        if self.device.type == "cuda":
            self.updated, self.stream = torch.cuda.Event(), torch.cuda.Stream(self.device)
            self.host = torch.empty_like(self.totals, device="cpu", pin_memory=True)

    def cycle(
        self,
        choice: Tensor,
        accepted: Tensor,
        drafted: Tensor,
        switched: Tensor,
        weights: Tensor | None,
        selection_s: float,
        cycle_s: float,
    ) -> None:
        """Count a cycle of the batch.

        choice: the drafter of each request, [B]; -1: it drafted nothing, and is not counted.  accepted, drafted: its
        tokens, [B].  switched: whether it is another drafter than in the request's previous cycle, [B].  weights: mean
        weight of each drafter, [N].
        """
        if self.path is None:
            return
        columns = torch.where(choice < 0, len(self.names), choice)
        tokens = torch.stack((torch.ones_like(accepted), accepted, drafted)).to(self.totals.dtype)
        self.counts.scatter_add_(1, columns.expand(3, -1), tokens)
        self.switches += switched.sum()
        if weights is not None:
            self.weights.copy_(weights)
            self.has_weights = True
        self.selection_s, self.cycle_s = self.selection_s + selection_s, self.cycle_s + cycle_s
        if self.device.type == "cuda":
            self.updated.record()
        self.changed.set()
        if self.thread is None:
            self.thread = threading.Thread(target=self._write_at_intervals, name="drafterforge-metrics", daemon=True)
            self.thread.start()
            Finalize(None, self.close, exitpriority=10)

    def publish(self) -> None:
        """Write the totals now; the thread does so at most once in `interval_s`."""
        if self.path is None:
            return
        with self.writing:
            self.changed.clear()
            content = json.dumps(asdict(self._read()))
            temporary = self.path.with_suffix(".tmp")
            with suppress(OSError):  # the folder is gone or the disk is full; serving goes on
                temporary.write_text(content)
                temporary.replace(self.path)

    def close(self) -> None:
        """Write the last totals, and end the thread."""
        self.stopped.set()
        if self.thread is not None:
            self.thread.join(timeout=5)

    def _write_at_intervals(self) -> None:
        while not self.stopped.wait(self.interval_s):
            if self.changed.is_set():
                self.publish()
        if self.changed.is_set():
            self.publish()

    def _read(self) -> PoolTotals:
        """The totals, read from the device on a stream of their own."""
        values = self.totals
        if self.device.type == "cuda":
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(self.updated)
                self.host.copy_(self.totals, non_blocking=True)
            self.stream.synchronize()
            values = self.host
        numbers, width = values.tolist(), len(self.names) + 1
        rows = [dict(zip(self.names, numbers[row * width :], strict=False)) for row in range(3)]
        weights = dict(zip(self.names, numbers[3 * width + 1 :], strict=True)) if self.has_weights else {}
        return PoolTotals(*rows, weights, numbers[3 * width], self.selection_s, self.cycle_s)


class PoolCollector(Collector):
    """Shows the sums over the files of a folder to Prometheus; weights are means over the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> list[Metric]:
        """The families, without values."""
        return list(families([]))

    def collect(self) -> Iterator[Metric]:
        """The families; files that cannot be read are left out."""
        totals = [PoolTotals.read(path) for path in sorted(self.folder.glob("*.json"))]
        return families([part for part in totals if part is not None])


def families(parts: Sequence[PoolTotals]) -> Iterator[Metric]:
    """The metrics of several processes.  Counters get the suffix `_total`."""
    for name, text in (
        ("cycles", "Draft-verify cycles of requests by drafter"),
        ("accepted_tokens", "Accepted drafted tokens by drafter"),
        ("drafted_tokens", "Drafted tokens by drafter"),
    ):
        family = CounterMetricFamily(f"drafterforge_{name}", text, labels=["drafter"])
        for drafter, value in sums([getattr(part, name) for part in parts]).items():
            family.add_metric([drafter], value)
        yield family
    gauge = GaugeMetricFamily(
        "drafterforge_weight", "The selector's weight of each drafter, mean over the last cycle", labels=["drafter"]
    )
    weighted = [part.weights for part in parts if part.weights]
    for drafter, value in sums(weighted).items():
        gauge.add_metric([drafter], value / len(weighted))
    yield gauge
    for name, text in (
        ("switches", "Changes of a request's drafter"),
        ("selection_seconds", "Seconds of learning and selecting"),
        ("cycle_seconds", "Seconds of cycles, selection included"),
    ):
        yield CounterMetricFamily(f"drafterforge_{name}", text, value=sum(getattr(part, name) for part in parts))


def sums(mappings: Sequence[dict[str, float]]) -> Counter[str]:
    """The sum of the values of each key."""
    counts: Counter[str] = Counter()
    for mapping in mappings:
        counts.update(mapping)
    return counts


def metrics_folder() -> Path | None:
    """The folder of the totals; None if `install` could not make it."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


@cache
def install() -> None:
    """Name the folder for this process and its children, and show its totals on this process's `/metrics`.

    vLLM serves prometheus_client's `REGISTRY`.  With several API servers, which set PROMETHEUS_MULTIPROC_DIR, it serves
    a `MultiProcessCollector` instead, so that class is extended.
    """
    if FOLDER not in os.environ:
        try:
            os.environ[FOLDER] = tempfile.mkdtemp(prefix="drafterforge-metrics-")
        except OSError as error:
            logger.warning("drafterforge has no metrics: no temporary folder (%s)", error)
            return
        Finalize(None, shutil.rmtree, (os.environ[FOLDER], True), exitpriority=-100)  # after the children have ended
    collector = PoolCollector(Path(os.environ[FOLDER]))
    REGISTRY.register(collector)

    class MultiProcessCollector(multiprocess.MultiProcessCollector):
        def collect(self) -> Iterator[Metric]:
            yield from super().collect()
            yield from collector.collect()

    multiprocess.MultiProcessCollector = MultiProcessCollector
