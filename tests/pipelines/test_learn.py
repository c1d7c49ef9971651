"""What `serve learn=on` records trains a drafter, and one command deletes it all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafterforge.config.learn import LearnConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import SPLITS, AnswerSet
from drafterforge.data.stream import used_bytes
from drafterforge.runtime.engine import Engine
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import load_target
from tests.server.conftest import eventually, serving

pytestmark = pytest.mark.slow  # whole programs

NUM_REQUESTS = 20


def record(bench) -> Path:
    """Serve the tiny target, and record its answers where `serve` does by default."""
    target = load_target(TargetConfig(name="tiny", source="hf", model=str(bench.target), dtype="float32"))
    learn = LearnConfig(record=True)
    with serving(Engine(target), learn=learn, runs_dir=str(bench.runs)) as up:
        for number in range(NUM_REQUESTS):
            prompt = list(range(3 + number, 9 + 2 * number))
            assert up.ask(prompt=prompt, max_tokens=12).status_code == 200
        eventually(lambda: up.figure("recorded_answers_total") == NUM_REQUESTS)
    return learn.traffic_dir(str(bench.runs), "tiny")


def test_a_drafter_learns_from_served_traffic_without_another_pass_of_the_target(bench, monkeypatch):
    ring, captured, real = record(bench), [], FeatureCapture.__call__

    def capture(self: FeatureCapture, batch: list[list[int]]):
        captured.extend(batch)
        return real(self, batch)

    monkeypatch.setattr(FeatureCapture, "__call__", capture)
    typed = (f"path={ring}", "experiment=smoke", "drafter=eagle3", "data.num_train=40", "data.num_val=40")
    done = bench("train-drafter", "data=traffic", *typed, "data.num_test=40")
    assert done.code == 0, done.err
    answers = AnswerSet.open(bench.artifact("answers", "traffic"))
    assert sum(len(answers.rows(split)) for split in SPLITS) == NUM_REQUESTS
    assert len(captured) == 2  # to compare the recorded features with the target's own
    report = json.loads((bench.artifact("reports", "traffic") / "report.json").read_text())
    assert all(row["mismatches"] == 0 for row in report["rows"])


def test_the_status_shows_what_is_recorded_and_delete_deletes_it(bench):
    ring = record(bench)
    status = bench("learn", "status")
    assert status.code == 0 and f"{NUM_REQUESTS} now" in status.out and str(ring) in status.out
    done = bench("learn", "delete")
    assert done.code == 0 and used_bytes(ring) == 0
    assert "0 now" in bench("learn", "status").out


def test_mistakes_are_one_line(bench):
    assert "holds no recorded traffic; start a server with `drafterforge serve" in bench("learn", "status").one_line()
    assert "learn must be one of status, delete, got 'forget'" in bench("learn", "forget").one_line()
    assert "learn.sample must lie in [0, 1]" in bench("serve", "learn=on", "learn.sample=2").one_line()
