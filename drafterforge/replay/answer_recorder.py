"""Answers as every drafter would have met them under every scheduler, for replays of any selector with any of them.

What drafters would draft is recorded once, for the trees of all schedulers together; the rest is looked up.  As live, a
scheduler chooses the trees of EAGLE-3 drafters without their own, and its choice stands for so many cycles, whoever
drafts in them.  A policy that draws is drawn once for each drafter and position: its replayed cycles follow the law of
live ones, but they are not the same cycles, see `draws`.
Axes: N drafters, T tokens of prompt and answer, R roots, K widths, D levels, C children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from drafterforge.errors import ConfigError
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.divergence import Branches
from drafterforge.replay.drafting import room_of, tell
from drafterforge.replay.record import record
from drafterforge.replay.scheduler_actions import levels_of, nodes_of, observations_of
from drafterforge.replay.selector_play import RecordedAnswers
from drafterforge.replay.trace import Trace, Traces, TraceSpec, join
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.nets import act
from drafterforge.schedulers.policy import ShapePolicy
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


def draws(scheduler: Scheduler) -> bool:
    """Whether live cycles depend on what the scheduler drew before, so that no replay can repeat them one by one."""
    return isinstance(scheduler, ShapePolicy) and scheduler.spec.temperature > 0


@dataclass(frozen=True)
class Reach:
    """What has to be recorded for some schedulers."""

    top_ks: tuple[int, ...]
    depth: int
    score_top_k: int  # width whose candidates' scores are seen
    num_tokens: int  # of the largest tree

    @staticmethod
    def of(schedulers: Mapping[str, Scheduler]) -> Reach:
        """The union of what they may ask for; ConfigError for one that cannot be replayed, or not beside the others."""
        shapes = [shape for name, one in schedulers.items() for shape in _shapes(name, one) if _drafts(shape)]
        shapes = shapes or [TreeShape(2, 1, 1)]
        told = {one.spec.top_k: name for name, one in schedulers.items() if isinstance(one, GrowingPolicy)}
        if len(told) > 1:
            widths = ", ".join(f"{name} of width {top_k}" for top_k, name in told.items())
            raise ConfigError(f"schedulers that see scores of different widths are recorded one by one, got {widths}")
        top_ks = tuple(sorted({shape.top_k for shape in shapes}))
        depth, num_tokens = (max(getattr(shape, key) for shape in shapes) for key in ("depth", "num_tokens"))
        return Reach(top_ks, depth, next(iter(told), top_ks[0]), num_tokens)


def record_answers(
    target: Target,
    pool: Pool,
    shape: TreeShape,
    answers: Sequence[Generation],
    schedulers: Mapping[str, Scheduler],
    max_new_tokens: int,
    divergences: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, RecordedAnswers]:
    """A contest of the pool's drafters for each scheduler, on greedy answers of at most `max_new_tokens`.

    shape: the engine's trees, for drafters that no scheduler serves; `StaticScheduler(shape)` is the engine without a
    scheduler.  divergences: also what MetaSD's selectors are rewarded by.  progress: told after each answer.
    """
    recorder = AnswerRecorder(target, pool, shape, schedulers, max_new_tokens, divergences)
    counterfactuals: list[dict[str, Counterfactual]] = []
    for answer in answers:
        counterfactuals.append(recorder.record(answer))
        progress()
    prompts = [answer.prompt for answer in answers]
    return {name: RecordedAnswers.of([one[name] for one in counterfactuals], prompts) for name in schedulers}


class AnswerRecorder:
    """Records what every drafter would have done under every scheduler, answer by answer."""

    def __init__(
        self,
        target: Target,
        pool: Pool,
        shape: TreeShape,
        schedulers: Mapping[str, Scheduler],
        max_new_tokens: int,
        divergences: bool = False,
    ) -> None:
        """See `record_answers`."""
        self.target, self.shape, self.max_new_tokens = target, shape, max_new_tokens
        self.schedulers, self.divergences, self.reach = dict(schedulers), divergences, Reach.of(schedulers)
        self.pools = {
            name: Pool(pool.drafters, "static", shapes=pool.shapes, scheduler=one) for name, one in schedulers.items()
        }
        served = [name for name in pool.names if any(one.scheduled(name) for one in self.pools.values())]
        self.served = {name: pool.names.index(name) for name in served}  # to their numbers in the pool
        judged = {name: TreeShape(1, 0, shape.top_k) for name in served}  # all that drafts is recorded
        self.others = Pool(pool.drafters, "static", shapes=pool.shapes | judged)
        self.recorded = Pool({name: pool.drafters[name] for name in served}, "static") if served else None
        for one in (self.others, self.recorded):
            if one is not None:
                one.stacks = pool.stacks  # weights side by side, made once
        self.generators = {name: torch.Generator().manual_seed(0) for name in schedulers}

    def record(self, answer: Generation) -> dict[str, Counterfactual]:
        """The counterfactual of an answer under each scheduler."""
        base = tell(self.target, self.others, self.shape, answer, self.divergences, self.max_new_tokens)
        if self.recorded is None or len(answer.tokens) < 2:
            return {name: replace(base, depths=one.levels(self.shape)) for name, one in self.pools.items()}
        room = room_of(self.target, answer, self.max_new_tokens)
        reach = self.reach
        trace = record(
            self.target,
            self.recorded,
            answer.prompt,
            answer.tokens,
            room,
            reach.top_ks,
            reach.depth,
            reach.score_top_k,
            self.divergences,
        )
        recorded = TraceSpec(tuple(self.served), reach.top_ks, reach.depth, reach.score_top_k)
        traces = join(recorded, [trace], [""], [""])
        if any(one.reads_text for one in self.schedulers.values()):
            traces = traces.with_texts(self.target.backbone.embedding)
        looked_up = LookUp(traces, trace, _masses(self.target, trace, reach.num_tokens) if self.divergences else None)
        return {name: self._story(name, base, looked_up) for name in self.schedulers}

    def _story(self, name: str, base: Counterfactual, looked_up: LookUp) -> Counterfactual:
        scheduler, depths = self.schedulers[name], self.pools[name].levels(self.shape)
        base = replace(base, trees=[_rescaled(base, depths)], depths=depths)
        asked, chosen = self._asked(scheduler, looked_up.traces, self.generators[name])
        numbers, inside = list(self.served.values()), slice(base.begin, base.end - 1)
        trees = [looked_up.put(base.trees[0], numbers, inside, one, max(1, *depths)) for one in asked]
        if chosen is None:
            return replace(base, trees=trees)
        places = np.full(base.gamma.shape, -1)
        places[numbers, inside] = chosen
        return replace(base, trees=trees, chosen=places, every=scheduler.every)

    @torch.inference_mode()
    def _asked(
        self, scheduler: Scheduler, traces: Traces, generator: torch.Generator
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Trees asked for at every root, (num_tokens, depth, top_k) [n, R, 3] for every choice that may stand.

        If choices stand for several cycles, also the place among them of the choice at each root, [n, R].
        """
        count = len(self.served)
        if isinstance(scheduler, StaticScheduler):
            shape = scheduler.shape
            return [np.broadcast_to((shape.num_tokens, shape.depth, shape.top_k), (count, traces.num_roots, 3))], None
        if isinstance(scheduler, GrowingPolicy):
            return [np.stack([_grown(scheduler, traces, drafter) for drafter in range(count)])], None
        found = []
        for drafter in range(count):
            seen = torch.from_numpy(observations_of(traces, drafter, scheduler.spec.parts))
            # one by one, as live: together they round differently, and some actions tie since their trees are the same
            logits = torch.cat([scheduler.net.logits(row[None]) for row in seen])
            found.append(act(logits, scheduler.spec.temperature, generator).numpy())
        actions, table = np.stack(found), scheduler.grid.table
        if scheduler.every == 1:
            return [table[actions]], None
        used, places = np.unique(actions, return_inverse=True)
        return [np.broadcast_to(table[one], (*actions.shape, 3)) for one in used], places.reshape(actions.shape)


@dataclass(frozen=True)
class LookUp:
    """Outcomes of any trees of recorded drafters, numbered n, at the roots of one answer."""

    traces: Traces
    trace: Trace
    masses: np.ndarray | None  # [n, R, D, C] of the children along the best branches

    def put(
        self, trees: CycleOutcomes, numbers: list[int], inside: slice, asked: np.ndarray, levels: int
    ) -> CycleOutcomes:
        """`trees` with the rows of these drafters as asked for, [n, R, 3]; levels: of the pool, see `Branches`."""
        num_tokens, depth, top_k = np.moveaxis(asked, 2, 0)
        deep = np.minimum(depth, self.traces.levels)
        full = np.where(deep > 0, top_k + (deep - 1) * top_k**2, 0) + 1
        nodes = np.minimum(num_tokens, full)
        width = np.searchsorted(self.traces.spec.top_ks, np.where(nodes > 1, top_k, 0))
        values = [self._accept_lengths(width, deep, nodes), deep, nodes, top_k]
        parts = [trees.accept_length, trees.depth, trees.num_nodes, trees.top_k]
        if self.masses is not None:
            values.append(self._divergences(width, deep, nodes) / levels)
            parts.append(trees.divergence)
        parts = [part.copy() for part in parts]
        for part, value in zip(parts, values, strict=True):
            part[numbers, inside] = value
        return CycleOutcomes(*parts)

    def _accept_lengths(self, width: np.ndarray, depth: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Tokens emitted, bonus included, [n, R]; width: place among those recorded."""
        rows = np.indices(depth.shape)
        ranks = self.trace.ranks[*rows, width]
        found = np.ones(depth.shape, dtype=np.int64)
        for level in range(1, int(depth.max(initial=0)) + 1):
            found += (level <= depth) & (ranks[*rows, _pair(depth, level)] < nodes)
        return found

    def _divergences(self, width: np.ndarray, depth: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The target's mass on the children along the trees' best branches, added up, [n, R]."""
        rows = np.indices(depth.shape)
        ranks = self.trace.branches.ranks[*rows, width]
        total = np.zeros(depth.shape)
        for level in range(1, int(depth.max(initial=0)) + 1):
            kept = ranks[*rows, _pair(depth, level)] < nodes[..., None]
            total += np.where(level <= depth, (kept * self.masses[:, :, level - 1]).sum(axis=2), 0.0)
        return total


def _pair(depth: np.ndarray, level: int) -> np.ndarray:
    """Place of (depth, level) among pairs stored row by row; any place where the depth is less."""
    return np.where(level <= depth, depth * (depth - 1) // 2 + level - 1, 0)


def _masses(target: Target, trace: Trace, num_tokens: int) -> np.ndarray:
    """The target's probability of every child along the best branches that a tree so large may keep, [n, R, D, C]."""
    tokens, ranks = trace.branches.tokens, trace.branches.ranks
    found = np.zeros(tokens.shape)
    branches = Branches(torch.from_numpy(trace.tokens.astype(np.int64)), tokens.shape[2])
    levels = np.tril_indices(tokens.shape[2])[1]
    with torch.inference_mode():
        for level in range(tokens.shape[2]):
            # ranks rise from child to child, so that the first ones are kept
            counts = (ranks[:, :, :, levels == level].min(axis=(2, 3)) < num_tokens).sum(axis=2)
            for drafter, row in zip(*counts.nonzero(), strict=True):
                own = tokens[drafter, row]
                children = own[level, : counts[drafter, row]].tolist()
                branches.ask(int(drafter), trace.begin + int(row), own[:level, 0].tolist(), children)
        for (drafter, root, level, children), masses in branches.masses(target):
            found[drafter, root - trace.begin, level, : len(children)] = masses.numpy()
    return found


def _rescaled(base: Counterfactual, depths: Sequence[int]) -> CycleOutcomes:
    """The counterfactual's trees, with divergences that are means over the levels of other drafters' trees too."""
    return base.trees[0].only(range(len(depths)), max(1, *base.depths) / max(1, *depths))


def _grown(policy: GrowingPolicy, traces: Traces, drafter: int) -> np.ndarray:
    """Trees that a policy decides on while they are drafted, [R, 3]."""
    depths = levels_of(policy, traces, drafter)
    nodes = nodes_of(policy, traces, drafter, depths)
    return np.stack((nodes, depths, np.full_like(nodes, policy.spec.top_k)), axis=1)


def _shapes(name: str, scheduler: Scheduler) -> Sequence[TreeShape]:
    """The largest trees that a scheduler may ask for, or all of them."""
    if type(scheduler) is StaticScheduler or isinstance(scheduler, GrowingPolicy):
        return [scheduler.shape]
    if isinstance(scheduler, ShapePolicy):
        return scheduler.grid.shapes
    raise ConfigError(
        f"scheduler {name!r} is a {type(scheduler).__name__}, which cannot be replayed; wanted one tree, or a policy "
        "that drafterforge train-policy made"
    )


def _drafts(shape: TreeShape) -> bool:
    return shape.depth > 0 and shape.num_tokens > 1
