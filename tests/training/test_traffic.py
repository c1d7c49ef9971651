"""A learned drafter joins only where it is better for certain, and the newest requests judge it."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from drafterforge.artifacts.learned import JOINED, LEFT, LearnedRecord, LearnedVersion, update_record
from drafterforge.data.answers import Answer
from drafterforge.training.traffic import Pace, count_newer, name_of, split_newest
from drafterforge.training.traffic_gate import paired_gain


def answer(number: int, prompt: int) -> Answer:
    return Answer(f"a{number}", "", "", "train", [prompt, 7, number], [0, 0, 1], 2, 1, True)


def version(number: int, kind: str = "sql", state: str = JOINED) -> LearnedVersion:
    return LearnedVersion(name_of(kind, number), kind, state, "general", 0.1, 0.05, 0.15, 9, 9, "2026-11-25")


def test_a_gain_is_relative_to_the_best_other_drafter_and_paired_by_request():
    rng = np.random.default_rng(0)
    lengths = rng.uniform(1.0, 4.0, 24)  # requests differ far more than the drafters
    rivals = {"weak": lengths * 0.9, "strong": lengths}
    gain = paired_gain(lengths * 1.1 * np.exp(rng.normal(0.0, 0.01, 24)), rivals)
    assert gain.rival == "strong" and gain.low > 0.08 and gain.high < 0.12
    assert gain.mean == pytest.approx(0.1, abs=0.01)
    assert paired_gain(lengths * 0.95, rivals).high < 0.0


def test_the_interval_holds_its_confidence():
    rng, count = np.random.default_rng(1), 1000
    false = sum(paired_gain(np.exp(rng.normal(0.0, 0.2, 24)), {"general": np.ones(24)}).low > 0.0 for _ in range(count))
    assert 0.012 < false / count < 0.042  # one side of 5 %


def test_the_newest_requests_judge_and_no_prompt_is_in_two_splits():
    rows = [answer(number, number % 30) for number in range(40)]
    splits = split_newest(rows, 8, 4)
    assert [row.id for row in splits["test"]] == [f"a{number}" for number in range(39, 31, -1)]
    assert [row.id for row in splits["val"]] == [f"a{number}" for number in range(31, 27, -1)]
    prompts = [row.input_ids[0] for part in splits.values() for row in part]
    assert len(prompts) == len(set(prompts)) == 30


def test_newer_answers_are_counted_from_the_last_round_on():
    rows = [answer(number, number) for number in range(10)]
    assert [count_newer(rows, newest) for newest in ("", "a3", "a9", "gone")] == [10, 6, 0, 10]


def test_the_record_names_the_newest_drafter_of_each_kind(tmp_path):
    versions = [version(1), version(2, state=LEFT), version(3, "traffic-1")]
    update_record(tmp_path, lambda record: replace(record, versions=versions))
    assert LearnedRecord.read(tmp_path).drafters == {"sql": "sql-traffic-v1", "traffic-1": "traffic-1-v3"}
    update_record(tmp_path, lambda record: record.with_state("sql-traffic-v1", LEFT))
    assert LearnedRecord.read(tmp_path).drafters == {"traffic-1": "traffic-1-v3"}


def test_training_works_for_its_share_of_the_time():
    pace, began, worked = Pace(0.25), time.monotonic(), 0.0
    for _ in range(5):
        start = time.monotonic()
        time.sleep(0.01)
        worked += time.monotonic() - start
        pace.on_train_batch_end(None, None)
    assert worked / (time.monotonic() - began) < 0.35
