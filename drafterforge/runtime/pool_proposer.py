"""Drafts with a pool: a selector picks the drafter of every row's cycle.

If a selector asks for evaluations, all drafters read the committed tokens in the same cycle and are evaluated on them.
Otherwise a drafter reads when it drafts.

Axes: N drafters, B rows, A committed tokens, T tree nodes, V vocabulary.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.proposer import JudgedPrompt, Proposer, Request, first_judged
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.pool_members import PoolMembers, PoolReader
from drafterforge.runtime.row_selection import PoolRow, evaluations_of
from drafterforge.runtime.shapes import bounds
from drafterforge.runtime.tree_scheduling import TreeScheduling
from drafterforge.schedulers.observation import TEXT_WINDOW
from drafterforge.tree.coverage import branch_coverages, branch_overlaps
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.merge import join_trees

MAX_DEFERRED = 1024  # maximum number of cycles for which reading is deferred if no selector asks for evaluations


class PoolProposer(Proposer):
    """Every drafter's state for every row, and every row's selector."""

    def __init__(
        self, pool: Pool, shape: TreeShape, tokenizer: object = None, members: PoolMembers | None = None
    ) -> None:
        """shape: trees of drafters without a shape of their own.  tokenizer: the target's, for a router of texts.
        members: the drafters' states; None: new ones.
        """
        self.pool, self.names, self.shape, self.tokenizer = pool, pool.names, shape, tokenizer
        self.members = members or PoolMembers(pool)
        self.scheduling = TreeScheduling(pool, self.members)
        self.num_deferred = 0  # cycles since all drafters last read
        self.rows: list[PoolRow] = []
        self.planned: list[PoolRow] = []  # rows of the last cycle, also those that have ended since

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`."""
        reader = self.prompt_reader(Request(len(features), 0, 0.0))
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, request: Request) -> PoolReader:
        """See `Proposer`."""
        return self.members.prompt_reader(partial(self.judged_prompt, request.num_tokens))

    def judged_prompt(self, num_tokens: int, names: Sequence[str]) -> JudgedPrompt | None:
        """Which tokens of a prompt drafters of these names are judged on; None if the selector does not need it."""
        advised = self.pool.router is not None and self.pool.options.get("prior")
        if advised or not self.pool.needs.prompt:
            return None
        return JudgedPrompt(first_judged(num_tokens), [self.top_k(name) for name in names])

    def join_row(self, reader: PoolReader, text: Tensor, features: Tensor) -> None:
        """See `Proposer`; starts the row's selector."""
        self._catch_up()
        self.members.join_row(reader, text, features)
        selector = self.pool.selector(self.shape)
        if self.pool.router is not None:
            selector.advise(self.pool.router.advice(text[:-1].tolist(), features, self.names, self.tokenizer))
        if selector.needs.prompt:
            selector.read_prompt(reader.hit_rates_of(self.names))
        selector.begin(text[:-1].tolist())
        self.rows.append(PoolRow(selector, text.numel(), features[-1], text[-TEXT_WINDOW:]))

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these, and free the selectors of the others."""
        for index, row in enumerate(self.rows):
            if index not in rows:
                row.selector.end()
                self.pool.idle.append(row.selector)
        self.rows = [self.rows[index] for index in rows]
        self.members.keep(rows)
        if not rows:
            self.num_deferred = 0

    def plan(self, record: CycleRecord) -> None:
        """Select every row's drafter and tree."""
        began = time.perf_counter()
        self.shape = record.shape
        for row, limit in zip(self.rows, record.limits, strict=True):
            row.select(self.names, limit)
        record.charge("select", began)
        self.scheduling.choose(self.rows, record)
        for row in self.rows:
            tree = row.scheduled if self.pool.scheduled(row.choice) else self.pool.shape_of(row.choice, record.shape)
            row.shape = TreeShape(tree.num_tokens, min(tree.depth, row.limit), tree.top_k)
        record.drafters, record.shapes = [row.choice for row in self.rows], [row.shape for row in self.rows]
        record.bounds = bounds(record.shapes)
        self.planned = list(self.rows)

    def selection_probs(self) -> dict[str, float]:
        """Probability of each drafter in the last cycle, mean over its rows."""
        probs = np.mean([row.selector.played_probs for row in self.planned], axis=0)
        return dict(zip(self.names, map(float, probs), strict=True))

    def draft(self, record: CycleRecord) -> Tree:
        """Trees below the roots, each by its row's drafter."""
        alike: dict[tuple[str, TreeShape], list[int]] = {}
        for index, row in enumerate(self.rows):
            alike.setdefault((row.choice, row.shape), []).append(index)
        parts = [(rows, self._draft(name, rows, shape, record)) for (name, shape), rows in alike.items()]
        record.shapes = [row.shape for row in self.rows]
        return join_trees(parts, len(self.rows))

    def _draft(self, name: str, rows: list[int], shape: TreeShape, record: CycleRecord) -> Tree:
        """Trees of one drafter and shape for some rows; a scheduler may end them early."""
        if shape.depth == 0 or shape.num_tokens == 1:
            return root_only(record.root[rows])
        proposals = self.needs_overlap
        tree = self.scheduling.draft(name, rows, self.rows, shape, record, proposals)
        if tree is not None:
            return tree
        return self.members.draft(name, rows, record.root[rows], shape, proposals=proposals)

    @property
    def needs_evaluation(self) -> bool:
        """Whether any row's selector asks for evaluations of all drafters."""
        return any(row.selector.needs.evaluation for row in self.rows)

    @property
    def needs_coverage(self) -> bool:
        """Whether any row's selector asks for the coverage of its draft."""
        return any(row.selector.needs.coverage for row in self.rows)

    @property
    def needs_overlap(self) -> bool:
        """Whether any row's selector asks for the overlap of its draft with the target."""
        return any(row.selector.needs.overlap for row in self.rows)

    def refresh(self, record: CycleRecord) -> None:
        """Let the drafters read the committed tokens, and the selectors learn from them."""
        began = time.perf_counter()
        tokens, features = record.committed()
        truth = Truth(tokens, record.distributions(tokens.shape[1])) if self.needs_evaluation else None
        coverages, overlaps = None, None
        if self.needs_coverage:
            coverages = branch_coverages(record.tree, record.logits, self.coverage_levels).tolist()
        if self.needs_overlap:
            overlaps = branch_overlaps(record.tree, record.logits, self.coverage_levels)
        newest = [features[index, count - 1] for index, count in enumerate(record.counts)]
        self.commit_rows(record, tokens, newest, coverages, overlaps)
        record.charge("select", began)
        judgement = self._read(tokens, features, record.counts, truth)
        began = time.perf_counter()
        self.learn(record, judgement)
        record.charge("select", began)

    def commit_rows(
        self,
        record: CycleRecord,
        tokens: Tensor,
        features: Sequence[Tensor],
        coverages: Sequence[float] | None = None,
        overlaps: Sequence[float] | None = None,
    ) -> None:
        """Add a cycle's tokens [B, A] to every row.  features: before each row's last token, [B] of [3H]."""
        keep_text = self.pool.scheduler is not None and self.pool.scheduler.reads_text
        for index, (row, count) in enumerate(zip(self.rows, record.counts, strict=True)):
            branch = (None if values is None else values[index] for values in (coverages, overlaps))
            row.commit(self.names.index(row.choice), tokens[index, :count], features[index], keep_text, *branch)

    def learn(self, record: CycleRecord, judgement: Judgement | None) -> None:
        """Let every row's selector learn from its committed cycle.  judgement: in the order of `members.names`."""
        evaluations = [None] * len(self.rows)
        if judgement is not None:
            members = self.members.names
            order = [members.index(name) for name in self.names]
            evaluations = evaluations_of(judgement, order, self.rows, record.counts)
        for row, evaluation in zip(self.rows, evaluations, strict=True):
            row.observe(evaluation)

    def _read(self, tokens: Tensor, features: Tensor, counts: list[int], truth: Truth | None) -> Judgement | None:
        """Let all drafters read and evaluate them if the truth is given; else defer reading, at most `MAX_DEFERRED`."""
        if truth is not None:
            self._catch_up()  # drafters are evaluated on all tokens that they read, so only this cycle's may be unread
        self.members.commit(tokens, features, counts)
        self.num_deferred += 1
        if truth is None and self.num_deferred < MAX_DEFERRED:
            return None
        self.num_deferred = 0
        return self.members.read(truth, self.top_k)

    def top_k(self, name: str) -> int:
        """Number of a drafter's proposals that count when it is evaluated."""
        return self.pool.shape_of(name, self.shape).top_k

    def _catch_up(self) -> None:
        """Let all drafters read what is unread."""
        if self.num_deferred:
            self.members.read(None, self.top_k)
            self.num_deferred = 0

    @property
    def coverage_levels(self) -> int:
        """Levels over which coverages are averaged: those of the deepest drafter."""
        return max(1, *self.pool.levels(self.shape))

    def join(
        self,
        name: str,
        drafter: Drafter,
        texts: Sequence[Tensor],
        features: Sequence[Tensor],
        cost: float | None = None,
    ) -> None:
        """Add a drafter; it reads each row's text so far.  features: as for `admit`."""
        self._catch_up()
        try:
            self.members.add(name, drafter, texts, features)
        except Exception:  # such as a lack of memory for its keys
            self.members.remove(name)
            raise
        self.names.append(name)
        for row in self.rows:
            row.selector.add_drafter(name, cost, self._levels(name, drafter, row))

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Add a drafter to copies of the rows' selectors, so a refusal changes nothing."""
        for row in self.rows:
            copy.deepcopy(row.selector).add_drafter(name, cost, self._levels(name, drafter, row))

    def try_leave(self, name: str) -> None:
        """Remove a drafter from copies of the rows' selectors, so a refusal changes nothing."""
        for row in self.rows:
            copy.deepcopy(row.selector).remove_drafter(self.names.index(name))

    def leave(self, name: str) -> None:
        """Remove a drafter."""
        self._catch_up()
        for row in self.rows:
            row.selector.remove_drafter(self.names.index(name))
        self.names.remove(name)
        self.members.remove(name)

    def _levels(self, name: str, drafter: Drafter, row: PoolRow) -> int:
        """Levels of a new drafter, at most those of the row's selector."""
        return min(self.pool.levels_of(name, drafter, self.shape), row.selector.depth)
