"""What a comparison says of a drafter that was learned from traffic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drafterforge.data.answers import Answer
from drafterforge.training import traffic_gate
from drafterforge.training.traffic_gate import judge_drafter


def test_the_gain_is_over_the_best_rival_the_best_unlearned_one_and_the_first(monkeypatch):
    lengths = {"general": 1.0, "sql": 2.0, "old": 2.1, "new": 2.2}
    names = [*lengths]
    recorded = SimpleNamespace(num_tokens=42, cycles=lambda number: 42 / lengths[names[number]])
    recorder = SimpleNamespace(record=lambda answer: {traffic_gate.STATIC: recorded})
    monkeypatch.setattr(traffic_gate, "default_drafters", lambda runs: ["general+store", "sql+store"])
    monkeypatch.setattr(traffic_gate, "open_pool", lambda folder, target, names: names)
    monkeypatch.setattr(traffic_gate, "Pool", lambda drafters, selector: SimpleNamespace(names=drafters))
    monkeypatch.setattr(traffic_gate, "default_shape", lambda *_: None)
    monkeypatch.setattr(traffic_gate, "AnswerRecorder", lambda *_: recorder)
    runs = SimpleNamespace(folder=None, target=SimpleNamespace(device=None, dtype=None))
    rows = [Answer(str(number), "sql", "", "test", [1, 2, 3, 4], [0, 0, 1, 1], 2, 2, True) for number in range(4)]
    verdict = judge_drafter(runs, "new", rows, "old", {"old"})
    assert verdict.gain.rival == "old" and verdict.gain.mean == pytest.approx(2.2 / 2.1 - 1)
    assert verdict.base_gain == pytest.approx(0.1)
    assert (verdict.first, verdict.first_gain) == ("general", pytest.approx(1.2))
    assert not verdict.incumbent_leaves
