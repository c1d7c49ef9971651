"""A pool at work: a selector picks the drafter of every row's cycle, and all drafters read what was committed.

Axes: N drafters, B rows, A committed tokens, T tree nodes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.base import CandidateIndex, Drafter
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.proposer import Proposer
from drafterforge.drafters.registry import kind_of
from drafterforge.runtime.pool import Pool, group_alone
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.observation import CHILDREN, TEXT_WINDOW, Observation, best_children, text_state
from drafterforge.selectors.base import Context, Evaluation, Feedback, Selector
from drafterforge.tree.divergence import block_divergences
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.merge import Others, beside

LATE = 1024  # cycles after which all drafters read, though nobody asks what they would have proposed


@dataclass
class PoolRow:
    """Selection for one request."""

    selector: Selector
    position: int  # absolute position of the next token to be committed
    feature: Tensor  # [3H] the target's, one position before the root
    text: Tensor  # the last tokens, root included
    cycles: int = 0
    tokens: int = 0  # of the answer
    choice: str = ""
    limit: int = 0  # levels that could count in this cycle
    shape: TreeShape | None = None  # of this cycle
    scheduled: TreeShape | None = None  # what the scheduler last chose
    kept: int = 0  # cycles for which that stands
    unjudged: list[Feedback] = field(default_factory=list)  # cycles whose positions no evaluation has covered


@dataclass(frozen=True)
class Held:
    """What a cycle committed, of which all drafters have not read or been judged yet."""

    tokens: Tensor  # [B, A]
    laws: Tensor | None  # [B, A, V], None if every row is greedy or nobody asks
    counts: list[int]
    tell: bool  # whether a selector asked for evaluations

    def keep(self, rows: list[int]) -> Held:
        """Of some rows."""
        laws = None if self.laws is None else self.laws[rows]
        return Held(self.tokens[rows], laws, [self.counts[row] for row in rows], self.tell)


class PoolProposer(Proposer):
    """Every drafter's state for every row, and every row's selector."""

    def __init__(self, pool: Pool, shape: TreeShape, tokenizer: object = None) -> None:
        """shape: the largest trees that will be asked for, but of drafters with their own.  tokenizer: the target's,
        where a router reads texts.
        """
        self.pool, self.names, self.asked, self.tokenizer = pool, pool.names, shape, tokenizer
        self.groups = pool.groups()
        self.index_of: dict[str, CandidateIndex] = {}  # of the drafters that have one
        self.keys: dict[str, Hashable] = {}  # of these indices
        for name, drafter in pool.drafters.items():
            self._add_index(name, drafter)
        self.rows: list[PoolRow] = []
        self.since = 0  # cycles since all have read
        self.held: list[Held] = []  # what was committed since then
        self.select_s = self.schedule_s = 0.0  # seconds of selection and of scheduling, ever
        self.judgement: Judgement | None = None  # of the last evaluation, drafters in the order of the parts

    @property
    def chosen(self) -> list[str]:
        """The drafter of each row's cycle."""
        return [row.choice for row in self.rows]

    @property
    def shapes(self) -> list[TreeShape]:
        """The tree of each row's cycle."""
        return [row.shape for row in self.rows]

    @property
    def indices(self) -> list[CandidateIndex]:
        """Each once: drafters with one key share an index."""
        return list(dict.fromkeys(self.index_of.values()))

    def _add_index(self, name: str, drafter: Drafter) -> CandidateIndex | None:
        """Give a drafter its index; returns the index if it is new, and has read nothing."""
        kind = kind_of(drafter)
        key = kind.index_key(drafter)
        if key is None:
            return None
        shared = next((self.index_of[other] for other, known in self.keys.items() if known == key), None)
        self.keys[name] = key
        self.index_of[name] = kind.index(drafter) if shared is None else shared
        return self.index_of[name] if shared is None else None

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`, and start its selector."""
        self._catch_up()
        for _, part in self.groups:
            part.admit(text, features)
        for index in self.indices:
            index.admit(text, features)
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
        self.held = [one.keep(rows) for one in self.held] if rows else []
        for part in (*(part for _, part in self.groups), *self.indices):
            part.keep(rows)

    def plan(self, shape: TreeShape, limits: Sequence[int]) -> TreeShape:
        """Pick every row's drafter and tree; the bounds of the trees, see `Proposer`."""
        began = time.perf_counter()
        self.asked = shape
        for row, limit in zip(self.rows, limits, strict=True):
            choice = row.selector.select(Context(row.cycles, row.tokens))
            row.choice, row.limit = self.names[choice.drafter], limit
        self.select_s += time.perf_counter() - began
        if self.pool.scheduler is not None:
            self._schedule()
        for row in self.rows:
            own = row.scheduled if self.pool.scheduled(row.choice) else self.pool.shape_of(row.choice, self.asked)
            row.shape = TreeShape(own.num_tokens, min(own.depth, row.limit), own.top_k)
        return bounds(self.shapes)

    def _schedule(self) -> None:
        """Ask the scheduler for the trees of rows whose last choice no longer stands."""
        scheduler = self.pool.scheduler
        for names, part in self.groups:
            for member, name in enumerate(names):
                asked = [row for row in self.rows if row.choice == name and row.kept == 0]
                if not asked or not self.pool.scheduled(name):
                    continue
                guesses = part.guesses(member, [self.rows.index(row) for row in asked])
                began = time.perf_counter()
                chosen = scheduler.choose(seen(guesses, asked, scheduler, self.pool.drafters[name].embedding))
                for row, shape in zip(asked, chosen, strict=True):
                    row.scheduled, row.kept = shape, scheduler.every
                self.schedule_s += time.perf_counter() - began
        for row in self.rows:
            row.kept = max(row.kept - 1, 0)

    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B], each by its row's drafter."""
        found = []
        for names, part in self.groups:
            for member, name in enumerate(names):
                mine = [place for place, row in enumerate(self.rows) if row.choice == name]
                for own in dict.fromkeys(self.rows[place].shape for place in mine):
                    rows = [place for place in mine if self.rows[place].shape == own]
                    found.append((rows, self._draft(part, member, rows, root[rows], own)))
        return beside(found, len(self.rows))

    def _draft(self, part: DrafterGroup, member: int, rows: list[int], root: Tensor, shape: TreeShape) -> Tree:
        """Trees of one drafter and shape; a scheduler may end them early."""
        if shape.depth == 0 or shape.num_tokens == 1:
            return root_only(root)
        chosen = self.rows[rows[0]].choice
        if chosen in self.index_of:
            return self._draft_with_index(chosen, part, member, rows, root, shape)
        growth = None
        if self.pool.scheduled(chosen):
            lengths = torch.tensor([self.rows[place].position - 1 for place in rows], device=root.device)
            growth = self.pool.scheduler.growth(lengths)
        if growth is None:
            return part.draft(member, rows, root, shape)
        growth = Timed(growth)
        tree = part.draft(member, rows, root, shape, growth)
        self.schedule_s += growth.seconds
        for place, depth, count in zip(rows, growth.depths.tolist(), growth.counts.tolist(), strict=True):
            self.rows[place].shape = TreeShape(count, depth, shape.top_k)
        return tree

    def _draft_with_index(
        self, name: str, group: DrafterGroup, member: int, rows: list[int], root: Tensor, shape: TreeShape
    ) -> Tree:
        """Trees of a drafter and its index in one."""

        def draft(some: Sequence[int], growth: Growth, others: Others) -> Tree:
            return group.draft(member, [rows[place] for place in some], root[some], shape, growth, others)

        drafter, evidence = self.pool.drafters[name], self.index_of[name].evidence(rows, shape.depth)
        return kind_of(drafter).draft_with_index(drafter, evidence, root, shape, draft)

    def refresh(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Let the drafters read what was committed, and the selectors learn from it; see `Proposer`."""
        began = time.perf_counter()
        tell = any(row.selector.needs.evaluation for row in self.rows)
        self.held.append(Held(tokens, self._laws(tokens.shape[1]) if tell else None, counts, tell))
        for _, part in self.groups:
            part.commit(tokens, features, counts, tell)
        for index in self.indices:
            index.commit(tokens, features, counts, tell)
        divergences = self._divergences() if any(row.selector.needs.divergence for row in self.rows) else None
        for place, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            depth, row.feature = row.shape.depth, features[place, count - 1]
            if self.pool.scheduler is not None and self.pool.scheduler.reads_text:
                row.text = torch.cat((row.text, tokens[place, :count]))[-TEXT_WINDOW:]
            divergence = None if divergences is None else divergences[place]
            drafter = self.names.index(row.choice)
            row.unjudged.append(Feedback(drafter, row.position, count, depth, divergence=divergence))
            row.position, row.tokens, row.cycles = row.position + count, row.tokens + count, row.cycles + 1
        self.select_s += time.perf_counter() - began
        self.since += 1
        if self.since >= (self.pool.every if tell else LATE):
            self._read()
        else:
            self._tell(None)

    def _read(self) -> None:
        """Let all drafters read; judge them where a selector asks for it.

        Where none does, a drafter reads when it drafts, and hybrids often need not.
        """
        truth = self._truth() if all(one.tell for one in self.held) else None
        top_ks = [[self.pool.shape_of(name, self.asked).top_k for name in names] for names, _ in self.groups]
        judgements = [
            part.read(truth, top_k, self.pool.details) for (_, part), top_k in zip(self.groups, top_ks, strict=True)
        ]
        indexed = self._read_indices(truth)
        began = time.perf_counter()
        self.since = 0
        evaluations = None
        if truth is not None:
            self.judgement = Judgement.join(judgements)
            order = [name for names, _ in self.groups for name in names]
            for names, judged in indexed:
                self.judgement = self.judgement.or_else([order.index(name) for name in names], judged)
            evaluations = self._evaluations(self.judgement)
        self.held = []
        self._tell(evaluations)
        self.select_s += time.perf_counter() - began

    def _read_indices(self, truth: Truth | None) -> list[tuple[list[str], Judgement | None]]:
        """Let the indices read too: of each the drafters that take from it, and how good it was."""
        judged = []
        for index in self.indices:
            names = [name for name, other in self.index_of.items() if other is index]
            top_k = [self.pool.shape_of(name, self.asked).top_k for name in names]
            judged.append((names, index.read(truth, top_k, self.pool.details)))
        return judged

    def _catch_up(self) -> None:
        """Read before the rows change; what the selectors would have learned from it is told as usual."""
        if self.held:
            self._read()

    def _truth(self) -> Truth:
        """Tokens, and laws where any row samples, since all drafters read last; each row's side by side, padded."""
        laws = [one.laws for one in self.held]
        return Truth(
            self._side_by_side([one.tokens for one in self.held]),
            None if any(part is None for part in laws) else self._side_by_side(laws),
        )

    def _side_by_side(self, parts: list[Tensor]) -> Tensor:
        """Parts [B, A, ...] of which each row has its cycle's count, as one [B, sum A, ...]."""
        if len(parts) == 1:
            return parts[0]
        rows = [
            torch.cat([part[row, : one.counts[row]] for part, one in zip(parts, self.held, strict=True)])
            for row in range(len(self.rows))
        ]
        return pad_sequence(rows, batch_first=True)

    def _evaluations(self, judgement: Judgement) -> list[Evaluation]:
        """What the selectors are told of each row: drafters in the pool's order."""
        order = [name for names, _ in self.groups for name in names]
        places = [order.index(name) for name in self.names]
        gamma, accepted = torch.stack((judgement.gamma, judgement.accepted))[:, places].cpu().double().numpy()
        found = []
        for place, row in enumerate(self.rows):
            count = sum(one.counts[place] for one in self.held)
            found.append(Evaluation(row.position - count, gamma[:, place, :count], accepted[:, place, :count]))
        return found

    def _tell(self, evaluations: Sequence[Evaluation] | None) -> None:
        """Every cycle to its selector, the newest with the evaluation."""
        for place, row in enumerate(self.rows):
            for feedback in row.unjudged:
                newest = feedback is row.unjudged[-1]
                evaluation = evaluations[place] if evaluations is not None and newest else None
                row.selector.observe(Feedback(**{**vars(feedback), "evaluation": evaluation}))
            row.unjudged = []

    def _laws(self, width: int) -> Tensor | None:
        """The target's law at each node of the walks, [B, A, V], None if every row is greedy."""
        verified = self.verified
        if verified.picker.greedy:
            return None
        batch = verified.path.shape[0]
        at = torch.arange(batch, device=verified.path.device)[:, None], verified.path[:, :width]
        return torch.stack([verified.picker.law(step, verified.seen) for step in verified.logits[at].unbind(1)], dim=1)

    def _divergences(self) -> list[float]:
        """Block divergence of the drafts, [B], over the levels of the deepest drafter."""
        return block_divergences(self.verified.tree, self.verified.logits, max(1, *self.pool.levels(self.asked)))

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
        group, index = group_alone(drafter), self._add_index(name, drafter)
        for text, feature in zip(texts, features, strict=True):
            group.admit(text, feature)
            if index is not None:
                index.admit(text, feature)
        self.groups.append(([name], group))
        self.names.append(name)
        for row in self.rows:
            row.selector.add_drafter(name, cost, min(self.pool.shape_of(name, self.asked).depth, row.selector.depth))

    def try_join(self, name: str, drafter: Drafter, cost: float | None = None) -> None:
        """Let copies of the rows' selectors take a drafter in, so that what they refuse is known beforehand."""
        for row in self.rows:
            levels = min(self.pool.shape_of(name, self.asked).depth, row.selector.depth)
            copy.deepcopy(row.selector).add_drafter(name, cost, levels)

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
        self.index_of.pop(name, None), self.keys.pop(name, None)
        for place, (names, part) in enumerate(self.groups):
            if names == [name]:
                del self.groups[place]
                break
            if name in names:
                part.remove(names.index(name))
                names.remove(name)
                break


class Timed:
    """Decisions on trees that are being drafted, their seconds, and what became of the trees."""

    def __init__(self, growth: Growth) -> None:
        self.growth, self.seconds = growth, 0.0

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        began = time.perf_counter()
        found = self.growth.go_on(level, scores)
        self.seconds += time.perf_counter() - began
        return found

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        began = time.perf_counter()
        self.depths, self.counts = depths, self.growth.nodes(depths, scores)
        self.seconds += time.perf_counter() - began
        return self.counts


def seen(guesses: Tensor, rows: Sequence[PoolRow], scheduler: Scheduler, embedding: Tensor) -> Observation:
    """What a scheduler sees of rows; guesses: logits of their roots' children, [B, W]; embedding: [V, H]."""
    features = torch.stack([row.feature for row in rows]) if scheduler.reads_features else None
    texts = torch.stack([text_state(row.text, embedding) for row in rows]) if scheduler.reads_text else None
    lengths = torch.tensor([row.position - 1 for row in rows], device=guesses.device)
    children = best_children(guesses, CHILDREN) if scheduler.reads_children else None
    return Observation(features, children, lengths, texts)


def bounds(shapes: Sequence[TreeShape]) -> TreeShape:
    """The largest of every number."""
    return TreeShape(*(max(getattr(one, key) for one in shapes) for key in ("num_tokens", "depth", "top_k")))
