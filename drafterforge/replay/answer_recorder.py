"""Records counterfactuals of every drafter under every scheduler, to replay any selector with any scheduler.

An answer is recorded once for the trees of all schedulers; single trees are looked up.  As in live decoding, a
scheduler chooses the trees of EAGLE-3 drafters without a shape of their own, and holds a choice for several cycles,
even if the drafter changes.  A stochastic scheduler is sampled once per drafter and position: its replayed cycles have
the distribution of live ones, but are not equal to them.
Axes: N drafters, T tokens of prompt and answer, R roots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from drafterforge.errors import ConfigError
from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.record import record_answer
from drafterforge.replay.scheduler_actions import levels_of, nodes_of, shape_actions
from drafterforge.replay.selector_play import RecordedAnswers
from drafterforge.replay.trace import Trace, Traces, TraceSpec, accept_lengths, drafted_trees, join, ranks_at
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

STATIC = "static"  # the engine's tree, without a scheduler


def record_answers(
    target: Target,
    pool: Pool,
    shape: TreeShape,
    answers: Sequence[Generation],
    schedulers: Mapping[str, Scheduler] | None = None,
    max_new_tokens: int | None = None,
    branches: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, RecordedAnswers]:
    """Record greedy answers under each scheduler, see `AnswerRecorder`.  progress: called after each answer."""
    recorder = AnswerRecorder(target, pool, shape, schedulers, max_new_tokens, branches)
    counterfactuals: list[dict[str, Counterfactual]] = []
    for answer in answers:
        counterfactuals.append(recorder.record(answer))
        progress()
    prompts = [answer.prompt for answer in answers]
    return {
        name: RecordedAnswers.of([by_name[name] for by_name in counterfactuals], prompts) for name in recorder.pools
    }


class AnswerRecorder:
    """Records answers and looks up the counterfactuals of every drafter under every scheduler."""

    def __init__(
        self,
        target: Target,
        pool: Pool,
        shape: TreeShape,
        schedulers: Mapping[str, Scheduler] | None = None,
        max_new_tokens: int | None = None,
        branches: bool = False,
    ) -> None:
        """shape: tree of the engine, for drafters without a scheduler.

        schedulers: `StaticScheduler(shape)` is the engine without a scheduler; None: that alone, as `STATIC`.
        max_new_tokens: limit of the answers.  branches: also record coverage and overlap, rewards of
        MetaSD's selectors, for which the target reads every drafter's branches.
        """
        self.target, self.pool, self.shape, self.max_new_tokens = target, pool, shape, max_new_tokens
        self.schedulers = dict(schedulers or {STATIC: StaticScheduler(shape)})
        self.pools = {
            name: Pool(pool.drafters, "static", shapes=pool.shapes, scheduler=scheduler)
            for name, scheduler in self.schedulers.items()
        }
        scheduled = [name for name in pool.names if any(each.scheduled(name) for each in self.pools.values())]
        self.scheduled = [pool.names.index(name) for name in scheduled]
        self.spec, max_nodes = _required(scheduled, self.schedulers)
        self.branch_nodes = max_nodes if branches else 0
        self.generators = {name: torch.Generator().manual_seed(0) for name in self.schedulers}

    def record(self, answer: Generation) -> dict[str, Counterfactual]:
        """The counterfactual of a greedy answer under each scheduler."""
        begin, end = len(answer.prompt), len(answer.prompt) + len(answer.tokens)
        if len(answer.tokens) < 2:  # no cycle
            count = len(self.pool.names)
            outcomes, rates = [CycleOutcomes.undrafted(count, 0)], np.full(count, np.nan)
            accepted = np.zeros((count, end))
            return {
                name: Counterfactual(
                    pool.names, pool.levels(self.shape), begin, end, outcomes, accepted, prompt_hit_rates=rates
                )
                for name, pool in self.pools.items()
            }
        trace = record_answer(
            self.target, self.pool, answer, self.spec, self.shape, self.max_new_tokens, self.branch_nodes
        )
        traces = join(self.spec, [trace], [""], [""])
        if any(scheduler.reads_text for scheduler in self.schedulers.values()):
            traces = traces.with_texts(self.target.backbone.embedding)
        return {name: self._counterfactual(name, trace, traces) for name in self.schedulers}

    def _counterfactual(self, name: str, trace: Trace, traces: Traces) -> Counterfactual:
        scheduler, pool = self.schedulers[name], self.pools[name]
        base = Counterfactual(
            pool.names,
            pool.levels(self.shape),
            trace.begin,
            len(trace.tokens),
            [trace.outcomes],
            trace.accepted,
            prompt_hit_rates=trace.prompt_hit_rates,
        )
        if self.scheduled:
            shapes, choices = self._scheduled_shapes(scheduler, traces, self.generators[name])
            base = replace(base, outcomes=[self._look_up(trace, traces, choice) for choice in shapes])
            if choices is not None:
                base = replace(base, choices=np.full(trace.outcomes.depth.shape, -1), hold_cycles=scheduler.hold_cycles)
                base.choices[self.scheduled] = choices
        return replace(base, outcomes=[outcomes.per_level(max(1, *base.depths)) for outcomes in base.outcomes])

    @torch.inference_mode()
    def _scheduled_shapes(
        self, scheduler: Scheduler, traces: Traces, generator: torch.Generator
    ) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Trees (num_tokens, depth, top_k) asked for at every root, [n, R, 3], for each choice that may be held.

        If choices are held for several cycles, also the index of the choice made at each root, [n, R].
        """
        count = len(self.scheduled)
        if scheduler.grows:
            return [np.stack([_grown_trees(scheduler, traces, drafter) for drafter in range(count)])], None
        if len(shapes := scheduler.replayed_shapes()) == 1:
            shape = shapes[0].num_tokens, shapes[0].depth, shapes[0].top_k
            return [np.broadcast_to(shape, (count, traces.num_roots, 3))], None
        actions = np.stack([shape_actions(scheduler, traces, n, generator, chunk_size=1) for n in range(count)])
        table = scheduler.grid.table
        if scheduler.hold_cycles == 1:
            return [table[actions]], None
        used, choices = np.unique(actions, return_inverse=True)
        return [np.broadcast_to(table[action], (*actions.shape, 3)) for action in used], choices.reshape(actions.shape)

    def _look_up(self, trace: Trace, traces: Traces, shapes: np.ndarray) -> CycleOutcomes:
        """The trace's outcomes, those of scheduled drafters with these trees, [n, R, 3]."""
        depth, nodes = drafted_trees(shapes, traces.levels)
        top_k = shapes[..., 2]
        width = (*np.indices(depth.shape), np.searchsorted(self.spec.top_ks, np.where(nodes > 1, top_k, 0)))
        values = [accept_lengths(trace.ranks[width], depth, nodes), depth, nodes, top_k]
        if trace.branches is not None:
            ranks, (coverage, overlap, levels) = trace.branches.ranks[width], np.zeros((3, *depth.shape))
            for level in range(1, int(depth.max(initial=0)) + 1):
                verified = (ranks_at(ranks, depth, level) < nodes[..., None]) & (level <= depth)[..., None]
                coverage += (verified * trace.branches.probs[:, :, level - 1]).sum(axis=2)
                overlap += verified[..., 0] * trace.branches.overlaps[:, :, level - 1]
                levels += verified[..., 0]
            values += [coverage, overlap / np.maximum(levels, 1)]
        arrays = {key: array.copy() for key, array in trace.outcomes.arrays().items()}
        for array, value in zip(arrays.values(), values, strict=True):
            array[self.scheduled] = value
        return CycleOutcomes(**arrays)


def _required(drafters: Sequence[str], schedulers: Mapping[str, Scheduler]) -> tuple[TraceSpec, int]:
    """The spec that covers any tree of these schedulers, and the nodes of the largest tree.

    Raises ConfigError for a scheduler that cannot be replayed, or not together with the others.
    """
    shapes = [shape for name, scheduler in schedulers.items() for shape in _shapes(name, scheduler) if _drafts(shape)]
    shapes = shapes or [TreeShape(2, 1, 1)]
    growing = {s.replayed_shapes()[0].top_k: name for name, s in schedulers.items() if s.grows}
    if len(growing) > 1:
        widths = ", ".join(f"{name} of width {top_k}" for top_k, name in growing.items())
        raise ConfigError(f"schedulers that read scores of different widths must be recorded separately, got {widths}")
    top_ks = tuple(sorted({shape.top_k for shape in shapes}))
    depth, num_tokens = (max(getattr(shape, key) for shape in shapes) for key in ("depth", "num_tokens"))
    return TraceSpec(tuple(drafters), top_ks, depth, next(iter(growing), top_ks[0])), num_tokens


def _grown_trees(policy: GrowingPolicy, traces: Traces, drafter: int) -> np.ndarray:
    """Trees of a policy that decides while they are drafted, [R, 3]."""
    depths = levels_of(policy, traces, drafter)
    nodes = nodes_of(policy, traces, drafter, depths)
    return np.stack((nodes, depths, np.full_like(nodes, policy.spec.top_k)), axis=1)


def _shapes(name: str, scheduler: Scheduler) -> Sequence[TreeShape]:
    """The trees a scheduler may ask for; ConfigError if it cannot be replayed."""
    shapes = scheduler.replayed_shapes()
    if shapes is None:
        raise ConfigError(
            f"scheduler {name!r} is a {type(scheduler).__name__}, which cannot be replayed; wanted one tree, or a "
            "policy of `train-policy`"
        )
    return shapes


def _drafts(shape: TreeShape) -> bool:
    return shape.depth > 0 and shape.num_tokens > 1
