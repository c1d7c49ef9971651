"""Features captured while answering equal those of a teacher-forced pass wherever training reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drafterforge.data.answers import Answer
from drafterforge.data.spool import CaptureSpool
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from tests.models import tiny_target

PROMPTS = [[3, 14, 15], [9, 26, 5, 35, 8, 9], [7], [21, 22, 23, 24]]


def answer_prompts(target, spool: CaptureSpool, temperature: float) -> list[Answer]:
    """Answers to the prompts; the spool stores their captures."""
    answers = BatchAnswerer(target, 3, temperature, keep=spool.add)(PROMPTS, 9, seed=5)
    rows = []
    for index, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        mask = [0] * len(prompt) + [1] * len(answer)
        rows.append(Answer(str(index), "d", "t", "train", prompt + answer, mask, len(prompt), len(answer), True))
    return rows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_spooled_captures_equal_a_teacher_forced_pass(tmp_path: Path, temperature: float):
    target = tiny_target()
    spool = CaptureSpool(tmp_path)
    rows = answer_prompts(target, spool, temperature)
    spool.flush()

    def never(sequences):
        raise AssertionError(f"not in the spool: {sequences}")

    captures = CaptureSpool(tmp_path).capture(rows, never)
    for row, capture, expected in zip(
        rows, captures, FeatureCapture(target)([row.input_ids for row in rows]), strict=True
    ):
        assert capture.features.shape == expected.features.shape
        torch.testing.assert_close(capture.features[:-1].float(), expected.features[:-1], rtol=0.02, atol=0.02)
        torch.testing.assert_close(capture.states[:-1].float(), expected.states[:-1], rtol=0.02, atol=0.02)
        teaching = slice(row.prompt_tokens - 1, len(row.input_ids) - 1)
        assert capture.argmax[teaching].tolist() == expected.argmax[teaching].tolist()


def test_sequences_outside_the_spool_are_captured_by_the_target(tmp_path: Path):
    target = tiny_target()
    spool = CaptureSpool(tmp_path)
    rows = answer_prompts(target, spool, 0.0)
    missing_answer = Answer("x", "d", "t", "train", [4, 5, 6, 7], [0, 0, 1, 1], 2, 2, True)
    two_turns = Answer("y", "d", "t", "train", rows[0].input_ids, [0, 1] * 6, rows[0].prompt_tokens, 2, True)
    captured = []

    def capture(sequences):
        captured.extend(sequences)
        return FeatureCapture(target)(sequences)

    assert len(spool.capture([rows[1], missing_answer, rows[2], two_turns], capture)) == 4
    assert captured == [missing_answer.input_ids, two_turns.input_ids]


def test_a_file_that_a_kill_truncated_is_ignored(tmp_path: Path):
    spool = CaptureSpool(tmp_path)
    answer_prompts(tiny_target(), spool, 0.0)
    spool.flush()
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    assert CaptureSpool(tmp_path).paths == {}
