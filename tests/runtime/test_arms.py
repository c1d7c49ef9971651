"""Which drafter a request uses: measured gains, beliefs, and what a measurement is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drafterforge.runtime.arms import (
    ArmKnowledge,
    Belief,
    RowArms,
    Stakes,
    accept_lengths,
    common_lengths,
    expected_gain,
    measured_gain,
)

STAKES = Stakes(remaining_s=1.0, cycle_s=0.02, neural_share=1.0)
NAMES = ["general", "sql", "math"]


def test_an_accept_length_is_the_run_of_hits_and_one():
    assert accept_lengths([True, True, False, True], 2).tolist() == [3.0, 2.0, 1.0]
    assert accept_lengths([True] * 5, 4).tolist() == [5.0, 5.0]
    assert len(accept_lengths([True], 2)) <= 1


@pytest.mark.parametrize("lead", [-0.3, -0.05, 0.0, 0.1, 0.4])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
def test_the_expected_gain_is_that_of_choosing_after_a_measurement(lead, spread):
    draws = lead + spread * np.random.default_rng(0).standard_normal(400_000)
    assert expected_gain(lead, spread) == pytest.approx(np.maximum(draws, 0.0).mean(), abs=5e-4)


def test_the_measured_gain_is_right_within_its_error():
    rng, errors = np.random.default_rng(1), []
    for _ in range(300):
        hits = [(rng.random(120) < rate).tolist() for rate in (0.7, 0.6)]
        gain, variance = measured_gain(*common_lengths(*hits, 3))
        truth = math.log((1 + 0.7 + 0.7**2 + 0.7**3) / (1 + 0.6 + 0.6**2 + 0.6**3))
        errors.append((gain - truth) / math.sqrt(variance))
    assert abs(np.mean(errors)) < 0.2 and 0.5 < np.std(errors) < 1.5


def test_few_positions_are_not_compared():
    assert common_lengths([True] * 5, [False] * 50, 3) is None
    assert common_lengths([], [], 3) is None


def test_a_belief_follows_exact_measurements_and_ignores_wild_ones():
    exact, wild = Belief(0.0, 0.01), Belief(0.0, 0.01)
    exact.update(0.2, 1e-9)
    wild.update(0.2, 10.0)
    assert exact.mean == pytest.approx(0.2, abs=1e-3) and exact.variance < 1e-8
    assert abs(wild.mean) < 1e-3 and wild.variance == pytest.approx(0.01, rel=1e-2)


def play(knowledge: ArmKnowledge, rates: dict[str, float], advised: str, requests: int, seed: int = 0) -> list[list]:
    """Requests of 200 tokens; rates: hits of each drafter.  Returns the drafters in use, token by token."""
    rng, used = np.random.default_rng(seed), []
    for _ in range(requests):
        row = RowArms(knowledge, NAMES, advised)
        hits = {name: [] for name in NAMES}
        used.append([])
        for token in range(200):
            used[-1].append(row.incumbent)
            if row.is_due(token):
                unread = {name: 50 + token for name in NAMES if name != row.incumbent}
                if name := row.challenger(token, unread, Stakes((200 - token) * 0.01, 0.02, 1.0)):
                    if (lengths := common_lengths(hits[name], hits[row.incumbent], 3)) is not None:
                        row.compare(name, *lengths)
                    if row.lead(name, STAKES.cycle_s) > 0.0:
                        row.incumbent = name
            for name, rate in rates.items():
                hits[name].append(rng.random() < rate)
    return used


def test_a_better_expert_is_taken_up_and_then_begins_by_itself():
    knowledge = ArmKnowledge(0.01)
    used = play(knowledge, {"general": 0.5, "sql": 0.75, "math": 0.4}, "sql", 12)
    assert used[0][0] == "general" and used[0][-1] == "sql"
    assert used[-1][1] == "sql" and sum(map(used[-1].count, ["sql"])) > 190


def test_experts_without_gain_are_tried_less_and_less_often(monkeypatch):
    knowledge, challenges = ArmKnowledge(0.01), []
    challenger = RowArms.challenger

    def count(self: RowArms, *arguments: object) -> str:
        name = challenger(self, *arguments)
        challenges.append(bool(name))
        return name

    monkeypatch.setattr(RowArms, "challenger", count)
    rates = dict.fromkeys(NAMES, 0.6)
    play(knowledge, rates, "sql", 10)
    early = np.mean(challenges)
    challenges.clear()
    play(knowledge, rates, "sql", 60, seed=1)
    challenges.clear()
    play(knowledge, rates, "sql", 60, seed=2)
    assert np.mean(challenges) < 0.5 * early


def test_nobody_is_woken_where_reading_costs_more_than_it_brings():
    knowledge = ArmKnowledge(0.01)
    knowledge.read_s.value = 0.1
    used = play(knowledge, {"general": 0.5, "sql": 0.75, "math": 0.4}, "sql", 3)
    assert {name for request in used for name in request} == {"general"}


def test_a_drafter_that_drafts_too_slowly_is_not_taken():
    knowledge = ArmKnowledge(0.01)
    row = RowArms(knowledge, NAMES, "sql")
    row.beliefs["sql"] = Belief(0.1, 1e-4)
    assert row.lead("sql", STAKES.cycle_s) == pytest.approx(0.1)
    for name, seconds in (("general", 0.001), ("sql", 0.004)):
        for _ in range(500):
            knowledge.add_drafting(name, seconds)
    assert row.lead("sql", STAKES.cycle_s) == pytest.approx(0.1 - 0.003 / 0.02, abs=1e-3)
    assert row.challenger(0, {"sql": 0}, STAKES) == ""


def test_a_drafter_is_not_dropped_because_its_first_cycle_was_slow():
    knowledge = ArmKnowledge(0.01)
    for seconds in (0.8, *[0.002] * 200):
        knowledge.add_drafting("general", seconds)
    assert knowledge.draft_s["general"].value == pytest.approx(0.002, abs=1e-4)
    knowledge.add_drafting("sql", 0.8)
    assert 0.0 < knowledge.extra_s("sql", "general") < 0.002
    for _ in range(200):
        knowledge.add_drafting("sql", 0.002)
    assert knowledge.extra_s("sql", "general") == pytest.approx(0.0, abs=1e-4)


def test_a_text_that_changes_its_kind_is_noticed():
    knowledge = ArmKnowledge(0.001)
    row = RowArms(knowledge, NAMES, "sql")
    lengths = np.array([2.0, 1.0] * 60), np.array([2.0, 2.0] * 60)
    row.compare("sql", *lengths)
    variance = row.beliefs["sql"].variance
    row.challenger(400, {}, STAKES)
    assert row.beliefs["sql"].variance > 3 * variance
