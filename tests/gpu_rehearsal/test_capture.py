"""Feature capture on `meta`: in a teacher-forced pass, while answering, and for routers."""

from __future__ import annotations

import pytest
import torch

from drafterforge.data.spool import CaptureSpool
from drafterforge.targets import capture
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from drafterforge.training.router_data import pooled_by_target
from tests.gpu_rehearsal.test_training import Step, rehearsed
from tests.gpu_rehearsal.tools import Log
from tests.models import tiny_target

LENGTHS = 5, 1, 17, 9, 3


def prompts() -> list[list[int]]:
    torch.manual_seed(7)
    return [torch.randint(3, 61, (length,)).tolist() for length in LENGTHS]


@pytest.mark.parametrize(("family", "forward"), [("llama", "lean"), ("qwen3", "lean"), ("llama", "modules")])
def test_a_teacher_forced_pass_never_reads_the_device(family, forward):
    def build(device: str) -> Step:
        target = tiny_target(family, forward, device=device)

        def step(log: Log) -> None:
            log.mark("captures", FeatureCapture(target, tokens_per_pass=24)(prompts()))

        return step

    log = rehearsed(build, [])
    assert log.reads == {}
    assert log.copies["targets.capture.FeatureCapture._capture: copy"] == 3  # the tokens of each pass


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answering_reads_the_device_once_a_pass(temperature, tmp_path):
    passes = []

    def build(device: str) -> Step:
        target = tiny_target(device=device, eos_token_id=None, num_hidden_layers=4)

        def step(log: Log) -> None:
            spool = CaptureSpool(tmp_path / device)

            def keep(ids: list[int], count: int, captured: capture.Capture) -> None:
                log.mark("captures", captured)
                spool.add(ids, count, captured)

            answerer = BatchAnswerer(target, 3, temperature, lambda tokens, _: passes.append(tokens), keep)
            answers = answerer(prompts(), 4, seed=0)
            assert len(spool.pending) == 3 * len(answers)
            log.mark("answers", [torch.tensor(answer) for answer in answers])

        return step

    log = rehearsed(build, [])
    assert log.reads == {
        "targets.answer.BatchAnswerer._append_tokens: copy": len(passes) // 2,
        "data.spool.CaptureSpool.add: copy": 2 * len(LENGTHS),  # features and states of an answer, for the disk
    }


def test_features_of_a_router_are_read_once_a_pass():
    def build(device: str) -> Step:
        target = tiny_target(device=device)
        return lambda log: log.mark("pooled", pooled_by_target(target, prompts()))

    log = rehearsed(build, [])
    assert log.reads == {"training.router_data.pooled_by_target: copy": 1}
