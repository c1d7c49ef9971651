"""Decoding cycles take the GPU's path on `meta` tensors: one wait a cycle, none while a graph is captured, no mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import pytest
import torch

from drafterforge.kernels import gpu
from drafterforge.runtime import static_batch
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import Target
from tests.gpu_rehearsal.tools import Log, rehearse
from tests.models import NORMS, tiny_target
from tests.runtime.drafters import PROMPTS, SHAPE, full_drafters, hybrids, lora_drafters, mixed_drafters
from tests.schedulers.policies import POLICIES

SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)
CYCLES = 3
WAIT = "runtime.capture.host_copy: copy"


def pool(drafters: Callable, selector: str, policy: str = "") -> Callable[[Target], Pool]:
    """A function that builds a pool for a target on any device."""

    def build(target: Target) -> Pool:
        torch.manual_seed(3)
        scheduler = POLICIES[policy](target) if policy else None
        members = {f"drafter {number}": drafter for number, drafter in enumerate(drafters(target))}
        options = {"reward": "coverage"} if selector == "metasd_ucb" else {}
        return Pool(members, selector, scheduler=scheduler, **options)

    return build


def three_lora(target: Target) -> list:
    return lora_drafters(target, 3)


PATHS: dict[str, Callable[[Target], object]] = {
    "plain": lambda target: None,
    "eagle3": lambda target: lora_drafters(target, 1)[0],
    "eagle3.1": lambda target: lora_drafters(target, 1, **NORMS["EAGLE-3.1"])[0],
    "LoRA pool, hedgespec": pool(three_lora, "hedgespec"),
    "LoRA pool, hedgespec-prompt": pool(three_lora, "hedgespec-prompt"),
    "LoRA pool, random": pool(three_lora, "random"),
    "LoRA pool, metasd": pool(three_lora, "metasd_ucb"),
    "LoRA pool, thompson": pool(three_lora, "thompson"),
    "full pool, hedgespec": pool(lambda target: full_drafters(target, 3, **NORMS["EAGLE-3.1"]), "hedgespec"),
    "full pool, random": pool(lambda target: full_drafters(target, 3), "random"),
    "full pool, metasd": pool(lambda target: full_drafters(target, 3), "metasd_ucb"),
    "two families, hedgespec": pool(lambda target: mixed_drafters(target, 3), "hedgespec"),
    "hybrid": lambda target: hybrids(target)[0],
    "retrieval": lambda target: hybrids(target)[3],
    "hybrids, hedgespec": pool(hybrids, "hedgespec"),
    "hybrids, random": pool(hybrids, "random"),
    **{f"scheduler {name}": pool(three_lora, "hedgespec", name) for name in POLICIES},
}


@dataclass
class Run:
    """What a run of some cycles did."""

    log: Log
    packed: list[tuple]  # shape and dtype of what the host read in every cycle
    waits: list[int]  # reads from the device in every cycle
    num_captured: int  # cycles of different shapes
    captures: list[int]  # graphs captured in every cycle
    drafters: set[str]  # that drafted


def run(
    path: str, batch_size: int, sampling: Sampling, device: str, values: Log | None = None, cycles: int = CYCLES
) -> Run:
    """Decode some cycles of some prompts."""
    target = tiny_target(eos_token_id=None, device=device)
    engine = Engine(target, PATHS[path](target), SHAPE, numerics="fast", graphs=True)
    packed, waits, captures, drafters, capture = [], [], [], set(), gpu.capture

    def counted(*arguments):
        captures[-1] += 1
        return capture(*arguments)

    with torch.inference_mode(), rehearse(values) as log, mock.patch.object(gpu, "capture", counted):
        batch = engine.open_batch()
        for prompt in PROMPTS[:batch_size]:
            batch.admit(*engine.read(prompt, 40), sampling)
        for _ in range(cycles):
            captures.append(0)
            before = sum(log.reads.values())
            batch.cycle(engine.shape)
            waits.append(sum(log.reads.values()) - before)
            record = batch.current.record
            packed.append((tuple(record.packed.shape), record.packed.dtype))
            drafters |= {row.answer.cycles[-1].drafter for row in batch.rows}
    num_captured = sum(len(rows.cycles) for rows in engine.buffers.values())
    return Run(log, packed, waits, num_captured, captures, drafters)


GREEDY_PATHS = ("plain", "eagle3", "LoRA pool, hedgespec", "hybrid", "hybrids, hedgespec", "scheduler children")
RANDOM_PATHS = ("LoRA pool, random", "full pool, random", "hybrids, random")
SAMPLED_PATHS = [path for path in PATHS if path not in RANDOM_PATHS]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("path", "batch_size", "sampling"),
    [*((path, 1, GREEDY) for path in GREEDY_PATHS), *((path, 4, SAMPLED) for path in SAMPLED_PATHS)],
    ids=[*(f"{path}, 1 greedy" for path in GREEDY_PATHS), *(f"{path}, 4 sampled" for path in SAMPLED_PATHS)],
)
def test_a_cycle_waits_for_the_gpu_once(path, batch_size, sampling):
    real = run(path, batch_size, sampling, "cpu")
    rehearsal = run(path, batch_size, sampling, "meta", real.log)
    assert rehearsal.waits == [1] * CYCLES
    assert set(rehearsal.log.reads) == {WAIT}
    assert rehearsal.packed == real.packed
    assert rehearsal.num_captured == real.num_captured
    assert sum(rehearsal.captures) == 3 * rehearsal.num_captured and sum(real.captures) == 0


@pytest.mark.parametrize("path", RANDOM_PATHS)
def test_another_drafter_captures_no_graph(path):
    real = run(path, 1, GREEDY, "cpu", cycles=12)
    rehearsal = run(path, 1, GREEDY, "meta", real.log, cycles=12)
    assert rehearsal.captures == [3] + [0] * 11
    assert rehearsal.drafters == real.drafters and len(real.drafters) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LoRA experts", "hybrids", "children", "ltd", "marginal"])
def test_rows_and_drafters_join_and_leave(name, monkeypatch):
    monkeypatch.setattr(static_batch, "FIRST_SLOTS", 32)
    monkeypatch.setattr("drafterforge.kernels.cache.BLOCK", 32)

    def live(device: str, values: Log | None) -> Log:
        target = tiny_target(eos_token_id=None, device=device)
        torch.manual_seed(3)
        *members, late = hybrids(target)[:3] if name == "hybrids" else lora_drafters(target, 4)
        scheduler = POLICIES[name](target) if name in POLICIES else None
        named = {f"drafter {number}": drafter for number, drafter in enumerate(members)}
        engine = Engine(target, Pool(named, "hedgespec", scheduler=scheduler), SHAPE, numerics="fast", graphs=True)
        with torch.inference_mode(), rehearse(values) as log:
            batch = engine.open_batch()
            for prompt, count in zip(PROMPTS[:3], (5, 7, 8), strict=True):
                batch.admit(*engine.read(prompt, count), SAMPLED)
            for number in range(60):
                if not batch.rows:
                    break
                batch.cycle(engine.shape)
                if number == 1:
                    engine.add_drafter("late", late)
                if number == 2:
                    engine.remove_drafter("drafter 1")
                if number == 3:
                    batch.admit(*engine.read(PROMPTS[1], 12), SAMPLED)  # alone at last, it needs more slots
            assert not batch.rows
        return log

    assert set(live("meta", live("cpu", None)).reads) == {WAIT}
