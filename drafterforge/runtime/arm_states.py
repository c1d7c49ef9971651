"""State of the drafters of `drafter=auto`: each one knows only the rows in which it is awake.

A row keeps its tokens and the target's features, so that a sleeping drafter can be woken: it reads the text chunk by
chunk, between cycles.  A drafter that is awake reads when it drafts.
Axes: A committed tokens, H hidden of the target.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafterforge.drafters.base import CandidateIndex, IndexedDrafting
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.proposer import PromptReader
from drafterforge.drafters.registry import kind_of
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.worth import CycleLimits
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence


@dataclass(eq=False)
class RowText:
    """The text of a row, and the target's features at every token but the last."""

    prompt: int  # features of the prompt
    tokens: list[Tensor]  # parts of the text, [A]
    features: list[Tensor]  # parts [A, 3H]; none if no drafter will be woken
    length: int  # of all features

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """Add committed tokens [A]."""
        self.length += len(tokens)
        if self.features:
            self.tokens.append(tokens)
            self.features.append(features)

    def upto(self, end: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """The text [end + 1], and the features from `start` on, as `PromptReader.read` takes them."""
        if len(self.features) > 1:
            self.tokens, self.features = [torch.cat(self.tokens)], [torch.cat(self.features)]
        return self.tokens[0][: end + 1], self.features[0][start:end]


@dataclass(eq=False)
class WakingRow:
    """A row that a drafter is reading."""

    name: str
    reader: PromptReader
    count: int = 0  # tokens read
    hits: list[bool] = field(default_factory=list)  # whether its proposals held each token of the answer


class ArmState:
    """One drafter: its group of one, and the rows in which it is awake."""

    def __init__(self, group: DrafterGroup) -> None:
        self.group = group
        self.rows: list[RowText] = []

    def index(self, text: RowText) -> int | None:
        """Number of a row in the group; None if the drafter sleeps."""
        return next((index for index, row in enumerate(self.rows) if row is text), None)

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        self.rows = [self.rows[row] for row in rows]
        self.group.keep(list(rows))


class ArmStates:
    """All drafters of a pool, the retrieval indices of their trees, and the rows' texts."""

    def __init__(self, pool: Pool, shape: TreeShape) -> None:
        """shape: trees of drafters without a shape of their own."""
        self.pool, self.shape = pool, shape
        self.arms: dict[str, ArmState] = {}
        self.indices: dict[object, CandidateIndex] = {}  # by the key of `IndexedDrafting`
        self.indexed: dict[str, IndexedDrafting] = {}
        for name in pool.names:
            self._open(name)
        self.texts: list[RowText] = []

    def _open(self, name: str) -> CandidateIndex | None:
        """Open a drafter without rows; returns its index if it is new."""
        drafter = self.pool.drafters[name]
        self.arms[name] = ArmState(self.pool.group([name]))
        indexed = kind_of(drafter).indexed_drafting(drafter)
        if indexed is None:
            return None
        self.indexed[name] = indexed
        if indexed.key in self.indices:
            return None
        self.indices[indexed.key] = indexed.index()
        return self.indices[indexed.key]

    @property
    def alone(self) -> bool:
        """Whether there is only one drafter, so that no texts are needed."""
        return len(self.arms) == 1

    def has_index(self, name: str) -> bool:
        """Whether a drafter's trees hold what retrieval proposes, even while it sleeps."""
        return name in self.indexed

    def prompt_reader(self, name: str) -> PromptReader:
        """Reads the prompt for one drafter."""
        return self.arms[name].group.prompt_reader()

    def join_row(self, name: str, reader: PromptReader, text: Tensor, features: Tensor) -> RowText:
        """Add a row in which only this drafter, whose reader has read the prompt, is awake.  Empty name: none is."""
        is_kept = not (name and self.alone)
        row = RowText(len(features), *([text], [features]) if is_kept else ([], []), len(features))
        if name:
            self._add(name, reader, row, text, features)
        for index in self.indices.values():
            index.catch_up()  # unread tokens are those of all rows, or of none
            index.admit(text, features)
        self.texts.append(row)
        return row

    def _add(self, name: str, reader: PromptReader, row: RowText, text: Tensor, features: Tensor) -> None:
        arm = self.arms[name]
        arm.group.read()
        arm.group.join_row(reader, text, features)
        arm.rows.append(row)

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        self.texts = [self.texts[row] for row in rows]
        for arm in self.arms.values():
            remaining = [index for index, row in enumerate(arm.rows) if row in self.texts]
            if len(remaining) < len(arm.rows):
                arm.keep(remaining)
        for index in self.indices.values():
            index.keep(list(rows))

    def commit(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        """Queue counts[b] of tokens [B, A], with features [B, A, 3H], for the drafters that are awake."""
        for index, (text, count) in enumerate(zip(self.texts, counts, strict=True)):
            text.append(tokens[index, :count], features[index, :count])
        for arm in self.arms.values():
            if not arm.rows:
                continue
            rows = [self.texts.index(row) for row in arm.rows]
            part, number = (tokens, features), [counts[row] for row in rows]
            if rows != list(range(len(counts))):
                part = tokens[rows], features[rows]
            arm.group.commit(*part, number)
        for index in self.indices.values():
            index.commit(tokens, features, list(counts))

    def wake(self, name: str) -> WakingRow:
        """Begin to wake a drafter in a row."""
        return WakingRow(name, self.prompt_reader(name))

    def advance(self, waking: WakingRow, text: RowText, chunk: int) -> bool:
        """Let a waking drafter read at most `chunk` tokens; True if it is now awake."""
        end = min(waking.count + chunk, text.length)
        if waking.count < text.prompt:
            end = min(end, text.prompt)
        part = text.upto(end, waking.count)
        if waking.count < text.prompt:
            waking.reader.read(*part)
        else:
            waking.hits += waking.reader.judge(*part, self.top_k(waking.name))
        waking.count = end
        if end < text.length:
            return False
        self._add(waking.name, waking.reader, text, *text.upto(text.length))
        if self.alone:
            text.tokens, text.features = [], []
        return True

    def sleep(self, name: str, text: RowText) -> None:
        """Let a drafter forget a row."""
        arm = self.arms[name]
        position = arm.index(text)
        arm.keep([index for index in range(len(arm.rows)) if index != position])

    def hits(self, name: str, text: RowText, count: int) -> list[bool]:
        """Whether the proposals of a drafter that is awake held each of the newest `count` tokens of a row."""
        arm = self.arms[name]
        text_and_features = text.upto(text.length, text.length - count - 1)
        return arm.group.hits(arm.index(text), *text_and_features, self.top_k(name))

    def top_k(self, name: str) -> int:
        """Number of a drafter's proposals that count as hits."""
        return self.pool.shape_of(name, self.shape).top_k

    def in_order(self, name: str, rows: list[int]) -> list[int]:
        """Rows in the order in which a drafter woke in them, and then those in which it sleeps."""
        awake = self.arms[name].rows
        return sorted(rows, key=lambda row: awake.index(text) if (text := self.texts[row]) in awake else len(awake))

    def draft(self, name: str, rows: list[int], root: Tensor, shape: TreeShape, limits: CycleLimits) -> Tree:
        """Trees of a drafter below the roots [B'] of some rows, in which it is awake.

        rows: as `in_order` gives them, because a group drafts for all of its rows in the group's order.
        """
        arm = self.arms[name]

        def draft(
            subset: Sequence[int], growth: Growth | None = None, retrieval: RetrievalEvidence | None = None
        ) -> Tree:
            began = time.perf_counter()
            arm.group.read()
            limits.reading = time.perf_counter() - began
            group_rows = [arm.index(self.texts[rows[index]]) for index in subset]
            return arm.group.draft(0, group_rows, root[list(subset)], shape, growth, retrieval)

        if name not in self.indexed:
            return draft(range(len(rows)))
        indexed = self.indexed[name]
        evidence = self.indices[indexed.key].evidence(rows, shape.depth)
        return indexed.draft(evidence, root, shape, draft, limits)

    def add(self, name: str, texts: Sequence[Tensor], features: Sequence[Tensor]) -> None:
        """Add a drafter of the pool, asleep in every row.

        texts [P + 1], features [P, 3H]: of every row so far; none if the rows have kept them.
        """
        index = self._open(name)
        for row, text, part in zip(self.texts, texts, features, strict=True) if texts else ():
            row.tokens, row.features, row.length = [text], [part], len(part)
        if index is not None:
            for row in self.texts:
                index.admit(*row.upto(row.length))

    def remove(self, name: str) -> None:
        """Remove a drafter that is asleep in every row."""
        del self.arms[name]
        indexed = self.indexed.pop(name, None)
        if indexed is not None and indexed.key not in {use.key for use in self.indexed.values()}:
            del self.indices[indexed.key]
