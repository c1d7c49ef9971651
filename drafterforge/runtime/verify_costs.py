"""Seconds of one target pass by its number of nodes: measured once per device, then corrected by every cycle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.config.progress import say
from drafterforge.errors import ArtifactError
from drafterforge.kernels import gpu
from drafterforge.kernels.dispatch import kernel_version
from drafterforge.kernels.processor import processor_features
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target
from drafterforge.targets.smollm2 import cache_dir

NODES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128)
CONTEXT = 128  # tokens before the measured nodes
REPEATS = 6  # passes of each number of nodes, in turn
MOST_SECONDS = 8.0  # after which no further turn begins
HORIZON = 24  # cycles over which the factor averages
NODE_HORIZON = 400  # cycles over which the seconds of a node average
NODE_PRIOR = 400.0  # squared deviations of the number of nodes that count for the table
LEAST_SHARE = 0.25  # of the table, that a pass takes at least
MOST_CORRECTION = 8.0  # a single cycle that took longer than this multiple counts as this multiple


class Correction:
    """How the passes of recent cycles differ from those of a table: by a factor, and by seconds for each node.

    The factor follows the load of the machine.  If the memory has become slower, all passes take longer by as many
    seconds, and not by as large a share: then a node costs less than the table times the factor.
    """

    def __init__(self, factor: float = 1.0) -> None:
        """factor: until cycles are known."""
        self.factor, self.cycles = factor, 0
        self.mean_nodes, self.largest = 1.0, 1
        self.spread, self.product = 0.0, 0.0  # sums of squared deviations of nodes, and of nodes times seconds

    def learn(self, nodes: int, table: float, seconds: float) -> None:
        """table: seconds of a pass with so many nodes by the table; seconds: that one took."""
        expected = self.of(nodes, table)
        seconds = min(seconds, MOST_CORRECTION * expected)
        self.cycles = min(self.cycles + 1, HORIZON)
        self.factor += self.factor * (seconds / expected - 1.0) / self.cycles
        self.mean_nodes += (nodes - self.mean_nodes) / self.cycles
        self.largest = max(self.largest, nodes)
        decay, deviation = 1.0 - 1.0 / NODE_HORIZON, nodes - self.mean_nodes
        self.spread = decay * self.spread + deviation**2
        self.product = decay * self.product + deviation * (seconds / self.factor - table)

    @property
    def node_s(self) -> float:
        """Seconds of a node beyond those of the table, before the factor; may be negative."""
        return self.product / (self.spread + NODE_PRIOR)

    def of(self, nodes: int, table: float) -> float:
        """Seconds of a pass, of which the table has `table`."""
        measured = min(nodes, self.largest)  # these cycles say nothing of larger trees
        return self.factor * max(table + (measured - self.mean_nodes) * self.node_s, LEAST_SHARE * table)


class VerifyCosts:
    """Seconds of a pass: those measured at first, corrected by recent cycles of as many rows."""

    def __init__(self, nodes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
        self.nodes, self.seconds = nodes, np.maximum.accumulate(seconds)
        self.table = np.interp(np.arange(nodes[-1] + 1), nodes, self.seconds).tolist()  # by number of nodes
        self.slope = float(self.seconds[-1] - self.seconds[-2]) / (nodes[-1] - nodes[-2])  # of a node beyond the last
        self.corrections: dict[int, Correction] = {}  # by number of rows

    def of(self, num_nodes: int, rows: int) -> float:
        """Seconds of a pass with `num_nodes` nodes in all, of a batch of `rows`."""
        return self._correction(rows).of(num_nodes, self._measured(num_nodes))

    def of_trees(self, rows: int, most: int) -> list[float]:
        """Seconds of passes with trees of 1 to `most` nodes for each row."""
        correction = self._correction(rows)
        return [correction.of(nodes, self._measured(nodes)) for nodes in range(rows, rows * most + 1, rows)]

    def learn(self, num_nodes: int, rows: int, seconds: float) -> None:
        """Correct the costs by a cycle."""
        if rows not in self.corrections:
            self.corrections[rows] = Correction(self._correction(rows).factor)
        self.corrections[rows].learn(num_nodes, self._measured(num_nodes), seconds)

    def _measured(self, num_nodes: int) -> float:
        beyond = max(num_nodes - self.nodes[-1], 0)
        return self.table[num_nodes - beyond] + beyond * self.slope

    def _correction(self, rows: int) -> Correction:
        """Of a batch size; of a new one, the factor of the nearest."""
        if rows in self.corrections or not self.corrections:
            return self.corrections.get(rows) or Correction()
        return Correction(self.corrections[min(self.corrections, key=lambda count: abs(count - rows))].factor)


@dataclass(frozen=True)
class MeasuredCosts:
    """A file of costs: what was measured, and on which device."""

    device: str
    dtype: str
    seconds: dict[str, float]  # by number of nodes


def verify_costs(target: Target, invariant: bool = False, folders: Sequence[Path] = ()) -> VerifyCosts:
    """Costs of a target on this device: from the cache folder or one of `folders`, else measured in a few seconds."""
    path = costs_path(target, invariant)
    for file in (path, *(folder / path.name for folder in folders)):
        with contextlib.suppress(ArtifactError):
            return _costs(_read_file(file).seconds)
    say("measures once how long this device takes for trees of 1 to 128 nodes")
    seconds = {str(count): value for count, value in measure(target, invariant).items()}
    with contextlib.suppress(OSError, ArtifactError):  # in a read-only home folder it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        dtype = str(target.dtype).removeprefix("torch.")
        save_json_atomic(path, asdict(MeasuredCosts(describe_device(target.device), dtype, seconds)))
    return _costs(seconds)


def measured_costs(target: Target) -> dict[Path, MeasuredCosts]:
    """The files of a target's costs in the cache folder; damaged ones are left out."""
    files = {}
    for path in sorted((cache_dir() / "latency" / target.fingerprint).glob("*.json")):
        with contextlib.suppress(ArtifactError):
            files[path] = _read_file(path)
    return files


def _read_file(path: Path) -> MeasuredCosts:
    """The content of a file of costs; ArtifactError if it is missing or damaged."""
    content = parse_as(MeasuredCosts, read_json(path), str(path))
    counts = content.seconds.keys() & map(str, NODES)  # a table has an entry up to the largest
    if counts != content.seconds.keys() or len(counts) < 2 or "1" not in counts or min(content.seconds.values()) <= 0:
        raise ArtifactError(f"{path} is damaged (it holds no costs)")
    return content


def _costs(seconds: Mapping[str, float]) -> VerifyCosts:
    pairs = sorted((int(count), value) for count, value in seconds.items())
    return VerifyCosts(*zip(*pairs, strict=True))


@torch.inference_mode()
def measure(target: Target, invariant: bool = False) -> dict[int, float]:
    """Seconds of a pass for every number of nodes of `NODES` that half of the target's context holds.

    They are medians of several passes; cycles correct for the load of the machine.
    """
    context = min(CONTEXT, target.max_positions // 2)
    sizes = [count for count in NODES if count <= max(target.max_positions // 2, 2)]
    cache = target.new_cache(1)
    cache.set_slots(0, context)
    tokens = torch.zeros(1, context, dtype=torch.long, device=target.device)
    positions = torch.arange(context, device=target.device)[None]
    target.forward(tokens, positions, cache, None, invariant)
    seconds: dict[int, list[float]] = {count: [] for count in sizes}
    began = time.perf_counter()
    for turn in range(REPEATS):
        for count in sizes[:: 1 if turn % 2 else -1]:  # the first pass after a much larger one takes longer
            if time.perf_counter() - began > MOST_SECONDS and turn:
                break
            seconds[count].append(_time_pass(target, cache, context, count, invariant))
    return {count: float(np.median(times)) for count, times in seconds.items()}


def _time_pass(target: Target, cache: object, context: int, count: int, invariant: bool) -> float:
    tokens = torch.zeros(1, count, dtype=torch.long, device=target.device)
    positions = context + torch.arange(count, device=target.device)[None]
    mask = torch.zeros(1, count, context + count, dtype=target.compute_dtype, device=target.device)
    gpu.synchronize(target.device)
    began = time.perf_counter()
    cache.set_slots(context, count)
    states, _ = target.forward(tokens, positions, cache, mask if count > 1 else None, invariant)
    target.logits(states, invariant)
    gpu.synchronize(target.device)
    return time.perf_counter() - began


def costs_path(target: Target, invariant: bool) -> Path:
    """The file of a target's costs on this device, in the cache folder."""
    processor = processor_features() + kernel_version() if target.device.type == "cpu" else ""
    parts = describe_device(target.device), processor, str(target.dtype), invariant, torch.__version__, NODES
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return cache_dir() / "latency" / target.fingerprint / f"{digest}.json"
