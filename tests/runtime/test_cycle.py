"""The record of a cycle: its drafter, its trees and the seconds of its steps."""

from __future__ import annotations

import time

import pytest
import torch

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.proposer import Proposer
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.kernels import gpu
from drafterforge.runtime.acceptance import accept
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import STEPS
from drafterforge.runtime.sampling import Picker, Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.runtime.tree_scheduling import TimedGrowth
from drafterforge.schedulers.base import StaticScheduler
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, root_only
from tests.models import tiny_drafter, tiny_target
from tests.schedulers.policies import ltd_policy

PROMPTS = [[3, 14, 15, 9, 26, 5], [7, 7, 7]]
LATE_S = 0.05


class Watcher(Proposer):
    """A proposer that drafts nothing, chooses slowly, and stores the records it receives."""

    def __init__(self) -> None:
        self.records, self.steps = [], []

    def admit(self, text, features) -> None: ...

    def keep(self, rows) -> None: ...

    def plan(self, record) -> None:
        self.note("plan", record)
        assert record.tree is None and record.logits is None and not record.counts
        began = time.perf_counter()
        time.sleep(LATE_S)
        record.charge("select", began)
        super().plan(record)

    def draft(self, record):
        self.note("draft", record)
        assert record.bounds.depth <= max(record.limits)
        return root_only(record.root)

    def refresh(self, record) -> None:
        self.note("refresh", record)
        tokens, features = record.committed()
        assert tokens.shape == (len(record.counts), 1) and features.shape[:2] == tokens.shape
        assert [row.tolist() for row in tokens] == [list(row) for row in record.emitted]

    def note(self, step, record) -> None:
        self.steps.append(step)
        if not self.records or self.records[-1] is not record:
            self.records.append(record)


def test_every_step_of_a_cycle_receives_the_same_record():
    target = tiny_target(eos_token_id=None)
    watcher = Watcher()
    batch = Batch(target, watcher)
    with torch.inference_mode():
        rows = [batch.admit(prompt, StopRule(frozenset(), 4, "length")) for prompt in PROMPTS]
        while batch.rows:
            batch.cycle(TreeShape(4, 2, 2))
    assert watcher.steps == ["plan", "draft", "refresh"] * 2 + ["plan", "draft"]  # a finished row does not read
    assert len(watcher.records) == 3
    for row in rows:
        assert [cycle.select_s for cycle in row.answer.cycles] == [
            record.seconds["select"] for record in watcher.records
        ]
        assert all(cycle.select_s >= LATE_S for cycle in row.answer.cycles)
        assert sum(row.answer.time_s[step] for step in STEPS if step != "total") <= row.answer.time_s["total"]


@pytest.mark.parametrize("graphs", [False, True])
def test_batches_with_and_without_graphs_record_the_requested_trees(graphs):
    target = tiny_target(eos_token_id=None)
    drafter, shape = FusedDrafter(tiny_drafter(target), target.backbone.embedding), TreeShape(8, 3, 2)
    answers = Engine(target, drafter, shape, graphs=graphs).generate(PROMPTS, 12)
    for answer in answers:
        first = answer.cycles[0]
        assert (first.depth, first.top_k, first.num_nodes, first.drafter) == (3, 2, 8, "")
        assert sum(cycle.accept_length for cycle in answer.cycles) == 11
        for step in ("verify", "host"):
            spent = [getattr(cycle, f"{step}_s") for cycle in answer.cycles]
            assert min(spent) > 0 and sum(spent) == pytest.approx(answer.time_s[step])


def test_a_pool_records_drafter_tree_and_selection_seconds_of_each_row():
    target = tiny_target(eos_token_id=None)
    eagle = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    pool = Pool(
        {"eagle": eagle, "lookup": Retrieval()},
        "random",
        shapes={"lookup": TreeShape(6, 5, 1)},
        scheduler=StaticScheduler(TreeShape(7, 2, 3)),
    )
    answers = Engine(target, pool, TreeShape(8, 3, 2)).generate(PROMPTS, 40)
    cycles = [cycle for answer in answers for cycle in answer.cycles]
    assert {(cycle.drafter, cycle.top_k) for cycle in cycles} == {("eagle", 3), ("lookup", 1)}
    assert all(cycle.select_s > 0 and cycle.draft_s > 0 for cycle in cycles)
    assert any(cycle.schedule_s > 0 for cycle in cycles)


def test_the_distributions_of_a_walk_penalise_only_the_tokens_before_each():
    torch.manual_seed(0)
    picker = Picker([Sampling(temperature=1.0, repetition_penalty=1.7)], 5, torch.device("cpu"))
    chain, levels = torch.tensor([[0, 3, 3]]), torch.tensor([[0, 1, 2]])
    logits = torch.randn(1, 3, 5)
    logits[..., 3] = 60.0  # the drafted token is always drawn
    record = CycleRecord(chain[:, 0], [2], TreeShape(3, 2, 1), tree=Tree(chain, torch.tensor([[0, 0, 1]]), levels))
    record.plan_uniform(record.shape)
    record.logits = logits
    seen = torch.tensor([[True, False, False, False, False]])
    before, after = seen.clone(), torch.tensor([[True, False, False, True, False]])
    accept(record, ancestor_mask(record.tree.parents, 2), picker, torch.full((1, 3), 0.5), seen)
    assert record.next_tokens.tolist() == [[3, 3, 3]] and seen.equal(after)
    expected = [picker.distribution(logits[:, level], before if level == 0 else after) for level in range(3)]
    torch.testing.assert_close(record.distributions(3), torch.stack(expected, dim=1))


def test_a_scheduler_is_not_charged_for_what_a_gpu_drafts_meanwhile(monkeypatch):
    monkeypatch.setattr(gpu, "synchronize", lambda _: time.sleep(LATE_S))
    growth = TimedGrowth(ltd_policy(2).growth(torch.tensor([6])))
    growth.go_on(1, torch.zeros(1, 2)), growth.nodes(torch.tensor([1]), torch.zeros(1, 2))
    assert 0.0 < growth.seconds < LATE_S
