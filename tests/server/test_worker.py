"""The worker's turns: prompts are read chunk by chunk between the cycles of running answers."""

from __future__ import annotations

import gc

import pytest
import torch

from drafterforge.errors import ArtifactError
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY
from drafterforge.server import worker as module
from drafterforge.server.metrics import Metrics
from drafterforge.server.worker import FAILED, Job, Worker
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_target

LONG, SHORT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23], [7, 1, 8]
CHUNK = 3


@pytest.fixture
def worker() -> Worker:
    """A worker whose turns the test takes."""
    engine = Engine(tiny_target(eos_token_id=None), None, TreeShape(1, 0, 1))
    worker = Worker(engine, Metrics("none"), max_waiting=4)
    with torch.inference_mode():
        worker.batch = engine.open_batch()
        worker.batch.prefill_chunk = CHUNK
        yield worker


def submitted(worker: Worker, prompt: list[int], max_new_tokens: int) -> tuple[Job, list]:
    """A job that waits, and the list of its updates."""
    updates: list = []
    tokens, rule = worker.engine.read(prompt, max_new_tokens)
    job = Job(tokens, rule, GREEDY, deliver=updates.append)
    worker.waiting.append(job)
    return job, updates


def test_running_answers_get_a_cycle_between_the_chunks_of_a_long_prompt(worker):
    running, tokens = submitted(worker, SHORT, 20)
    worker._step()
    long, _ = submitted(worker, LONG, 4)
    for num_read in (3, 6, 9, 12):
        before = tokens[-1].num_tokens
        worker._step()
        assert long.joining.prefill.num_read == num_read and long.row is None
        assert tokens[-1].num_tokens == before + 1
    worker._step()
    assert worker.running == [running, long]
    (expected,) = Engine(worker.engine.target, None).generate([LONG], 4)
    while worker.running:
        worker._step()
    assert long.row.answer.tokens == expected.tokens


def test_what_is_loaded_is_not_collected_while_answers_wait(worker, monkeypatch):
    monkeypatch.setattr(module, "gc", gc)
    gc.unfreeze()
    job, _ = submitted(worker, [3, 4], 4)
    frozen: list[int] = []
    job.deliver = lambda update: frozen.append(gc.get_freeze_count())
    worker.thread.start()
    worker.close(5.0)
    worker.thread.join()
    assert frozen and min(frozen) > 10_000 and gc.get_freeze_count() == 0
    gc.freeze()


def test_what_the_engine_has_learned_is_saved_at_times_and_at_the_end(worker, monkeypatch):
    saves = []
    monkeypatch.setattr(worker.engine, "save_state", lambda: saves.append(len(updates)))
    worker.save_s = 0.0
    _, updates = submitted(worker, SHORT, 3)
    worker.close(grace_s=9.0)
    worker._run()
    assert len(saves) > 2 and saves[0] < len(updates) == saves[-1]


@pytest.mark.parametrize("error", [ArtifactError("the disk is full"), OSError("the disk is full")])
def test_a_state_that_cannot_be_saved_ends_no_answer(worker, monkeypatch, caplog, error):
    monkeypatch.setattr(worker.engine, "save_state", lambda: (_ for _ in ()).throw(error))
    worker.save_s = 0.0
    _, updates = submitted(worker, SHORT, 3)
    worker.close(grace_s=9.0)
    worker._run()
    assert updates[-1].stop_reason == "length" and "the disk is full" in caplog.text


def test_running_answers_are_told_that_they_failed_also_if_no_batch_can_follow(worker, monkeypatch):
    _, updates = submitted(worker, SHORT, 20)
    _, waiting = submitted(worker, LONG, 20)
    worker.batch.prefill_chunk = len(SHORT)
    worker._step()
    broken = iter([worker.batch])
    monkeypatch.setattr(worker.engine, "open_batch", lambda: next(broken))
    monkeypatch.setattr(worker.batch, "cycle", lambda shape: 1 / 0)
    with pytest.raises(StopIteration):
        worker._run()
    assert updates[-1].failure == waiting[-1].failure == FAILED and worker.dead


def test_short_prompts_share_the_chunk_of_one_turn(worker):
    jobs = [submitted(worker, prompt, 5)[0] for prompt in ([7], [1, 8], [2, 8, 1])]
    worker._step()
    assert worker.running == jobs[:2]
    worker._step()
    assert worker.running == jobs


def test_a_prompt_that_nobody_waits_for_is_not_read_further(worker):
    long, _ = submitted(worker, LONG, 4)
    worker._step()
    worker.drop([long])
    worker._step()
    assert not worker.batch.joining and not worker.waiting and not worker.running


def test_a_prompt_that_fails_in_its_second_chunk_fails_alone(worker, monkeypatch):
    running, _ = submitted(worker, SHORT, 20)
    worker._step()
    _, updates = submitted(worker, LONG, 4)
    worker._step()
    advance = worker.batch.advance

    def failing(joining):
        raise RuntimeError("no memory")

    monkeypatch.setattr(worker.batch, "advance", failing)
    worker._step()
    assert [update.failure for update in updates] == [FAILED]
    assert worker.running == [running] and worker.state == "failing" and not worker.batch.joining
    monkeypatch.setattr(worker.batch, "advance", advance)
    submitted(worker, [5], 2)
    worker._step()
    assert worker.state != "failing"


def test_a_prompt_that_fails_late_leaves_its_turn_no_longer_than_others(worker, monkeypatch):
    _, updates = submitted(worker, LONG, 4)
    for _ in range(4):
        worker._step()
    second, _ = submitted(worker, LONG, 4)
    advance = worker.batch.advance
    monkeypatch.setattr(worker.batch, "advance", lambda joining: 1 / 0 if joining.row is failing else advance(joining))
    failing = worker.waiting[0].joining.row
    worker._step()
    assert [update.failure for update in updates] == [FAILED]
    assert second.joining.prefill.num_read == CHUNK
