"""Sequences that are decoded together: draft a tree for each, verify all in one target forward, commit the walks.

`Batch.cycle` calls the steps of a cycle, which hand on a `CycleRecord`; `runtime.static_batch` has fixed shapes.
Everything before a row's root is committed; the root's key is computed by the next verification.  The tree slots of all
rows begin after the longest text, so rows of different lengths share a pass; slots in between are never read.
Axes: B rows, V vocabulary, H hidden of the target.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.proposer import PromptReader, Proposer, Request
from drafterforge.kernels import gpu
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.runtime.acceptance import Acceptance, accept
from drafterforge.runtime.capture import host_copy
from drafterforge.runtime.prefill import Prefill
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.rows import TIMED, Cycle, Generation, Joining, Mark, Row
from drafterforge.runtime.sampling import GREEDY, Picker, Sampling
from drafterforge.runtime.shapes import ROOT_ALONE
from drafterforge.runtime.stopping import StopRule
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape, ancestor_mask, root_only
from drafterforge.tree.masks import level_mask


class Batch:
    """Rows, their cache and their drafter; rows join and leave between cycles."""

    has_outputs: ClassVar[bool] = True  # whether the host has the target's outputs of a cycle, to record them

    def __init__(
        self,
        target: Target,
        proposer: Proposer | None = None,
        invariant: bool = False,
        prefill_chunk: int | None = None,
    ) -> None:
        """invariant: verify batch-invariantly; logits do not depend on the tree or the other rows, bit for bit.

        prefill_chunk: prompt tokens read in one pass; None: the device's default.
        """
        self.target, self.proposer, self.invariant = target, proposer, invariant
        self.prefill_chunk = prefill_chunk or kernels_of(target.backbone.embedding).prompt_chunk
        self.cache = target.new_cache(0)
        self.rows: list[Row] = []
        self.joining: list[Joining] = []
        self.root = torch.empty(0, dtype=torch.long, device=target.device)
        self.seen: Tensor | None = None  # [B, V] tokens of each text; None without a repetition penalty
        self.picker: Picker | None = None

    def now(self) -> float:
        """Current time in seconds; waits for the GPU, so each step is charged its own work."""
        gpu.synchronize(self.target.device)
        return time.perf_counter()

    def admit(self, prompt: list[int], rule: StopRule, sampling: Sampling = GREEDY) -> Row:
        """Read a prompt, choose the first token of its answer, and add the row unless that token ends the answer."""
        joining = self.begin(prompt, rule, sampling, decodes=False)
        while not self.advance(joining):
            pass
        return joining.row

    def begin(
        self,
        prompt: list[int],
        rule: StopRule,
        sampling: Sampling = GREEDY,
        outputs: RowOutputs | None = None,
        decodes: bool = True,
    ) -> Joining:
        """As `admit`, but nothing is read until `advance` is called, between cycles of other rows.

        outputs: where the target's outputs are recorded, if `has_outputs`; None: they are not.  decodes: whether other
        rows decode meanwhile, so that they must not wait long for anything.
        """
        row = Row(Generation(list(prompt)), rule, sampling, began=self.now(), length=len(prompt))
        row.outputs = outputs if self.has_outputs else None
        prefill = Prefill(self.target, prompt, self.prefill_chunk, self._reader(row), row.outputs)
        joining = Joining(row, prefill, self._open_row(len(prompt), decodes))
        self.joining.append(joining)
        return joining

    def advance(self, joining: Joining) -> bool:
        """Read the next chunk of a prompt; True if it was the last, and the row has joined unless it has ended."""
        row, prefill, began = joining.row, joining.prefill, self.now()
        seconds = row.answer.time_s
        index = len(self.rows) + self.joining.index(joining)
        first = prefill.num_read
        prefill.read(joining.cache or self.cache.rows(index, index + 1))
        if self.rows and joining.cache is None:
            self.cache.touch(first, prefill.num_read)
        if not prefill.is_read:
            read = self.now()
            prefill.follow()
            seconds["prefill"] += read - began
            seconds["draft"] += self.now() - read
            return False
        picker, tokens, seen = self._picker([row]), prefill.tokens, None
        if picker.penalised:
            seen = torch.zeros(1, picker.vocab_size, dtype=torch.bool, device=tokens.device)
            seen[0, tokens] = True
        uniform = picker.noise([row.length], 1)
        root = picker(self.target.logits(prefill.state), None if uniform is None else uniform[:, 0], seen)
        row.take(host_copy(root).tolist())
        read = self.now()
        if row.answer.stop_reason:
            self.abandon(joining)
        else:
            prefill.follow(root)
            self.rows.append(row)
            self.picker = self._picker(self.rows)
            self._see(seen, root)
            self._join(joining, prefill.text(root))
            self.joining.remove(joining)
        done = self.now()
        seconds["prefill"] += read - began
        seconds["draft"] += done - read
        seconds["total"] = done - row.began
        return True

    def abandon(self, joining: Joining) -> None:
        """Forget a row whose prompt is being read."""
        if joining.cache is None:
            self.cache.close_row(len(self.rows) + self.joining.index(joining))
        self.joining.remove(joining)

    def _open_row(self, length: int, decodes: bool) -> KeyValueCache | None:
        """Make room for a prompt; returns the row's cache, None if it is a row of the batch's.

        decodes: see `begin`.
        """
        self.cache.open_row(length, fresh=decodes and bool(self.rows))
        return None

    def _reader(self, row: Row) -> PromptReader | None:
        """Reads a row's prompt for the drafters."""
        if self.proposer is None:
            return None
        return self.proposer.prompt_reader(Request(row.length, row.rule.room, row.sampling.temperature))

    def _join(self, joining: Joining, text: Tensor) -> None:
        """Add the keys and drafter state of a new row's prompt.  text: [P + 1], root included."""
        if self.proposer is not None:
            self.proposer.join_row(joining.prefill.reader, text, joining.prefill.features)
        self.cache.admit_row(len(self.rows) - 1 + self.joining.index(joining))
        self.root = torch.cat((self.root, text[-1:]))

    def _picker(self, rows: list[Row]) -> Picker:
        vocab_size = self.target.head_weight.shape[0]
        return Picker([row.sampling for row in rows], vocab_size, self.target.device)

    def _see(self, seen: Tensor | None, root: Tensor) -> None:
        """Add the tokens of a new row to `seen`, if any row has a repetition penalty."""
        if seen is None and self.seen is None:
            return

        def blank(rows: int) -> Tensor:
            return torch.zeros(rows, self.target.head_weight.shape[0], dtype=torch.bool, device=root.device)

        seen = blank(1) if seen is None else seen.scatter(1, root[:, None], True)
        self.seen = torch.cat((blank(len(self.rows) - 1) if self.seen is None else self.seen, seen))

    def cycle(self, shape: TreeShape) -> list[Row]:
        """Draft, verify and commit for every row; removes and returns the rows that ended."""
        limits = [row.rule.room - 1 for row in self.rows]  # tokens of deeper levels would be cut off
        temperatures = [row.sampling.temperature for row in self.rows]
        record, marks = CycleRecord(self.root, limits, shape, temperatures), [self.mark()]
        for step in (self.plan, self.draft, self.verify, self.commit, self.refresh):
            step(record)
            marks.append(self.mark())
        self.charge(record, marks)
        if self.proposer is not None:
            self.proposer.observe(record)
        self._add_statistics(record)
        return self._leave()

    def plan(self, record: CycleRecord) -> None:
        """Choose each row's drafter and tree."""
        if self.proposer is None:
            record.plan_uniform(ROOT_ALONE)
        else:
            self.proposer.plan(record)

    def draft(self, record: CycleRecord) -> None:
        """Draft a tree for each row."""
        record.tree = root_only(self.root) if self.proposer is None else self.proposer.draft(record)

    def verify(self, record: CycleRecord) -> None:
        """Run the target on the trees, and accept the confirmed tokens."""
        ancestors = self._read_trees(record)
        uniform = self.picker.noise(self._next_positions, record.bounds.depth + 1)
        accept(record, ancestors, self.picker, uniform, self.seen)

    @property
    def _next_positions(self) -> list[int]:
        """Absolute position of the token after each root."""
        return [row.length + 1 for row in self.rows]

    def _read_trees(self, record: CycleRecord) -> Tensor:
        """Run the target on the trees; returns the ancestors of their nodes, see `ancestor_mask`."""
        tree, depth = record.tree, record.bounds.depth
        batch, count = tree.tokens.shape
        base, ancestors = self._base, ancestor_mask(tree.parents, depth)
        lengths = torch.tensor([[row.length] for row in self.rows], device=self.root.device)
        mask = None
        if batch > 1 or count > 1:
            mask = level_mask(ancestors, lengths[:, 0], base, self.target.compute_dtype)
        self.cache.set_slots(base, count)
        # A row near the end has nodes beyond it, as others draft deeper; they are never accepted, and some ropes turn
        # all rows at other rates where one reads beyond their range.
        positions = (lengths + tree.levels).clamp(max=self.target.max_positions - 1)
        record.states, record.features = self.target.forward(tree.tokens, positions, self.cache, mask, self.invariant)
        record.logits = self.target.logits(record.states, self.invariant)
        return ancestors

    def commit(self, record: CycleRecord) -> None:
        """Wait for the device, and add the accepted tokens to every row."""
        acceptance = Acceptance.unpack(self._receive(record))
        record.sizes, record.counts = acceptance.sizes, acceptance.counts
        self._keep_accepted(record, acceptance.paths)
        for index, (row, count) in enumerate(zip(self.rows, record.counts, strict=True)):
            row.length += count
            if row.outputs is not None:
                nodes = record.path[index, :count]
                row.outputs.add(record.features[index, nodes], record.states[index, nodes])
        record.emitted = [row.take(tokens) for row, tokens in zip(self.rows, acceptance.tokens, strict=True)]

    def _receive(self, record: CycleRecord) -> Tensor:
        """The packed `Acceptance` in the host's memory."""
        return host_copy(record.packed)

    def refresh(self, record: CycleRecord) -> None:
        """Let the drafters read the committed tokens, unless every row has ended."""
        if self.proposer is not None and not all(row.answer.stop_reason for row in self.rows):
            self.proposer.refresh(record)

    @property
    def _base(self) -> int:
        """Slot of the trees' roots: after the longest text."""
        return max(row.length for row in self.rows)

    def _keep_accepted(self, record: CycleRecord, paths: list[list[int]]) -> None:
        """Move the keys of the accepted nodes to the end of each row's text; set the new roots."""
        base, counts, rows, sources, destinations = self._base, record.counts, [], [], []
        for index, (row, path, count) in enumerate(zip(self.rows, paths, counts, strict=True)):
            if row.length == base and path[:count] == list(range(count)):
                continue  # they are in place
            rows += [index] * count
            sources += [base + node for node in path[:count]]
            destinations += range(row.length, row.length + count)
        if rows:
            self.cache.move_rows(rows, sources, destinations)
        if len(counts) == 1:
            self.root = record.next_tokens[:, counts[0] - 1]
        else:
            last = torch.tensor(counts, device=self.root.device)[:, None] - 1
            self.root = record.next_tokens.gather(1, last)[:, 0]

    def mark(self) -> Mark:
        """This moment, between two steps."""
        return Mark(self.now())

    def charge(self, record: CycleRecord, marks: Sequence[Mark]) -> None:
        """Set the seconds of the steps from the marks between them; a proposer charges select and schedule itself."""
        start, _, drafted, verified, committed, refreshed = marks
        seconds = record.seconds
        seconds["refresh"] = committed.until(refreshed)
        drafting = start.until(drafted) + seconds["refresh"]
        seconds["draft"] = drafting - seconds["select"] - seconds["schedule"]
        seconds["verify"], seconds["host"] = drafted.until(verified), verified.until(committed)

    def _add_statistics(self, record: CycleRecord) -> None:
        """Add a cycle to every row's statistics."""
        now = time.perf_counter()
        seconds = {f"{step}_s": spent for step, spent in record.seconds.items()}
        for index, row in enumerate(self.rows):
            answer, shape, tokens = row.answer, record.shapes[index], len(record.emitted[index])
            for step in TIMED:
                answer.time_s[step] += record.seconds[step]
            answer.cycles.append(
                Cycle(
                    depth=shape.depth,
                    num_nodes=record.sizes[index],
                    accept_length=tokens,
                    accepted=min(record.counts[index] - 1, tokens),
                    drafter=record.drafters[index],
                    top_k=shape.top_k,
                    **seconds,
                )
            )
            answer.time_s["total"] = now - row.began

    def _leave(self) -> list[Row]:
        """Remove and return the rows that ended."""
        ended = [row for row in self.rows if row.answer.stop_reason]
        if ended:
            self.keep([index for index, row in enumerate(self.rows) if not row.answer.stop_reason])
        return ended

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Raise the error that adding a drafter would raise, before anything changes."""
        self.proposer.try_join(name, drafter, cost)

    def try_leave(self, name: str) -> None:
        """Raise the error that removing a drafter would raise, before anything changes."""
        self.proposer.try_leave(name)

    def add_drafter(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Add a drafter to the pool between cycles; an error changes nothing.

        Where the proposer has not kept the features of the rows' texts, the target computes them again.
        """
        texts, features = [], []
        for row in () if self.proposer.keeps_features else self.rows:
            texts.append(torch.tensor(row.text, device=self.target.device))
            tokens = texts[-1][None, :-1]
            positions = torch.arange(tokens.shape[1], device=self.target.device)[None]
            features.append(self.target.forward(tokens, positions, None)[1][0])
        self.proposer.join(name, drafter, texts, features, cost)
        try:
            readers = self._new_readers()
        except Exception:
            self.proposer.leave(name)
            raise
        self._replace_readers(readers)

    def remove_drafter(self, name: str) -> None:
        """Remove a drafter of the pool between cycles."""
        self.proposer.leave(name)
        self._replace_readers(self._new_readers())

    def _new_readers(self) -> list[PromptReader | None]:
        """Readers of the drafters as they are now; they have read of every prompt what the target has read."""
        readers = [self._reader(joining.row) for joining in self.joining]
        for joining, reader in zip(self.joining, readers, strict=True):
            joining.prefill.read_again(reader)
        return readers

    def _replace_readers(self, readers: Sequence[PromptReader | None]) -> None:
        """Let these read the rest of the prompts that are being read."""
        for joining, reader in zip(self.joining, readers, strict=True):
            joining.prefill.reader = reader

    def selection_probs(self) -> dict[str, float]:
        """Probability of each drafter of a pool in the last cycle, mean over its rows; empty without a pool."""
        return {} if self.proposer is None else self.proposer.selection_probs()

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        index = torch.tensor(rows, dtype=torch.long, device=self.root.device)
        self.rows = [self.rows[row] for row in rows]
        if rows or self.joining:
            self.cache.keep_rows(rows)
        else:
            self.cache = self.target.new_cache(0)
        if rows:
            self.picker = self._picker(self.rows)
        self.root = self.root[index]
        self.seen = None if self.seen is None or not rows else self.seen[index]
        if self.proposer is not None:
            self.proposer.keep(rows)
