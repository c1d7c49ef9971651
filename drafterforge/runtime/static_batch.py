"""Cycles of fixed shapes, which a GPU replays from three graphs: draft; verify and commit; read and judge.

The host does not wait between them: lengths, roots and committed tokens stay on the device, and the host reads one
small tensor at the end of a cycle, then selects drafters and trees for the next one.  A buffer that becomes too small
is replaced by one of twice the size.  Without a GPU the same cycles run without graphs, as in tests.
Axes: B rows, N drafters, C children.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.stack import StackReader
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.kernels import gpu
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.capture import host_copy
from drafterforge.runtime.rows import Joining, Mark, Row
from drafterforge.runtime.shapes import ROOT_ALONE, require_within
from drafterforge.runtime.static_cycle import HostReport, StaticCycle
from drafterforge.runtime.static_pool import StaticSelection
from drafterforge.runtime.static_rows import StaticRows
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

FIRST_SLOTS = 512  # of the smallest buffers; larger ones have twice as many, and so on
MOST_BUFFERS, MOST_CYCLES = 16, 64  # buffers kept for later batches; cycles captured in one buffer


class StaticBatch(Batch):
    """A `Batch` whose cycles have fixed shapes, for EAGLE-3 drafters of one architecture or none."""

    has_outputs = False  # they stay in the buffers of the graphs

    def __init__(
        self,
        target: Target,
        drafters: StackedDrafters | None,
        buffers: dict[tuple, StaticRows],
        shape: TreeShape,
        invariant: bool = False,
        selection: StaticSelection | None = None,
    ) -> None:
        """buffers: of earlier batches, reused with their graphs.  shape: the largest tree of any cycle.  selection: of
        the drafters of a pool; None: there is one drafter.
        """
        super().__init__(target, None, invariant)
        self.drafters, self.buffers, self.largest, self.selection = drafters, buffers, shape, selection
        self.static: StaticRows | None = None
        self.fresh_seen: Tensor | None = None
        self.current: StaticCycle | None = None  # of this cycle
        self.host_report: HostReport | None = None
        self.host_tokens: Tensor | None = None  # committed in this cycle, in the host's memory, [B, D + 1]
        self.reading: Mark | None = None  # when the drafters began to read

    def _see(self, seen: Tensor | None, root: Tensor) -> None:
        """Remember the tokens of the row that joins next."""
        self.fresh_seen = None if seen is None else seen.scatter(1, root[:, None], True)

    def _reader(self, row: Row) -> StackReader | None:
        """See `Batch`."""
        if self.drafters is None:
            return None
        if self.selection is None:
            return StackReader(self.drafters)
        return self.selection.stack_reader(self.drafters, row.length)

    def _open_row(self, length: int, decodes: bool) -> KeyValueCache:
        """See `Batch`; the buffers take the row over once its prompt is read."""
        return self.target.new_cache()

    def _join(self, joining: Joining, text: Tensor) -> None:
        """Copy a new row's prompt into the buffers."""
        fresh = self._new_rows(1, self._slots(text.numel()))
        reader = None if self.drafters is None else joining.prefill.reader
        fresh.set_prompt(joining.cache, text, self.fresh_seen, reader)
        present = [] if self.static is None else [(self.static, row) for row in range(self.static.batch)]
        self._gather([*present, (fresh, 0)])
        if self.selection is not None:
            self.selection.join(text, joining.prefill.features, fresh.logits, reader)

    def _new_rows(self, batch: int, slots: int) -> StaticRows:
        trie_nodes = 0 if self.selection is None else self.selection.trie_nodes
        return StaticRows(self.target, self.drafters, batch, slots, self.largest.depth, trie_nodes)

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
        trie_nodes = 0 if self.selection is None else self.selection.trie_nodes
        key = (len(sources), slots, self.largest, None if self.drafters is None else id(self.drafters), trie_nodes)
        name = next((name for name, rows in self.buffers.items() if name[:5] == key and rows.free), None)
        if name is None:
            rows = self._new_rows(len(sources), slots)
            name = (*key, id(rows))
        else:
            rows = self.buffers.pop(name)
        self.buffers[name] = rows  # at the end: the least recently used buffers are dropped first
        free = [name for name, rows in self.buffers.items() if rows.free]
        for old in free[: max(len(self.buffers) - MOST_BUFFERS, 0)]:
            if self.buffers[old] is not rows:
                del self.buffers[old]
        for row, (source, source_row) in enumerate(sources):
            rows.copy_row(row, source, source_row)
        self._release()
        self.static, rows.owner = rows, weakref.ref(self)
        self.root = rows.root
        rows.sampling.copy_(self.picker.numbers)

    def _release(self) -> None:
        if self.static is not None:
            self.static.owner, self.static = None, None

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.rows = [self.rows[row] for row in rows]
        if self.selection is not None:
            self.selection.keep(rows)
        if rows:
            self.picker = self._picker(self.rows)
            self._gather([(self.static, row) for row in rows])
        else:
            self._release()

    def cycle(self, shape: TreeShape) -> list[Row]:
        """See `Batch`."""
        with gpu.use(self.target.device):
            return super().cycle(shape)

    def plan(self, record: CycleRecord) -> None:
        """Plan every row's drafter and tree; make room in the buffers, and write what the device needs to know."""
        if self.selection is None:
            record.plan_uniform(ROOT_ALONE if self.drafters is None else record.shape)
            require_within(record.bounds, self.largest)
            row_plans = None
        else:
            depth = self.largest.depth  # deeper trees than the answer needs, but no new shapes
            record.limits = [depth] * len(self.rows)
            row_plans = self.selection.plan(record, self.largest)
        if self._slots(self._base) > self.static.slots:
            self._gather([(self.static, row) for row in range(self.static.batch)])
        if row_plans is not None:
            self.static.row_plans.copy_(gpu.upload(row_plans, self.target.device))
        if self.static.tries is not None:
            self.static.tries.copy_(gpu.upload(self.selection.tries(record), self.target.device))
        depth = record.bounds.depth
        uniform = self.picker.noise([row.length + 1 for row in self.rows], depth + 1)
        if uniform is not None:
            self.static.uniform[:, : depth + 1] = uniform
        self.current = self._device_cycle(record.bounds)

    def _device_cycle(self, shape: TreeShape) -> StaticCycle:
        """The cycle of this shape and these steps of sampling, captured at its first use."""
        masked, policy, report = False, None, None
        if self.selection is not None:
            masked, policy, report = self.selection.masked, self.selection.policy, self.selection.report
        key, cycles = (shape, masked, report, self.invariant, self.picker.steps), self.static.cycles
        cycle = cycles.pop(key, None)
        if cycle is None:
            picker = self.picker.reading(self.static.sampling)
            cycle = StaticCycle(self.static, shape, picker, self.invariant, masked, policy, report)
        cycles[key] = cycle  # at the end: the least recently used cycle is dropped first
        if len(cycles) > MOST_CYCLES:
            del cycles[next(iter(cycles))]
        return cycle

    def draft(self, record: CycleRecord) -> None:
        """Draft a tree for each row."""
        self.current.draft()

    def verify(self, record: CycleRecord) -> None:
        """Verify the trees, commit the accepted tokens on the device, and let the drafters read them."""
        self.current.verify()
        self.reading = self.mark()
        self.current.read()
        record.packed = self.current.record.packed

    def _receive(self, record: CycleRecord) -> Tensor:
        """See `Batch`."""
        packed, cycle = host_copy(record.packed), self.current
        self.host_report = cycle.unpack(packed)
        accepted = packed[:, : cycle.num_accepted]
        self.host_tokens = accepted[:, cycle.num_accepted - cycle.shape.depth - 1 :]
        return accepted

    def _keep_accepted(self, record: CycleRecord, paths: list[list[int]]) -> None:
        """Nothing to do: the device has moved the keys."""

    def refresh(self, record: CycleRecord) -> None:
        """Let the selectors learn; the drafters have read the committed tokens."""
        if self.selection is not None and not all(row.answer.stop_reason for row in self.rows):
            self.selection.learn(record, self.host_tokens, self.host_report)

    def mark(self) -> Mark:
        """The current moment, with an event on a GPU, so the host need not wait."""
        return Mark(time.perf_counter(), gpu.event(self.target.device))

    def charge(self, record: CycleRecord, marks: Sequence[Mark]) -> None:
        """Set the seconds of the steps; `host` is the time in which the device neither drafts nor verifies."""
        start, planned, drafted, verified, _, end = marks
        seconds = record.seconds
        seconds["refresh"] = self.reading.until(verified)
        seconds["draft"] = planned.until(drafted) + seconds["refresh"]
        seconds["verify"] = drafted.until(self.reading)
        charged = sum(seconds[step] for step in ("draft", "verify", "select", "schedule"))
        seconds["host"] = max(end.time - start.time - charged, 0.0)

    def selection_probs(self) -> dict[str, float]:
        """See `Batch`."""
        return {} if self.selection is None else self.selection.proposer.selection_probs()

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """See `Batch`."""
        self.selection.try_join(name, drafter, cost)

    def try_leave(self, name: str) -> None:
        """See `Batch`."""
        self.selection.proposer.try_leave(name)

    def add_drafter(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """See `Batch`."""
        texts, members = [torch.tensor(row.text) for row in self.rows], self.selection.members
        before = self.drafters, members.stacked, members.log_probs
        self.selection.proposer.join(name, drafter, texts, texts, cost)
        try:
            self._read_again()
        except Exception:  # such as a lack of memory for the new buffers
            self.selection.proposer.leave(name)
            self.drafters, members.stacked, members.log_probs = before
            raise

    def remove_drafter(self, name: str) -> None:
        """See `Batch`."""
        self.selection.proposer.leave(name)
        self._read_again()

    def _read_again(self) -> None:
        """Let the drafters as they are now read every row's text, into new buffers; an error leaves the old ones."""
        self.drafters = self.selection.stack()
        sources, logits = [], []
        for index, row in enumerate(self.rows):
            text = torch.tensor(row.text, device=self.target.device)
            positions = torch.arange(len(text) - 1, device=self.target.device)[None]
            reader = None if self.drafters is None else StackReader(self.drafters)
            if reader is not None:
                reader.read(text, self.target.forward(text[None, :-1], positions, None)[1][0])
            fresh = self._new_rows(1, self._slots(len(text)))
            keys = self.static.cache.rows(index, index + 1)  # as verified: reading again would round differently
            fresh.set_prompt(keys, text, self.static.seen[index : index + 1], reader)
            sources.append((fresh, 0))
            logits.append(fresh.logits)
        self.selection.members.log_probs = None
        if sources and self.selection.reads_children:
            self.selection.observe_children(torch.cat(logits, dim=1))
        readers = self._new_readers()
        if sources:
            self._gather(sources)
        self._replace_readers(readers)
