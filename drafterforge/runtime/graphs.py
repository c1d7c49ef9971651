"""Cycles of fixed shapes, which a GPU replays from two graphs: draft, and verify with commit.

The host does not wait between them: lengths, roots and committed tokens stay on the device, and the host reads one
small tensor at the end of a cycle.  Fixed shapes need spare room: the target's cache of S slots holds [text | one spare
slot | tree], the drafter's [text | levels]; slots between a row's text and the end are never read.  A buffer that
becomes too small is replaced by one of twice the size.  Without a GPU the same cycles run without graphs, as in tests.
Axes: B rows, T tree nodes, D drafted levels, A = D + 1 committed tokens at most, H hidden.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.propose import append_slots, draft_levels, new_draft_cache
from drafterforge.drafters.eagle3.stack import StackReader
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.acceptance import accept
from drafterforge.runtime.batch import Batch, Joining, Mark, Row
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.shapes import ROOT_ALONE
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape, ancestor_mask, root_only
from drafterforge.tree.masks import level_mask

log = logging.getLogger(__name__)

FIRST_SLOTS = 512  # of the smallest buffers; larger ones have twice as many, and so on
MOST_BUFFERS, MOST_CYCLES = 16, 64  # buffers kept for later batches; trees and samplings captured in one buffer
WARM_UPS = 2  # runs before a capture, in which kernels are chosen and memory is allocated


class StaticRows:
    """State of B rows in buffers that never move."""

    def __init__(self, target: Target, drafter: FusedDrafter | None, batch: int, slots: int, max_depth: int) -> None:
        device, dtype = target.device, target.compute_dtype
        self.target, self.drafter, self.batch, self.slots, self.max_depth = target, drafter, batch, slots, max_depth

        def zeros(*shape: int, kind: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        width, hidden = max_depth + 1, target.head_weight.shape[1]
        self.cache = target.new_cache(batch)
        self.cache.reserve(slots)
        self.lengths, self.root = zeros(batch), zeros(batch)
        self.tokens, self.counts = zeros(batch, width), zeros(batch) + 1  # committed by the last cycle
        self.features = zeros(batch, width, 3 * hidden, kind=dtype)
        self.uniform = zeros(batch, width, kind=torch.float64)
        self.stable = zeros(batch)
        self.pending = zeros(batch, 1, kind=torch.bool)  # whether the drafter has yet to read a row's last commit
        self.seen = zeros(batch, target.head_weight.shape[0], kind=torch.bool)  # tokens with a repetition penalty
        if drafter is not None:
            self.draft_cache = new_draft_cache(drafter, batch)
            self.draft_cache.reserve(slots)
            self.last = zeros(batch, drafter.embedding.shape[1], kind=drafter.embedding.dtype)
        self.cycles: dict[tuple, StaticCycle] = {}
        self.owner: weakref.ref[StaticBatch] | None = None  # the batch that decodes in these buffers

    @property
    def free(self) -> bool:
        """Whether no living batch uses these buffers."""
        return self.owner is None or self.owner() is None

    def state(self) -> list[Tensor]:
        """Tensors that a cycle changes and the next one reads, without keys beyond the text, which are overwritten."""
        state = [self.lengths, self.root, self.tokens, self.counts, self.features, self.stable, self.pending, self.seen]
        return state if self.drafter is None else [*state, self.last]

    def copy_row(self, row: int, source: StaticRows, source_row: int) -> None:
        """Overwrite a row with one of other buffers."""
        for tensor, source_tensor in zip(self.state(), source.state(), strict=True):
            tensor[row] = source_tensor[source_row]
        copy_keys(self.cache, row, source.cache.data[:, :, source_row])
        if self.drafter is not None:
            copy_keys(self.draft_cache, row, source.draft_cache.data[:, :, source_row])


def copy_keys(cache: KeyValueCache, row: int, keys: Tensor) -> None:
    """Overwrite a row's keys and values with `keys`, [L, 2, H, S, D], as many slots as both have."""
    slots = min(keys.shape[3], cache.data.shape[4])
    cache.data[:, :, row, :, :slots] = keys[:, :, :, :slots]


class StaticCycle:
    """The device's part of cycles with one tree shape: what `Batch.draft`, `verify` and `commit` do in fixed shapes."""

    def __init__(self, rows: StaticRows, shape: TreeShape, batch: Batch, capture: bool) -> None:
        self.rows, self.shape, self.picker, self.invariant = rows, shape, batch.picker, batch.invariant
        self.record = CycleRecord(rows.root, [shape.depth] * rows.batch, shape)  # graphs overwrite its tensors
        self.record.plan_uniform(shape)
        self.graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        if capture:
            self._capture()

    def draft(self) -> None:
        """Let the drafter read the tokens of the last cycle, and draft."""
        if self.graphs is None:
            self._draft()
        else:
            self.graphs[0].replay()

    def verify(self) -> Tensor:
        """Verify, accept and commit; returns the packed `Acceptance`."""
        if self.graphs is None:
            self._verify()
        else:
            self.graphs[1].replay()
        return self.record.packed

    def _capture(self) -> None:
        """Capture both graphs, or neither; restores the state that the warm-ups changed."""
        state = [tensor.clone() for tensor in self.rows.state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    self._draft()
                    self._verify()
            torch.cuda.current_stream().wait_stream(stream)
            draft, verify = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(draft):
                self._draft()
            with torch.cuda.graph(verify, pool=draft.pool()):
                self._verify()
            self.graphs = draft, verify
        except RuntimeError as error:
            log.warning("no CUDA graphs, decoding continues without: %s", str(error).strip().splitlines()[0])
        for tensor, value in zip(self.rows.state(), state, strict=True):
            tensor.copy_(value)

    def _draft(self) -> None:
        rows, shape, record = self.rows, self.shape, self.record
        if rows.drafter is None:
            record.tree = root_only(rows.root)
            return
        levels = shape.top_k * max(shape.depth - 1, 0)
        base = rows.slots - levels
        last = append_slots(
            rows.drafter, rows.draft_cache, rows.tokens, rows.features, rows.stable, rows.counts, rows.slots
        )
        rows.last.copy_(torch.where(rows.pending, last, rows.last))
        rows.stable.add_(rows.counts * rows.pending[:, 0])
        rows.pending.zero_()
        record.tree = draft_levels(rows.drafter, rows.draft_cache, rows.last, rows.root, rows.stable, base, shape)

    def _verify(self) -> None:
        rows, record, depth = self.rows, self.record, self.shape.depth
        tree = record.tree
        count = tree.tokens.shape[1]
        base = rows.slots - count
        ancestors = ancestor_mask(tree.parents, depth)
        rows.cache.set_slots(base, count)
        mask = level_mask(ancestors, rows.lengths, base, rows.target.compute_dtype)
        positions = rows.lengths[:, None] + tree.levels
        states, features = rows.target.forward(tree.tokens, positions, rows.cache, mask, self.invariant)
        record.logits = rows.target.logits(states, self.invariant)
        counts = accept(record, ancestors, self.picker, rows.uniform, rows.seen if self.picker.penalised else None)
        path, tokens = record.path, record.next_tokens
        steps = torch.arange(depth + 1, device=path.device)
        accepted = steps < counts[:, None]
        # keys that are not accepted go to the spare slot before the tree
        destinations = torch.where(accepted, rows.lengths[:, None] + steps, base - 1)
        index = torch.arange(rows.batch, device=path.device)[:, None]
        rows.cache.data[:, :, index, :, destinations] = rows.cache.data[:, :, index, :, base + path]
        rows.lengths.add_(counts)
        rows.root.copy_(tokens.gather(1, counts[:, None] - 1)[:, 0])
        rows.tokens[:, : depth + 1] = tokens
        rows.features[:, : depth + 1] = features.gather(1, path[:, :, None].expand(-1, -1, features.shape[2]))
        rows.counts.copy_(counts)
        rows.pending.fill_(True)
        record.logits = record.distribution = None  # large, and not needed any more


class StaticBatch(Batch):
    """A `Batch` whose cycles have fixed shapes, for an EAGLE-3 drafter or none."""

    def __init__(
        self,
        target: Target,
        drafter: FusedDrafter | None,
        pool: dict[tuple, StaticRows],
        shape: TreeShape,
        invariant: bool = False,
    ) -> None:
        """pool: buffers of earlier batches, reused with their graphs.  shape: the largest tree of any cycle."""
        super().__init__(target, None, invariant)
        self.drafter, self.pool, self.largest = drafter, pool, shape
        self.stack = None if drafter is None else StackedDrafters([drafter])
        self.static: StaticRows | None = None
        self.samplings: tuple[Sampling, ...] = ()  # of the rows, without their seeds
        self.fresh_seen: Tensor | None = None

    def _see(self, seen: Tensor | None, root: Tensor) -> None:
        """Remember the tokens of the row that joins next."""
        self.fresh_seen = None if seen is None else seen.scatter(1, root[:, None], True)

    def _reader(self, row: Row) -> StackReader | None:
        """See `Batch`."""
        return None if self.stack is None else StackReader(self.stack)

    def _open_row(self, length: int) -> KeyValueCache:
        """See `Batch`; the buffers take the row over once its prompt is read."""
        return self.target.new_cache()

    def _join(self, joining: Joining, text: Tensor) -> None:
        """Copy a new row's prompt into the buffers."""
        fresh = StaticRows(self.target, self.drafter, 1, self._slots(text.numel()), self.largest.depth)
        copy_keys(fresh.cache, 0, joining.cache.data[:, :, 0])
        fresh.lengths.fill_(text.numel() - 1)
        fresh.root.copy_(text[-1:])
        if self.fresh_seen is not None:
            fresh.seen.copy_(self.fresh_seen)
        if self.drafter is not None:
            row = joining.prefill.reader.row
            copy_keys(fresh.draft_cache, 0, row.cache.data[:, :, 0])
            fresh.stable.fill_(row.stable[0])
            fresh.last.copy_(row.last[0])
        present = [] if self.static is None else [(self.static, row) for row in range(self.static.batch)]
        self._gather([*present, (fresh, 0)])

    def _slots(self, length: int) -> int:
        """Slots of buffers for a text of this length, the tokens that a cycle adds, a tree and the drafted levels."""
        shape, slots = self.largest, FIRST_SLOTS
        needed = length + 2 * (shape.depth + 2) + max(shape.num_tokens, shape.top_k * shape.depth) + 1
        while slots < needed:
            slots *= 2
        return slots

    def _gather(self, sources: list[tuple[StaticRows, int]]) -> None:
        """Copy rows of other buffers into buffers of the right size."""
        slots = self._slots(max(row.length for row in self.rows))
        key = (len(sources), slots, self.largest, self.drafter is None)
        name = next((name for name, rows in self.pool.items() if name[:4] == key and rows.free), None)
        if name is None:
            rows = StaticRows(self.target, self.drafter, len(sources), slots, self.largest.depth)
            name = (*key, id(rows))
        else:
            rows = self.pool.pop(name)
        self.pool[name] = rows  # at the end: the least recently used buffers are dropped first
        for old in [name for name, rows in self.pool.items() if rows.free][: max(len(self.pool) - MOST_BUFFERS, 0)]:
            if self.pool[old] is not rows:
                del self.pool[old]
        for row, (source, source_row) in enumerate(sources):
            rows.copy_row(row, source, source_row)
        self._release()
        self.static, rows.owner = rows, weakref.ref(self)
        self.root, self.samplings = rows.root, tuple(replace(row.sampling, seed=0) for row in self.rows)

    def _release(self) -> None:
        if self.static is not None:
            self.static.owner, self.static = None, None

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.rows = [self.rows[row] for row in rows]
        if rows:
            self.picker = self._picker(self.rows)
            self._gather([(self.static, row) for row in rows])
        else:
            self._release()

    def cycle(self, shape: TreeShape) -> list[Row]:
        """See `Batch`."""
        on_gpu = self.target.device.type == "cuda"
        with torch.cuda.device(self.target.device) if on_gpu else nullcontext():
            return super().cycle(shape)

    def plan(self, record: CycleRecord) -> None:
        """Plan the requested tree for every row; make room in the buffers, and write the noise."""
        shape, largest = record.shape, self.largest
        if shape.num_tokens > largest.num_tokens or shape.depth > largest.depth or shape.top_k > largest.top_k:
            raise DrafterforgeError(f"this batch decodes with trees up to {largest}, got {shape}")
        record.plan_uniform(ROOT_ALONE if self.drafter is None else shape)
        if self._slots(self._base) > self.static.slots:
            self._gather([(self.static, row) for row in range(self.static.batch)])
        depth = record.bounds.depth
        uniform = self.picker.noise([row.length + 1 for row in self.rows], depth + 1)
        if uniform is not None:
            self.static.uniform[:, : depth + 1] = uniform

    def _device_cycle(self, shape: TreeShape) -> StaticCycle:
        """The cycle of this shape and these samplings, captured at its first use."""
        key, cycles = (shape, self.invariant, self.samplings), self.static.cycles
        cycle = cycles.pop(key, None) or StaticCycle(self.static, shape, self, self.target.device.type == "cuda")
        cycles[key] = cycle  # at the end: the least recently used cycle is dropped first
        if len(cycles) > MOST_CYCLES:
            del cycles[next(iter(cycles))]
        return cycle

    def draft(self, record: CycleRecord) -> None:
        """Let the drafter read the tokens of the last cycle, and draft a tree for each row."""
        self._device_cycle(record.bounds).draft()

    def verify(self, record: CycleRecord) -> None:
        """Verify the trees, and commit the accepted tokens on the device."""
        record.packed = self._device_cycle(record.bounds).verify()

    def _keep_accepted(self, record: CycleRecord, paths: list[list[int]]) -> None:
        """Nothing to do: `verify` has moved the keys."""

    def mark(self) -> Mark:
        """The current moment, with an event on a GPU, so the host need not wait."""
        event = None
        if self.target.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return Mark(time.perf_counter(), event)

    def charge(self, record: CycleRecord, marks: Sequence[Mark]) -> None:
        """Set the seconds of the steps; `host` is the time in which the GPU neither drafts nor verifies."""
        start, planned, drafted, verified, _, end = marks
        seconds = record.seconds
        seconds["draft"], seconds["verify"] = planned.until(drafted), drafted.until(verified)
        seconds["host"] = end.time - start.time - seconds["draft"] - seconds["verify"]
