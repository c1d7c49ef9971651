"""Drafts for `drafter=auto`: every decision is the one with the most expected tokens per second.

`worth` decides whether and how much a row drafts, `arms` which drafter it uses.  Only that drafter reads the text.
Axes: B rows, A committed tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.proposer import PromptReader, Proposer, Request
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.runtime.arm_states import ArmStates, RowText, WakingRow
from drafterforge.runtime.arms import WINDOW, ArmKnowledge, RowArms, Stakes, common_lengths
from drafterforge.runtime.averages import Mean
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import ROOT_ALONE, bounds
from drafterforge.runtime.worth import NEURAL_TRIES, CycleLimits, RowWorth
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.merge import join_trees

MOST_AT_ONCE = 512  # tokens of a prompt that a drafter reads between two cycles of other rows
SHARE_HORIZON = 64.0  # drafting cycles over which the share of those with the neural drafter averages


@dataclass(eq=False)
class AutoRow:
    """A request."""

    text: RowText
    arms: RowArms
    kind: str  # see `Pool`
    is_awake: bool  # whether the incumbent has read the text
    tries: bool = False  # whether the neural drafter drafts at first, to learn what it is worth
    worths: dict[int, RowWorth] = field(default_factory=dict)  # by number of rows decoded together
    worth: RowWorth | None = None  # of this cycle
    neural_share: Mean = field(default_factory=lambda: Mean(1.0, 4.0, SHARE_HORIZON))
    shape: TreeShape = ROOT_ALONE
    limit: int = 0  # levels whose tokens could belong to the answer
    tokens: int = 1  # of the answer; the prompt's pass gives the first
    waking: WakingRow | None = None


def reordered(tree: Tree, rows: Sequence[int]) -> Tree:
    """A tree with its rows in this order."""
    expected, proposals = (
        [values[row] for row in rows] if values else values for values in (tree.expected, tree.proposals)
    )
    return Tree(tree.tokens[rows], tree.parents[rows], tree.levels[rows], expected, proposals)


def always_reads(arms: RowArms) -> tuple[bool, bool]:
    """A drafter reads the prompt, and not as a trial, see `AutoProposer._reading`."""
    return True, False


class ChoosingReader(PromptReader):
    """Chooses which drafter reads a prompt, and learns how long reading takes for a token.

    It chooses once it has all of the prompt, or `MOST_AT_ONCE` tokens of it: other rows wait while these are read.
    """

    def __init__(
        self,
        states: ArmStates,
        knowledge: ArmKnowledge,
        choose: Callable[[Tensor, Tensor], RowArms],
        pays: Callable[[RowArms], tuple[bool, bool]],
        num_tokens: int = 0,
    ) -> None:
        """choose: the drafters of a request, for a text and its features as `read` takes them; the incumbent reads.

        pays: whether it does, and whether it only tries, see `AutoRow`.  num_tokens: of the prompt; 0: `read` gets all.
        """
        self.states, self.knowledge, self.num_tokens = states, knowledge, num_tokens
        self.choose, self.pays = choose, pays
        self.name, self.tries = "", False
        self.reader = PromptReader()  # of the drafter of this name; empty: none reads
        self.parts: list[Tensor] = []  # of the features, unread
        self.arms: RowArms | None = None
        self.is_complete = False  # whether it had all of the prompt when it chose

    def read(self, text: Tensor, features: Tensor) -> None:
        """See `PromptReader`."""
        self.parts.append(features)
        if self.arms is None:
            if len(text) <= min(self.num_tokens, MOST_AT_ONCE):
                return
            self.arms, self.is_complete = self.choose(text, features), len(text) > self.num_tokens
            reads, self.tries = self.pays(self.arms)
            if reads:
                self.name = self.arms.incumbent
                self.reader = self.states.prompt_reader(self.name)
        parts, self.parts = self.parts, []
        if not self.name:
            return
        began, unread = time.perf_counter(), torch.cat(parts)
        self.reader.read(text, unread)
        self.knowledge.add_reading((time.perf_counter() - began) / len(unread))


class AutoProposer(Proposer):
    """The rows of a batch, and the drafters that are awake in them."""

    def __init__(self, pool: Pool, shape: TreeShape, tokenizer: object = None) -> None:
        """pool: has a `worth`.  shape: trees of drafters without a shape of their own.  tokenizer: see `Router`."""
        self.pool, self.shape, self.tokenizer = pool, shape, tokenizer
        self.worth = pool.worth
        self.states = ArmStates(pool, shape)
        self.rows: list[AutoRow] = []
        self.planned: list[AutoRow] = []  # rows of the last cycle, also those that have ended since
        self.limits: list[CycleLimits] = []  # of this cycle

    def admit(self, text: Tensor, features: Tensor) -> None:
        """See `Proposer`."""
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, request: Request | None = None) -> PromptReader:
        """See `Proposer`; the drafter that is expected to be the fastest reads prompts where that pays."""
        reading = always_reads if request is None else partial(self._reading, request)
        num_tokens = 0 if request is None else request.num_tokens
        return ChoosingReader(self.states, self.worth.arms, self._arms, reading, num_tokens)

    def _arms(self, text: Tensor, features: Tensor) -> RowArms:
        """The drafters of a new request; the incumbent is likely the fastest.  text, features: as of `admit`."""
        names, advised = self.pool.names, ""
        if self.pool.router is not None and len(names) > 1:
            advice = self.pool.router.advice(text[:-1].tolist(), features, names, self.tokenizer)
            advised = names[int(advice.argmax())]
        arms, count = RowArms(self.worth.arms, names, advised), len(self.rows) + 1
        arms.incumbent = arms.best(self.worth.costs.of(count, count))
        return arms

    def _kind(self, arms: RowArms) -> str:
        """The kind of a request, see `Pool`."""
        return self.pool.kinds.get(arms.advised, "")

    def _reading(self, request: Request, arms: RowArms) -> tuple[bool, bool]:
        """Whether a drafter reads the prompt, and whether it does so although that does not seem to pay.

        After some unread prompts one is read anyway.
        """
        count = max(len(self.rows) + 1, round(self.worth.num_rows.value))  # rows that it would be decoded with
        row = self.worth.row(request.temperature, count, self._kind(arms))
        num_new = min(self.worth.arms.answer_tokens.value, request.max_new_tokens)
        pays = self.worth.reading_pays(row, request.num_tokens, num_new, count)
        if tries := row.traffic.tries_reading(pays):
            self.worth.doubt_neural(row.traffic)
        return pays or tries, tries

    def join_row(self, reader: ChoosingReader, text: Tensor, features: Tensor) -> None:
        """See `Proposer`."""
        arms = reader.arms if reader.is_complete else self._arms(text, features)
        arms.incumbent = reader.name or arms.incumbent
        row_text = self.states.join_row(reader.name, reader.reader, text, features)
        self.rows.append(AutoRow(row_text, arms, self._kind(arms), is_awake=bool(reader.name), tries=reader.tries))

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        for index, row in enumerate(self.rows):
            if index not in rows:
                self.worth.arms.answer_tokens.add(row.tokens)
        self.rows = [self.rows[index] for index in rows]
        self.states.keep(rows)

    def plan(self, record: CycleRecord) -> None:
        """Decide which rows draft, and which drafters wake."""
        began = time.perf_counter()
        self.shape, self.limits, self.planned = record.shape, [], list(self.rows)
        count = len(self.rows)
        for row, limit, temperature in zip(self.rows, record.limits, record.temperatures, strict=True):
            if count not in row.worths:
                row.worths[count] = self.worth.row(temperature, count, row.kind)
                row.worths[count].neural_tries = NEURAL_TRIES if row.tries else 0
                row.tries = False
            row.worth, row.limit = row.worths[count], limit
            row.worth.is_awake = row.is_awake
        self.worth.plan([row.worth for row in self.rows])
        for row in self.rows:
            row.shape = ROOT_ALONE
            row.worth.drafts &= row.is_awake or self.states.has_index(row.arms.incumbent)
            if row.worth.drafts:
                tree = self.pool.shape_of(row.arms.incumbent, record.shape)
                row.shape = TreeShape(tree.num_tokens, min(tree.depth, row.limit), tree.top_k)
            if row.waking is None and row.worth.traffic.net.value > 0.0 and row.arms.is_due(row.tokens):
                self._consider_waking(row)
        record.drafters, record.shapes = [row.arms.incumbent for row in self.rows], [row.shape for row in self.rows]
        record.bounds = bounds(record.shapes)
        record.charge("select", began)

    def _consider_waking(self, row: AutoRow) -> None:
        """Begin to wake a drafter in a row if that pays."""
        if not row.is_awake:
            if self.worth.reading_pays(row.worth, row.text.length, self._remaining(row), len(self.rows)):
                row.waking = self.states.wake(row.arms.incumbent)
            return
        sleeping = [name for name in row.arms.names if name != row.arms.incumbent]
        reading = row.text.length + min(row.tokens, WINDOW)  # the incumbent is judged on tokens that it reads again
        unread = dict.fromkeys(sleeping, reading)
        if name := row.arms.challenger(row.tokens, unread, self._stakes(row)):
            row.waking = self.states.wake(name)

    def _remaining(self, row: AutoRow) -> float:
        """Tokens that the answer is expected to get."""
        return min(max(self.worth.arms.answer_tokens.value - row.tokens, row.tokens), row.limit + 1)

    def _stakes(self, row: AutoRow) -> Stakes:
        count = len(self.rows)
        token_s, length = 1.0 / self.worth.rate(count), 1.0 + row.worth.accepted.value
        return Stakes(self._remaining(row) * token_s, length * count * token_s, row.neural_share.value)

    def selection_probs(self) -> dict[str, float]:
        """See `Proposer`."""
        names = [row.arms.incumbent for row in self.planned]
        return {name: names.count(name) / max(len(names), 1) for name in self.pool.names}

    def draft(self, record: CycleRecord) -> Tree:
        """Trees below the roots, each by its row's drafter."""
        alike: dict[tuple[str, TreeShape], list[int]] = {}
        for index, row in enumerate(self.rows):
            alike.setdefault((row.arms.incumbent, row.shape), []).append(index)
        parts = []
        for (name, shape), rows in alike.items():
            ordered = self.states.in_order(name, rows)
            parts.append((ordered, self._draft(name, ordered, shape, record)))
        if len(parts) == 1 and ordered != rows:
            return reordered(tree := parts[0][1], [ordered.index(row) for row in range(len(tree.tokens))])
        return join_trees(parts, len(self.rows))

    def _draft(self, name: str, rows: list[int], shape: TreeShape, record: CycleRecord) -> Tree:
        """Trees of one drafter and shape for some rows."""
        if shape.depth == 0 or shape.num_tokens == 1:
            return root_only(record.root[rows])
        began = time.perf_counter()
        drafting = [self.rows[row].worth for row in rows]
        limits = self.worth.limits(drafting, len(self.rows), shape.num_tokens, name)
        record.charge("schedule", began)
        tree = self.states.draft(name, rows, record.root[rows], shape, limits)
        limits.ended = time.perf_counter()
        record.seconds["schedule"] += limits.seconds
        self.limits.append(limits)
        return tree

    def refresh(self, record: CycleRecord) -> None:
        """Keep the committed tokens for the drafters to read, and let waking drafters read a chunk."""
        self.states.commit(*record.committed(), record.counts)
        for row in self.rows:
            if row.waking is not None:
                self._advance(row)

    def _advance(self, row: AutoRow) -> None:
        """Let a waking drafter read a chunk; once it is awake, the better one stays awake."""
        began, before, name = time.perf_counter(), row.waking.count, row.waking.name
        chunk = kernels_of(row.text.features[0]).prompt_chunk
        awake = self.states.advance(row.waking, row.text, chunk)
        seconds = time.perf_counter() - began
        self.worth.arms.add_reading(seconds / (row.waking.count - before))
        if not awake:
            return
        waking, row.waking, incumbent, stakes = row.waking, None, row.arms.incumbent, self._stakes(row)
        if not row.is_awake:
            row.is_awake = True
            return
        hits = waking.hits[-WINDOW:]
        theirs = self.states.hits(incumbent, row.text, len(hits))
        if (lengths := common_lengths(hits, theirs, self.worth.levels)) is not None:
            row.arms.compare(name, *lengths)
        if row.arms.lead(name, stakes.cycle_s) > 0.0:
            row.arms.incumbent, name = name, incumbent
        self.states.sleep(name, row.text)

    def observe(self, record: CycleRecord) -> None:
        """Learn from a finished cycle and the seconds of its steps."""
        began = time.perf_counter()
        self.worth.learn([row.worth for row in self.planned], record, self.limits)
        for row, emitted in zip(self.planned, record.emitted, strict=True):
            row.tokens += len(emitted)
            if row.worth.drafts and row.is_awake:
                row.neural_share.add(float(row.worth.uses_neural))
        record.charge("select", began)

    @property
    def keeps_features(self) -> bool:
        """See `Proposer`."""
        return not self.states.alone

    def join(
        self,
        name: str,
        drafter: Drafter,
        texts: Sequence[Tensor],
        features: Sequence[Tensor],
        cost: float | None = None,
    ) -> None:
        """Add a drafter, which sleeps in all rows.  features: as for `admit`; none if `keeps_features`."""
        self.states.add(name, texts, features)
        for row in self.rows:
            row.arms.add(name)

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """A drafter can always join."""

    def try_leave(self, name: str) -> None:
        """A drafter can always leave; the pool keeps the first one, over which gains are measured."""

    def leave(self, name: str) -> None:
        """Remove a drafter; its rows go on with the first one."""
        first = self.pool.names[0]
        for row in self.rows:
            if row.waking is not None and row.waking.name == name:
                row.waking = None
            if row.arms.incumbent == name:
                if row.is_awake:
                    is_waking = row.waking is not None and row.waking.name == first
                    waking = row.waking if is_waking else self.states.wake(first)
                    while not self.states.advance(waking, row.text, row.text.length):
                        pass
                    self.states.sleep(name, row.text)
                row.arms.incumbent, row.waking = first, None
            row.arms.remove(name)
        self.states.remove(name)
