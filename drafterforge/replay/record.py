"""Records a trace of an answer: the drafts of every drafter of a pool at every position.

The target and every drafter read the text once; trees are drafted from many roots at a time.
Axes: N drafters whose trees a scheduler chooses, M drafters of the pool, T tokens of prompt and answer, R roots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.base import CandidateIndex
from drafterforge.drafters.group import DrafterGroup, TextReading
from drafterforge.drafters.proposer import first_judged
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import DrafterforgeError
from drafterforge.replay.counterfactual import CycleOutcomes
from drafterforge.replay.coverage import BranchQueries, BranchQuery
from drafterforge.replay.drafting import ROOTS, AnswerText, read_stepwise
from drafterforge.replay.trace import BY_DRAFTER, BranchTrace, Trace, TraceSpec, levels_left
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.schedulers.actions import NO_DRAFT
from drafterforge.schedulers.observation import CHILDREN, best_children
from drafterforge.targets.load import Target
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import Tree, TreeShape

MOST_PROBS = 1 << 26  # of drafters, that are held until the target has read their branches
MIN_SCORE = -6e4  # about the smallest float16


def allowed_tokens(target: Target, answer: Generation, max_new_tokens: int | None = None) -> int:
    """Limit of an answer's tokens.  max_new_tokens: as given to `generate`; None: inferred from the stop reason."""
    room = target.max_positions - len(answer.prompt)
    if max_new_tokens is None:
        return len(answer.tokens) if answer.stop_reason in ("length", "context") else room
    if max_new_tokens < len(answer.tokens):
        raise DrafterforgeError(f"an answer has {len(answer.tokens)} tokens, more than max_new_tokens={max_new_tokens}")
    return min(max_new_tokens, room)


def record_answer(
    target: Target,
    pool: Pool,
    answer: Generation,
    spec: TraceSpec,
    shape: TreeShape = NO_DRAFT,
    max_new_tokens: int | None = None,
    branch_nodes: int = 0,
) -> Trace:
    """The trace of an answer of two tokens or more, greedy or sampled.

    Sampled tokens are fixed by seed and position, so a sampled answer confirms drafts as a greedy one does.

    spec: drafters whose trees of any shape can be looked up, and the widths and depth of these trees.  shape: tree of
    other drafters without a shape in the pool.  max_new_tokens: limit of the answer, near which trees are shallower.
    branch_nodes: also record coverage and overlap of trees of at most so many nodes; 0: none.
    """
    if not all(kind_of(pool.drafters[name]).scheduled for name in spec.drafters):
        raise DrafterforgeError("traces need EAGLE-3 drafters; other kinds draft trees of one shape")
    tokens = torch.tensor(answer.prompt + answer.tokens, device=target.device)
    begin, end = len(answer.prompt), len(tokens)
    with torch.inference_mode():
        positions = torch.arange(end, device=target.device)[None]
        states, features = (part[0] for part in target.forward(tokens[None], positions, None))
        text = AnswerText(tokens, features, begin, allowed_tokens(target, answer, max_new_tokens))
        best = target.logits(states[begin : end - 1]).float().topk(2).values
        recorder = _PositionRecorder(text, target, pool, spec, shape, branch_nodes)
        for names, group in pool.groups():
            recorder.record(names, group)
        return Trace(
            tokens=tokens.cpu().numpy().astype(np.int32),
            begin=begin,
            max_new_tokens=text.max_new_tokens,
            features=features[begin - 1 : end - 2].half().cpu().numpy(),
            margins=(best[:, 0] - best[:, 1]).cpu().numpy(),
            **recorder.results(),
        )


class _PositionRecorder:
    """Records the drafts of one group of drafters after the other at every root of a text."""

    def __init__(
        self, text: AnswerText, target: Target, pool: Pool, spec: TraceSpec, shape: TreeShape, branch_nodes: int
    ) -> None:
        self.text, self.target, self.pool, self.spec, self.shape = text, target, pool, spec, shape
        self.branch_nodes = branch_nodes
        self.numbers = {name: number for number, name in enumerate(pool.names)}
        self.num_roots = text.end - 1 - text.begin
        self.accepted = np.zeros((len(pool.names), text.end))
        self.prompt_hit_rates = np.full(len(pool.names), np.nan)
        self.outcomes = CycleOutcomes.undrafted(len(pool.names), self.num_roots)
        self.traced: dict[str, list[np.ndarray]] = {}  # by drafter of `spec`, see `_trace`
        self.indexed: dict[tuple, tuple[np.ndarray, dict[int, Evidence]]] = {}  # by index and shape, see `_look_up`
        self.queries = BranchQueries(text.tokens)
        self.answers: list[tuple[BranchQuery, Tensor, float]] = []  # of earlier queries, without the drafters' part

    def record(self, names: Sequence[str], group: DrafterGroup) -> None:
        """Let a group of drafters read the text and draft from every root."""
        shapes = [self.pool.shape_of(name, self.shape) for name in names]
        reading = group.read_text(self.text.tokens, self.text.features, [shape.top_k for shape in shapes])
        if reading is None:
            self._draft_stepwise(names[0], group, shapes[0])
            return
        numbers, accepted = [self.numbers[name] for name in names], reading.accepted.cpu().numpy()
        self.accepted[numbers] = accepted
        on_prompt = accepted[:, first_judged(self.text.begin) : self.text.begin + 1]
        if group.judges_prompts and on_prompt.size:
            self.prompt_hit_rates[numbers] = on_prompt.mean(axis=1)
        for member, (name, shape) in enumerate(zip(names, shapes, strict=True)):
            if name in self.spec.drafters:
                self.traced[name] = self._trace(name, reading, member)
            else:
                self._draft(name, reading, member, shape)

    def _limit_queries(self) -> None:
        """Answer the queries if they hold many distributions."""
        if self.queries.num_probs > MOST_PROBS:
            self._answer_queries()

    def _answer_queries(self) -> None:
        """Let the target read the queried branches, and drop the drafters' distributions."""
        self.answers += [(query._replace(proposed=None), *rest) for query, *rest in self.queries.answers(self.target)]

    def results(self) -> dict[str, Any]:
        """Fields of the `Trace`."""
        drafters = self.spec.drafters
        stacked = [np.stack(parts) for parts in zip(*(self.traced[name] for name in drafters), strict=True)]
        results: dict[str, Any] = dict(zip(BY_DRAFTER, stacked or [np.zeros((0, self.num_roots))] * 4, strict=False))
        outcomes = self.outcomes
        if self.branch_nodes:
            self._answer_queries()
            sums, overlaps, levels = (np.zeros(outcomes.depth.shape) for _ in range(3))
            probs = {name: np.zeros(self.traced[name][-2].shape) for name in drafters}
            traced_overlaps = {name: np.zeros(array.shape[:2]) for name, array in probs.items()}
            for query, masses, overlap in self.answers:
                root = query.root - self.text.begin
                if query.drafter in probs:
                    probs[query.drafter][root, query.level, : len(query.children)] = masses.numpy()
                    traced_overlaps[query.drafter][root, query.level] = overlap
                else:
                    at = self.numbers[query.drafter], root
                    sums[at] += masses.sum().item()
                    overlaps[at] += overlap
                    levels[at] += 1
            outcomes = replace(outcomes, coverage=sums, overlap=overlaps / np.maximum(levels, 1))
            if drafters:
                masses, overlaps = (
                    np.stack([arrays[name] for name in drafters]) for arrays in (probs, traced_overlaps)
                )
                results["branches"] = BranchTrace(masses, stacked[-1], overlaps)
        return results | {"accepted": self.accepted, "prompt_hit_rates": self.prompt_hit_rates, "outcomes": outcomes}

    def _trace(self, name: str, reading: TextReading, member: int) -> list[np.ndarray]:
        """A drafter's arrays of `BY_DRAFTER`; for branches also their tokens [R, D, C] and ranks."""
        lower, batches = torch.tril_indices(self.spec.depth, self.spec.depth), []
        for start in range(self.text.begin, self.text.end - 1, ROOTS):
            roots = torch.arange(start, min(start + ROOTS, self.text.end - 1), device=self.text.tokens.device)
            truth, spec = self.text.following(roots, self.spec.depth), self.spec
            drafts = reading.drafts(member, roots, spec.top_ks, truth, spec.score_top_k, bool(self.branch_nodes))
            batch = [
                drafts.ranks[:, :, lower[0], lower[1]].cpu().numpy().astype(np.uint16),
                drafts.scores.clamp(min=MIN_SCORE).half().cpu().numpy(),
                best_children(reading.guesses(member, roots), CHILDREN).half().cpu().numpy(),
                reading.log_q(member, roots).cpu().numpy(),
            ]
            if drafts.branch is not None:
                ranks = drafts.branch.ranks[:, :, lower[0], lower[1]].cpu().numpy().astype(np.uint16)
                batch += [drafts.branch.tokens.cpu().numpy(), ranks]
                self._add_queries(
                    name, start, *batch[-2:], drafts.branch.logits.softmax(dim=-1), reading.token_ids[member]
                )
            batches.append(batch)
        return [np.concatenate(parts) for parts in zip(*batches, strict=True)]

    def _add_queries(
        self, name: str, start: int, tokens: np.ndarray, ranks: np.ndarray, probs: Tensor, token_ids: Tensor
    ) -> None:
        """Query children along a drafter's most probable branches that a tree of `branch_nodes` nodes can contain.

        tokens [B, D, C], ranks, probs [B, D, W]: of the branches below the roots from `start` on.
        """
        levels = np.tril_indices(tokens.shape[1])[1]
        for level in range(tokens.shape[1]):
            # ranks increase from child to child, so that a tree contains the first ones
            counts = (ranks[:, :, levels == level].min(axis=(1, 2)) < self.branch_nodes).sum(axis=1)
            for row in counts.nonzero()[0].tolist():
                children = tokens[row, level, : counts[row]].tolist()
                proposed = token_ids, probs[row, level]
                self.queries.add(name, start + row, tokens[row, :level, 0].tolist(), children, proposed)
        self._limit_queries()

    def _draft(self, name: str, reading: TextReading, member: int, shape: TreeShape) -> None:
        """Draft trees of one shape below every root; an index of the drafter adds its candidates."""
        drafter = self.pool.drafters[name]
        indexed = kind_of(drafter).indexed_drafting(drafter)
        if indexed is not None:
            if (indexed.key, shape) not in self.indexed:
                self.indexed[indexed.key, shape] = self._look_up(indexed.index(), shape)
            accepted, evidence = self.indexed[indexed.key, shape]
            self.accepted[self.numbers[name]] = np.maximum(self.accepted[self.numbers[name]], accepted)
        self._record_shape(name, shape)
        for roots, cut in self.text.batches(shape):
            index = torch.tensor(roots, device=self.text.tokens.device)

            def draft(rows: Sequence[int], *growing: Any, index: Tensor = index, cut: TreeShape = cut) -> Tree:
                return reading.trees(member, index[list(rows)], cut, *growing, proposals=bool(self.branch_nodes))

            if indexed is None:
                trees = draft(range(len(roots)))
            else:
                rows = [evidence[root] for root in roots]
                trees = indexed.draft(rows, self.text.tokens[index], cut, draft)
            self._record_trees(name, roots, trees, cut)

    def _draft_stepwise(self, name: str, group: DrafterGroup, shape: TreeShape) -> None:
        """Draft trees of one shape with a drafter that reads token by token."""

        def draft(root: int, cut: TreeShape) -> None:
            trees = group.draft(0, [0], self.text.tokens[root : root + 1], cut, proposals=bool(self.branch_nodes))
            self._record_trees(name, [root], trees, cut)

        self._record_shape(name, shape)
        self.accepted[self.numbers[name]] = read_stepwise(group, self.text, shape, draft)

    def _look_up(self, index: CandidateIndex, shape: TreeShape) -> tuple[np.ndarray, dict[int, Evidence]]:
        """Whether an index proposes each token, [T], and its evidence at every drafted root."""
        evidence: dict[int, Evidence] = {}

        def look_up(root: int, cut: TreeShape) -> None:
            (evidence[root],) = index.evidence([0], cut.depth)

        return read_stepwise(index, self.text, shape, look_up), evidence

    def _record_shape(self, name: str, shape: TreeShape) -> None:
        """Record the requested trees of a drafter, cut to the levels that can count."""
        left = levels_left(self.text.max_new_tokens, np.arange(self.num_roots))
        self.outcomes.depth[self.numbers[name]] = np.minimum(shape.depth, left)
        self.outcomes.top_k[self.numbers[name]] = shape.top_k

    def _record_trees(self, name: str, roots: Sequence[int], trees: Tree, shape: TreeShape) -> None:
        """Record the outcomes of a drafter's trees below roots [B]."""
        at = self.numbers[name], np.array(roots) - self.text.begin
        is_node = trees.parents != torch.arange(trees.parents.shape[1], device=trees.parents.device)
        self.outcomes.accept_length[at] = self.text.accept_lengths(roots, trees, shape.depth)
        self.outcomes.num_nodes[at] = 1 + is_node.sum(dim=1).cpu().numpy()
        if self.branch_nodes:
            self.queries.add_trees(name, roots, trees, shape.depth)
            self._limit_queries()
