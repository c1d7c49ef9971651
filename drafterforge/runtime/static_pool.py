"""Selection on the host for cycles of fixed shapes: what `PoolProposer` decides, in the numbers that the device reads.

Axes: B rows, N drafters, C children, H hidden of the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.stack import StackReader
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.registry import kind_of
from drafterforge.errors import DrafterforgeError
from drafterforge.runtime.capture import host_copy
from drafterforge.runtime.pool import Pool, group_alone
from drafterforge.runtime.pool_members import PoolMembers
from drafterforge.runtime.pool_proposer import PoolProposer
from drafterforge.runtime.shapes import bounds, next_power, require_within
from drafterforge.runtime.static_cycle import HostReport, Report
from drafterforge.schedulers.growing import GrowingPolicy
from drafterforge.schedulers.observation import CHILDREN, best_children
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.tries import MergeRule, pack_tries

DRAFTER_ALONE = MergeRule(trust=1.0, min_probability=0.0, drafts=True, min_reach=0.0, ignorance=1.0)
LEAST_NODES = 8  # trees that vary have capacities of this times powers of 2, so that few graphs are captured


def has_fixed_shapes(pool: Pool) -> bool:
    """Whether cycles of this pool can have fixed shapes: all its drafters read in one pass."""
    readers = [kind_of(drafter).reader(drafter) for drafter in pool.drafters.values()]
    fixed = all(kind_of(drafter).fixed_shapes for drafter in (*pool.drafters.values(), *readers))
    on_host = [name for name, drafter in pool.drafters.items() if kind_of(drafter).reads_on_host]
    num_stacks = sum(names[0] not in on_host for names in pool.stacked_names())
    if pool.worth is not None or not fixed or num_stacks > 1:
        return False
    if pool.needs.overlap:  # needs the drafters' distributions, which stay on the device
        return False
    return not (isinstance(pool.scheduler, GrowingPolicy) and (retrieves(pool) or pool.shapes))


def require_stackable(pool: Pool, name: str, drafter: Drafter) -> None:
    """Refuse a new drafter with which cycles could not have fixed shapes."""
    trial = Pool({**pool.drafters, name: drafter}, "static", shapes=pool.shapes, scheduler=pool.scheduler)
    if not has_fixed_shapes(trial):
        raise DrafterforgeError(
            f"drafter {name!r} does not stack with {', '.join(pool.names)}, as cycles of fixed shapes need; "
            "open the engine with graphs=False"
        )


def retrieves(pool: Pool) -> bool:
    """Whether any drafter looks up candidates on the host."""
    return any(
        kind_of(drafter).reads_on_host or kind_of(drafter).indexed_drafting(drafter)
        for drafter in pool.drafters.values()
    )


def device_names(pool: Pool) -> list[str]:
    """Names of the drafters whose state lies on the device, in stacking order."""
    for names in pool.stacked_names():
        if not kind_of(pool.drafters[names[0]]).reads_on_host:
            return names
    return []


def largest_shape(pool: Pool, shape: TreeShape) -> TreeShape:
    """The shape that no tree of a pool exceeds.  shape: of drafters without a shape of their own or a scheduler."""
    shapes = [pool.shape_of(name, shape) for name in pool.names if not pool.scheduled(name)]
    if pool.scheduler is not None:
        shapes += pool.scheduler.largest_shapes()
    return bounds(shapes)


class StaticMembers(PoolMembers):
    """The drafters of a pool as `PoolProposer` sees them; what they have read lies in the buffers of the batch.

    Only indices, which look up candidates on the host, have their state here.
    """

    def __init__(self, pool: Pool) -> None:
        self.drafters, self.stacked = pool.drafters, device_names(pool)
        self.groups = [(names, pool.group(names)) for names in pool.stacked_names() if names != self.stacked]
        self.index_of, self._indexed = {}, {}
        for name in self.drafters:
            self._add_index(name)
        if self.stacked and pool.scheduler is not None and pool.scheduler.reads_text and pool.host_embedding is None:
            drafter = self.drafters[self.stacked[0]]
            pool.host_embedding = host_copy(kind_of(drafter).reader(drafter).embedding)
        self._embedding = pool.host_embedding
        self.log_probs: Tensor | None = None  # of the best children of every row's root, [N, B, C], on the host

    @property
    def names(self) -> list[str]:
        """Names in the order of judgements: the stacked ones, then those that read on the host."""
        return [*self.stacked, *(name for names, _ in self.groups for name in names)]

    def children(self, name: str, rows: list[int]) -> Tensor:
        """See `PoolMembers`."""
        return self.log_probs[self.stacked.index(name)][rows]

    def embedding(self, name: str) -> Tensor:
        """See `PoolMembers`; on the host, where schedulers decide."""
        return self._embedding

    def trie_of(self, name: str, row: int, shape: TreeShape) -> tuple[Evidence | None, MergeRule]:
        """What a drafter's index knows of a row, and how it is weighed against the drafter."""
        if name in self.index_of:
            evidence = self.index_of[name].evidence([row], shape.depth)[0]
            return evidence, self._indexed[name].rule(evidence, shape)
        if name in self.stacked:
            return None, DRAFTER_ALONE
        group, _ = self._find(name)
        group.catch_up()
        evidence = group.proposer.evidence(row, shape.depth)
        return evidence, group.proposer.rule(evidence, shape)

    def read_on_host(
        self, judgement: Judgement | None, truth: Truth | None, top_k: Callable[[str], int]
    ) -> Judgement | None:
        """Let what reads on the host read and be judged.  judgement: of the stacked drafters."""
        parts = [group.read(truth, [top_k(name) for name in names]) for names, group in self.groups]
        if truth is not None:
            judgement = Judgement.join([part for part in (judgement, *parts) if part is not None])
        return self.read_indices(judgement, truth, top_k)

    def keep(self, rows: list[int]) -> None:
        """See `PoolMembers`."""
        super().keep(rows)
        if self.log_probs is not None:
            self.log_probs = self.log_probs[:, rows]

    def add(self, name: str, drafter: Drafter, texts: Sequence[Tensor], features: Sequence[Tensor]) -> None:
        """See `PoolMembers`; the batch reads the texts again for the drafter itself."""
        if kind_of(drafter).reads_on_host:
            group, index = group_alone(drafter), None
            self.groups.append(([name], group))
        else:
            self.stacked, group, index = [*self.stacked, name], None, self._add_index(name)
        for part in (group, index):
            for text in texts if part is not None else ():
                part.admit(text, text)

    def remove(self, name: str) -> None:
        """See `PoolMembers`."""
        self.stacked = [member for member in self.stacked if member != name]
        self.groups = [(names, group) for names, group in self.groups if names != [name]]
        self.index_of.pop(name, None), self._indexed.pop(name, None)


class StaticSelection:
    """Selects the drafters and trees of rows whose cycles have fixed shapes."""

    def __init__(self, pool: Pool, shape: TreeShape, device: torch.device, tokenizer: object = None) -> None:
        self.pool, self.device = pool, device
        self.members = StaticMembers(pool)
        self.proposer = PoolProposer(pool, shape, tokenizer, self.members)
        scheduler = pool.scheduler
        self.policy = scheduler.on(device) if isinstance(scheduler, GrowingPolicy) else None
        self.masked = False  # whether rows of this cycle have trees of their own
        self.report = Report()
        self.largest = largest_shape(pool, shape)
        several = scheduler is not None and len(scheduler.largest_shapes()) > 1
        self.varies = several or self.policy is not None  # whether a scheduler changes trees from cycle to cycle

    @property
    def trie_nodes(self) -> int:
        """Nodes of what retrieval proposes in each row; 0: no drafter of the pool retrieves, now."""
        return self.largest.num_tokens if retrieves(self.pool) else 0

    @property
    def reads_children(self) -> bool:
        """Whether a scheduler observes the children of the roots."""
        scheduler = self.pool.scheduler
        return bool(self.members.stacked) and scheduler is not None and scheduler.reads_children

    def stack(self) -> StackedDrafters | None:
        """The stacked drafters as they are now; None: all drafters read on the host."""
        self.members.stacked = device_names(self.pool)
        return self.pool.group(self.members.stacked).drafters if self.members.stacked else None

    def stack_reader(self, drafters: StackedDrafters, num_tokens: int) -> StackReader:
        """Reads a prompt for the stacked drafters."""
        return StackReader(drafters, self.proposer.judged_prompt(num_tokens, self.members.stacked))

    def join(self, text: Tensor, features: Tensor, logits: Tensor | None, stacked: StackReader | None) -> None:
        """Add a row.

        text: [P + 1], root included.  features: [P, 3H].  logits: of its root's children, [N, 1, W].  stacked: has read
        the prompt for the stacked drafters.
        """
        text, reader = host_copy(text), self.members.prompt_reader()
        if stacked is not None:
            reader.add_judge(self.members.stacked, stacked)
        self.proposer.join_row(reader, text, features)
        row = self.proposer.rows[-1]
        row.feature = host_copy(row.feature)
        if self.reads_children:
            self.observe_children(logits, self.members.log_probs)

    def observe_children(self, logits: Tensor, before: Tensor | None = None) -> None:
        """Set what a scheduler observes of the roots' children from logits [N, B, W], after those of rows `before`."""
        log_probs = host_copy(best_children(logits, CHILDREN))
        self.members.log_probs = log_probs if before is None else torch.cat((before, log_probs), dim=1)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.proposer.keep(rows)

    def plan(self, record: CycleRecord, largest: TreeShape) -> Tensor:
        """Select every row's drafter and tree; returns what the device needs to know of each, see `ROW_PLAN`."""
        self.proposer.plan(record)
        require_within(record.bounds, largest)
        proposer, scheduler = self.proposer, self.pool.scheduler
        shapes = list(record.shapes)
        differ = any(shape != shapes[0] for shape in shapes)
        self.masked = self.varies or self.trie_nodes > 0 or differ
        if self.masked:
            size = 1 if record.bounds.num_tokens == 1 else max(LEAST_NODES, next_power(record.bounds.num_tokens))
            width = largest.top_k if self.policy is None else self.policy.shape.top_k  # its networks read this many
            record.bounds = TreeShape(min(size, largest.num_tokens), record.bounds.depth, width)
        self.report = Report(
            top_k=tuple(proposer.top_k(name) for name in self.members.stacked) if proposer.needs_evaluation else (),
            coverage_levels=proposer.coverage_levels if proposer.needs_coverage else 0,
            children=self.reads_children,
            features=bool(self.members.stacked) and scheduler is not None and scheduler.reads_features,
        )
        stacked = self.members.stacked
        row_plans = [
            [stacked.index(name) if name in stacked else 0, shape.depth, shape.num_tokens, shape.top_k]
            for name, shape in zip(record.drafters, shapes, strict=True)
        ]
        return torch.tensor(row_plans)

    def tries(self, record: CycleRecord) -> Tensor:
        """What retrieval knows of every row's text, see `pack_tries`."""
        shapes = [row.shape for row in self.proposer.rows]
        tries = [
            self.members.trie_of(name, row, shape)
            for row, (name, shape) in enumerate(zip(record.drafters, shapes, strict=True))
        ]
        evidence, rules = zip(*tries, strict=True)
        return pack_tries(evidence, rules, shapes, self.trie_nodes)

    def learn(self, record: CycleRecord, tokens: Tensor, report: HostReport) -> None:
        """Let the selectors learn from a cycle.  tokens: committed ones, padded, [B, D + 1]; all lies on the host."""
        began = time.perf_counter()
        rows = self.proposer.rows
        if self.policy is not None:
            for row, size, levels in zip(rows, record.sizes, report.levels, strict=True):
                row.shape = TreeShape(size, levels, row.shape.top_k)
            record.shapes = [row.shape for row in rows]
        features = [row.feature for row in rows] if report.features is None else list(report.features)
        self.proposer.commit_rows(record, tokens, features, report.coverages)
        self.members.commit(tokens, tokens, record.counts)
        # the target's probabilities stay on the device, so a sampled token counts as if it were certain
        truth = Truth(tokens, None) if self.proposer.needs_evaluation else None
        judgement = self.members.read_on_host(report.judgement, truth, self.proposer.top_k)
        self.proposer.learn(record, judgement)
        if report.children is not None:
            self.members.log_probs = report.children
        record.charge("select", began)

    def try_join(self, name: str, drafter: Drafter, cost: float | None) -> None:
        """Refuse a drafter that the selectors refuse."""
        self.proposer.try_join(name, drafter, cost)
