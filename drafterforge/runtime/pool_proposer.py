"""A pool at work: a selector picks the drafter of every row's cycle, and all drafters read what was committed.

Axes: N drafters, B rows, A committed tokens, T tree nodes, V vocabulary.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.judging import Judgement
from drafterforge.drafters.proposer import PromptReader, Proposer
from drafterforge.runtime.deferred_reading import CommittedCycle, UnreadCycles
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_members import PoolMembers
from drafterforge.runtime.row_selection import PoolRow, evaluations_of
from drafterforge.runtime.tree_scheduling import TreeScheduling
from drafterforge.schedulers.observation import TEXT_WINDOW
from drafterforge.tree.divergence import block_divergences
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.merge import beside


class PoolProposer(Proposer):
    """Every drafter's state for every row, and every row's selector."""

    def __init__(self, pool: Pool, shape: TreeShape, tokenizer: object = None) -> None:
        """shape: the largest trees that will be asked for, but of drafters with their own.  tokenizer: the target's,
        where a router reads texts.
        """
        self.pool, self.names, self.asked, self.tokenizer = pool, pool.names, shape, tokenizer
        self.members = PoolMembers(pool)
        self.scheduling = TreeScheduling(pool, self.members)
        self.unread = UnreadCycles()
        self.rows: list[PoolRow] = []
        self.judgement: Judgement | None = None  # of the last evaluation, drafters in the order of the members

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`."""
        reader = self.reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def reader(self) -> PromptReader:
        """See `Proposer`."""
        return self.members.reader()

    def join_row(self, reader: PromptReader, text: Tensor, features: Tensor) -> None:
        """See `Proposer`; starts the row's selector."""
        self._catch_up()
        self.members.join_row(reader, text, features)
        selector = self.pool.selector(self.asked)
        if self.pool.router is not None:
            selector.advise(self.pool.router.advice(text[:-1].tolist(), features, self.names, self.tokenizer))
        selector.begin(text[:-1].tolist())
        self.rows.append(PoolRow(selector, text.numel(), features[-1], text[-TEXT_WINDOW:]))

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these; the selectors of the others are free."""
        for place, row in enumerate(self.rows):
            if place not in rows:
                row.selector.end()
                self.pool.idle.append(row.selector)
        self.rows = [self.rows[place] for place in rows]
        self.unread.keep(rows)
        self.members.keep(rows)

    def plan(self, record: CycleRecord) -> None:
        """Pick every row's drafter and tree."""
        began = time.perf_counter()
        self.asked = record.shape
        for row, limit in zip(self.rows, record.limits, strict=True):
            row.select(self.names, limit)
        record.charge("select", began)
        self.scheduling.choose(self.rows, record)
        for row in self.rows:
            tree = row.scheduled if self.pool.scheduled(row.choice) else self.pool.shape_of(row.choice, record.shape)
            row.shape = TreeShape(tree.num_tokens, min(tree.depth, row.limit), tree.top_k)
        record.drafters, record.shapes = [row.choice for row in self.rows], [row.shape for row in self.rows]
        record.bounds = bounds(record.shapes)

    def draft(self, record: CycleRecord) -> Tree:
        """Trees below the roots, each by its row's drafter."""
        alike: dict[tuple[str, TreeShape], list[int]] = {}
        for place, row in enumerate(self.rows):
            alike.setdefault((row.choice, row.shape), []).append(place)
        parts = [(places, self._draft(name, places, tree, record)) for (name, tree), places in alike.items()]
        record.shapes = [row.shape for row in self.rows]
        return beside(parts, len(self.rows))

    def _draft(self, name: str, places: list[int], shape: TreeShape, record: CycleRecord) -> Tree:
        """Trees of one drafter and shape; a scheduler may end them early."""
        if shape.depth == 0 or shape.num_tokens == 1:
            return root_only(record.root[places])
        tree = self.scheduling.draft(name, places, self.rows, shape, record)
        return self.members.draft(name, places, record.root[places], shape) if tree is None else tree

    def refresh(self, record: CycleRecord) -> None:
        """Let the drafters read what was committed, and the selectors learn from it."""
        began = time.perf_counter()
        tokens, features = record.committed()
        counts = record.counts
        judged = any(row.selector.needs.evaluation for row in self.rows)
        distributions = self._distributions(record, tokens.shape[1]) if judged else None
        self.unread.add(CommittedCycle(tokens, distributions, counts, judged))
        self.members.commit(tokens, features, counts, judged)
        divergences = self._divergences(record) if any(row.selector.needs.divergence for row in self.rows) else None
        keep_text = self.pool.scheduler is not None and self.pool.scheduler.reads_text
        for place, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            divergence = None if divergences is None else divergences[place]
            drafter = self.names.index(row.choice)
            row.commit(drafter, tokens[place, :count], features[place, :count], divergence, keep_text)
        record.charge("select", began)
        if self.unread.is_due(self.pool.every):
            record.seconds["select"] += self._read()
        else:
            for row in self.rows:
                row.observe(None)

    def _read(self) -> float:
        """Let all drafters read; judge them where a selector asks for it.  Returns the seconds of the selectors."""
        truth = self.unread.truth()
        judgement = self.members.read(truth, self._top_k, self.pool.details)
        began = time.perf_counter()
        evaluations = [None] * len(self.rows)
        if judgement is not None:
            order = self.members.names
            places = [order.index(name) for name in self.names]
            evaluations = evaluations_of(judgement, places, self.rows, self.unread.counts())
            self.judgement = judgement
        self.unread.clear()
        for row, evaluation in zip(self.rows, evaluations, strict=True):
            row.observe(evaluation)
        return time.perf_counter() - began

    def _top_k(self, name: str) -> int:
        """How many proposals of a drafter count when it is judged."""
        return self.pool.shape_of(name, self.asked).top_k

    def _catch_up(self) -> None:
        """Read before rows or drafters change; what the selectors would have learned from it is told as usual."""
        if self.unread:
            self._read()

    def _distributions(self, record: CycleRecord, width: int) -> Tensor | None:
        """The target's at each node of the walks, [B, A, V], None if every row is greedy."""
        if record.distribution is None:
            return None
        rows = torch.arange(len(self.rows), device=record.path.device)[:, None]
        logits = record.logits[rows, record.path[:, :width]]
        return torch.stack([record.distribution(step) for step in logits.unbind(1)], dim=1)

    def _divergences(self, record: CycleRecord) -> list[float]:
        """Block divergence of the drafts, [B], over the levels of the deepest drafter."""
        return block_divergences(record.tree, record.logits, max(1, *self.pool.levels(self.asked)))

    def join(
        self,
        name: str,
        drafter: Drafter,
        texts: Sequence[Tensor],
        features: Sequence[Tensor],
        cost: float | None = None,
    ) -> None:
        """Add a drafter, which reads each row's text so far; `features` as for `admit`."""
        self._catch_up()
        self.members.add(name, drafter, texts, features)
        self.names.append(name)
        for row in self.rows:
            row.selector.add_drafter(name, cost, self._levels(name, row))

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Let copies of the rows' selectors take a drafter in, so that what they refuse is known beforehand."""
        for row in self.rows:
            copy.deepcopy(row.selector).add_drafter(name, cost, self._levels(name, row))

    def try_leave(self, name: str) -> None:
        """The same for a drafter that is to go."""
        for row in self.rows:
            copy.deepcopy(row.selector).remove_drafter(self.names.index(name))

    def leave(self, name: str) -> None:
        """Remove a drafter."""
        self._catch_up()
        for row in self.rows:
            row.selector.remove_drafter(self.names.index(name))
        self.names.remove(name)
        self.members.remove(name)

    def _levels(self, name: str, row: PoolRow) -> int:
        """Levels of a newcomer, as far as the row's selector can count them."""
        return min(self.pool.shape_of(name, self.asked).depth, row.selector.depth)


def bounds(shapes: Sequence[TreeShape]) -> TreeShape:
    """The largest of every number."""
    return TreeShape(*(max(getattr(shape, key) for shape in shapes) for key in ("num_tokens", "depth", "top_k")))
