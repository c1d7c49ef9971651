"""The device's part of a cycle, in fixed shapes and in three steps, which a GPU replays as graphs.

Draft: every row drafts a tree with its drafter.  Verify: the target reads the trees; accepted tokens are committed.
Read: all drafters read them and are judged by them, and everything the host wants to know is packed into one tensor.
Axes: B rows, N drafters, T tree nodes, D drafted levels, A = D + 1 committed tokens at most, H hidden, C children.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.propose import draft_levels
from drafterforge.drafters.eagle3.row_drafters import RowDrafters
from drafterforge.drafters.eagle3.stack import read_slots
from drafterforge.drafters.judging import Judgement, Truth, judge
from drafterforge.runtime.acceptance import accept
from drafterforge.runtime.capture import capture
from drafterforge.runtime.sampling import Picker
from drafterforge.runtime.static_rows import StaticRows
from drafterforge.schedulers.growing import DeviceDecisions, GrowingPolicy
from drafterforge.schedulers.observation import CHILDREN, best_children
from drafterforge.tree.coverage import branch_coverages
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, root_only
from drafterforge.tree.masked_growth import MaskedGrowth
from drafterforge.tree.masks import level_mask
from drafterforge.tree.tries import TrieDecisions, Tries, merge_tries


@dataclass(frozen=True)
class Report:
    """What the host wants to know after a cycle, beyond what was accepted."""

    top_k: tuple[int, ...] = ()  # judge all drafters; of each, the number of proposals that count; empty: do not
    coverage_levels: int = 0  # levels of coverages; 0: none
    children: bool = False  # log-probabilities of all drafters' best children of the new root
    features: bool = False  # the target's features before the new root


@dataclass(frozen=True)
class HostReport:
    """The requested parts, in the host's memory; None: not requested."""

    levels: list[int]  # drafted levels of each row's tree
    judgement: Judgement | None
    coverages: list[float] | None
    children: Tensor | None  # [N, B, C]
    features: Tensor | None  # [B, 3H]


class StaticCycle:
    """Cycles of one capacity: nodes, levels and width that no row's tree exceeds."""

    def __init__(
        self,
        rows: StaticRows,
        shape: TreeShape,
        picker: Picker,
        invariant: bool,
        masked: bool = False,
        policy: GrowingPolicy | None = None,
        report: Report | None = None,
    ) -> None:
        """masked: rows have trees of their own within the shape; else all draft the shape.  policy: on the device."""
        self.rows, self.shape, self.picker, self.invariant = rows, shape, picker, invariant
        self.masked, self.policy, self.report = masked, policy, report or Report()
        self.record = CycleRecord(rows.root, [shape.depth] * rows.batch, shape)  # graphs overwrite its tensors
        self.record.plan_uniform(shape)
        drafters = rows.drafters
        if drafters is not None:
            self.limits = torch.tensor(self.report.top_k, dtype=torch.long).to(rows.target.device)
        self.growth: MaskedGrowth | None = None
        steps = [self._draft, self._verify, self._read]
        (self.draft, self.verify, self.read), rows.graph_memory = capture(steps, rows.state(), rows.graph_memory)

    @property
    def num_accepted(self) -> int:
        """Numbers of `Acceptance` in a row of the packed tensor."""
        return 2 * (self.shape.depth + 2)

    def _draft(self) -> None:
        rows, shape, record, drafters = self.rows, self.shape, self.record, self.rows.drafters
        if drafters is None:
            record.tree = root_only(rows.root) if rows.tries is None else self._look_up()
            return
        base = rows.slots - shape.top_k * max(shape.depth - 1, 0)
        if len(drafters.members) == 1:
            drafter, cache, last, logits = drafters.members[0], rows.draft_cache, rows.last[0], rows.logits[0]
        else:
            choice, index = rows.row_plans[:, 0], torch.arange(rows.batch, device=rows.root.device)
            drafter, cache = RowDrafters(drafters, choice), rows.draft_cache.copy_rows(choice * rows.batch + index)
            last, logits = rows.last[choice, index], rows.logits[choice, index]
        tries, self.growth = None, None
        if self.masked:
            decisions = None if self.policy is None else DeviceDecisions(self.policy, rows.lengths)
            if rows.tries is not None:
                tries = Tries.unpack(rows.tries)
                decisions = TrieDecisions(tries, shape.top_k)
            self.growth = MaskedGrowth(rows.row_plans[:, 1], rows.row_plans[:, 2], rows.row_plans[:, 3], decisions)
        record.tree = draft_levels(
            drafter, cache, last, rows.root, rows.stable, base, shape, logits, self.growth, tries
        )

    def _look_up(self) -> Tree:
        """Trees of what retrieval proposes, without a drafter."""
        rows, shape = self.rows, self.shape
        no_candidate = torch.zeros(rows.batch, 1, dtype=torch.long, device=rows.root.device)  # padding, scored -inf
        scores = torch.full_like(no_candidate, -torch.inf, dtype=torch.float32)
        tries = Tries.unpack(rows.tries)
        return merge_tries(
            rows.root,
            no_candidate,
            scores,
            no_candidate - 1,
            no_candidate[0] + 1,
            tries,
            shape.num_tokens,
            shape.depth,
            rows.row_plans[:, 2],
        )

    def _verify(self) -> None:
        rows, record, depth = self.rows, self.record, self.shape.depth
        tree = record.tree
        count = tree.tokens.shape[1]
        base = rows.slots - count
        ancestors = ancestor_mask(tree.parents, depth)
        rows.cache.set_slots(base, count)
        mask = level_mask(ancestors, rows.lengths, base, rows.target.compute_dtype)
        positions = rows.lengths[:, None] + tree.levels
        states, record.features = rows.target.forward(tree.tokens, positions, rows.cache, mask, self.invariant)
        record.logits = rows.target.logits(states, self.invariant)
        seen = rows.seen if self.picker.penalised else None
        self.counts = counts = accept(record, ancestors, self.picker, rows.uniform, seen)
        steps = torch.arange(depth + 1, device=counts.device)
        # keys that are not accepted go to the spare slot before the tree
        destinations = torch.where(steps < counts[:, None], rows.lengths[:, None] + steps, base - 1)
        index = torch.arange(rows.batch, device=counts.device)[:, None]
        rows.cache.data[:, :, index, :, destinations] = rows.cache.data[:, :, index, :, base + record.path]
        rows.lengths.add_(counts)
        rows.root.copy_(record.next_tokens.gather(1, counts[:, None] - 1)[:, 0])

    def _read(self) -> None:
        record, report = self.record, self.report
        numbers: list[Tensor] = []
        if self.rows.drafters is not None:
            numbers += self._read_committed()
        if report.coverage_levels:
            numbers.append(branch_coverages(record.tree, record.logits, report.coverage_levels)[:, None])
        if numbers:
            bits = torch.cat([part.double() for part in numbers], dim=1).view(torch.long)
            record.packed = torch.cat((record.packed, bits), dim=1)
        record.logits = record.features = record.distribution = None  # large, and not needed any more

    def _read_committed(self) -> list[Tensor]:
        """Let the drafters read the committed tokens; what is reported of them, [B, ...] each."""
        rows, record, report, drafters = self.rows, self.record, self.report, self.rows.drafters
        tokens, path = record.next_tokens, record.path
        batch, width = tokens.shape
        features = record.features.gather(1, path[:, :, None].expand(-1, -1, record.features.shape[2]))
        slots = rows.stable[:, None] + torch.arange(width, device=tokens.device)
        newest = torch.arange(batch, device=tokens.device) * width + self.counts - 1
        rows.draft_cache.set_ragged_slots(slots.repeat(len(drafters.members), 1), rows.slots)
        judged = bool(report.top_k)
        hidden, logits = read_slots(
            drafters, rows.draft_cache, tokens, features, slots, rows.slots, None if judged else newest
        )
        numbers = []
        if self.growth is not None:
            numbers.append(self.growth.drafted[:, None])
        if judged:
            guesses = logits.unflatten(1, (batch, width))
            guesses = torch.cat((rows.logits[:, :, None], guesses[:, :, :-1]), dim=2)  # logits before each token
            truth = Truth(tokens, record.distributions(width))
            judgement = judge(guesses, drafters.token_ids, drafters.draft_ids, truth, report.top_k, limits=self.limits)
            numbers += [part.transpose(0, 1).flatten(1) for part in (judgement.accepted, judgement.gamma)]
            hidden, logits = hidden[:, newest], logits[:, newest]
        rows.last.copy_(hidden)
        rows.logits.copy_(logits)
        rows.stable.add_(self.counts)
        if report.children:
            numbers.append(best_children(logits, CHILDREN).transpose(0, 1).flatten(1))
        if report.features:
            numbers.append(features.flatten(0, 1)[newest])
        return numbers

    def unpack(self, packed: Tensor) -> HostReport:
        """The parts behind the `Acceptance` in a packed tensor, which lies in the host's memory."""
        rows, report = self.rows, self.report
        numbers = packed[:, self.num_accepted :].contiguous().view(torch.float64)
        batch, width, start = len(packed), self.shape.depth + 1, 0

        def take(count: int) -> Tensor:
            nonlocal start
            start += count
            return numbers[:, start - count : start]

        count = 0 if rows.drafters is None else len(rows.drafters.members)
        judged = bool(report.top_k) and count > 0
        levels, judgement, children, features, coverages = [self.shape.depth] * batch, None, None, None, None
        if self.masked and count:
            levels = [int(level) for level in take(1)[:, 0].tolist()]
        if judged:
            parts = [take(count * width).reshape(batch, count, width).transpose(0, 1).float() for _ in range(2)]
            judgement = Judgement(*parts)
        if report.children:
            num_children = min(CHILDREN, rows.drafters.token_ids.shape[1])
            children = take(count * num_children).reshape(batch, count, num_children).transpose(0, 1).float()
        if report.features:
            backbone, width = rows.target.backbone, rows.target.head_weight.shape[1]
            features = take(len(backbone.taps) * width).to(rows.target.compute_dtype)
        if report.coverage_levels:
            coverages = take(1)[:, 0].tolist()
        return HostReport(levels, judgement, coverages, children, features)
