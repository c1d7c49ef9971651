"""Curves have the keys that figures read, and their numbers follow from the replayed cycles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes
from drafterforge.replay.curves import (
    ORDERS,
    actions,
    in_order,
    per_request,
    pool_scaling,
    pool_sizes,
    regret_by_order,
    regret_curves,
    reward_signals,
    weights,
)
from drafterforge.replay.selector_play import RecordedAnswers, accept_rate
from drafterforge.reporting.figures import figures_of
from drafterforge.reporting.reader import CURVES

END = 42


def counterfactual(rates: list[float], seed: int) -> Counterfactual:
    """A counterfactual of drafters whose tokens are accepted at these rates."""
    draw, count = np.random.default_rng(seed), len(rates)
    hits = (draw.random((count, END)) < np.array(rates)[:, None]).astype(float)
    lengths = np.ones((count, END), dtype=np.int64)
    for root in range(END - 1):
        following = hits[:, root + 1 : root + 5]
        lengths[:, root] += (
            np.cumprod(np.pad(following, ((0, 0), (0, 4 - following.shape[1]))), axis=1).sum(1).astype(int)
        )
    lengths = lengths[:, 2:-1]
    nodes = np.repeat(4 + 2 * np.arange(count)[:, None], lengths.shape[1], axis=1)
    outcomes = CycleOutcomes(lengths, np.full_like(lengths, 4), nodes, np.ones_like(lengths))
    return Counterfactual(list("abcd")[:count], [4] * count, 2, END, [outcomes], hits)


@pytest.fixture(scope="module")
def recorded() -> RecordedAnswers:
    """Answers with different best drafters; one answer has a single token."""
    rates = [[0.9, 0.3, 0.3], [0.3, 0.9, 0.3], [0.3, 0.3, 0.9]] * 2
    counterfactuals = [counterfactual(drafter_rates, seed) for seed, drafter_rates in enumerate(rates)]
    counterfactuals.insert(1, replace(counterfactuals[0], end=3))
    return RecordedAnswers.of(counterfactuals, [[1, 2]] * len(counterfactuals))


@pytest.fixture(scope="module")
def plays(recorded) -> dict:
    """Selectors, drafters alone and hindsight."""
    plays = {name: recorded.run(recorded.maker(name)) for name in ("hedgespec", "ucb1", "random")}
    return plays | {"a alone": recorded.alone(0), "best in hindsight": recorded.hindsight()}


def test_regret_adds_up_to_the_table_s_regret(recorded, plays):
    curves = regret_curves(recorded, plays)
    assert curves["best in hindsight"] == [0.0] * 6
    for method, played in plays.items():
        assert curves[method][0] == len(played[0]) - recorded.static[0].min()
        assert curves[method][-1] == pytest.approx(6 * recorded.figures(played)["regret_cycles"])


def test_orders_keep_every_request_and_differ_in_how_often_the_best_drafter_changes():
    best = np.array([2, 0, 0, 2, 1, 0, 0])
    orders = {order: in_order(best, order) for order in ORDERS}
    assert all(sorted(order) == list(range(7)) for order in orders.values())
    assert orders["stationary"] == list(range(7))
    assert best[orders["drifting"]].tolist() == [2, 2, 0, 0, 0, 0, 1]
    assert best[orders["adversarial"]].tolist() == [0, 2, 0, 2, 0, 1, 0]
    assert in_order(np.array([1, 1, 0]), "adversarial") == [0, 2, 1]


def test_regret_by_order_is_that_of_selectors_that_carry_their_state(recorded):
    draws = []
    curves = regret_by_order(recorded, {"hedgespec": {}, "ftl": {}}, draws=3, progress=lambda: draws.append(1))
    assert curves.keys() == set(ORDERS) and len(draws) == 3
    single = regret_by_order(recorded, {"ftl": {}}, draws=1, seed=5)
    requests = np.random.default_rng(5).permutation(6)
    for order in ORDERS:
        part = recorded.select(requests[in_order(recorded.static.argmin(axis=1)[requests], order)].tolist())
        played = part.run(part.maker("ftl", carry=True))
        expected = regret_curves(part, {"ftl": played})["ftl"]
        assert single[order]["ftl"] == {"mean": expected, "low": expected, "high": expected}
        for band in curves[order].values():
            assert len(band["mean"]) == 6 and (np.array(band["low"]) <= band["high"]).all()


def test_weights_are_the_selector_s_probabilities_in_each_cycle(recorded):
    shares = weights(recorded, recorded.maker("hedgespec"), 2)
    cycles = recorded.run(recorded.maker("hedgespec"))[2]
    assert list(shares) == recorded.names and {len(drafter_shares) for drafter_shares in shares.values()} == {
        len(cycles)
    }
    probs = np.array(list(shares.values()))
    np.testing.assert_allclose(probs.sum(axis=0), 1.0, atol=1e-3)
    assert [cycle.drafter for cycle in cycles] == probs.argmax(axis=0).tolist()
    assert probs[2, -1] > 0.9 and probs[:, 0] == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_weights_of_a_carried_selector_continue_from_the_earlier_answers(recorded):
    fresh, carried = (weights(recorded, recorded.maker("normalhedge", carry=carry), 3) for carry in (False, True))
    assert fresh["a"][0] == pytest.approx(1 / 3, abs=1e-3) != carried["a"][0]


def test_actions_are_shares_of_the_trees_of_the_named_drafters(recorded, plays):
    shares = actions(recorded, plays["random"])
    assert sum(share["share"] for share in shares) == pytest.approx(1.0)
    cycles = [cycle for answer in plays["random"] for cycle in answer]
    assert shares[0] == {
        "depth": 4,
        "num_tokens": 4,
        "share": pytest.approx(np.mean([cycle.drafter == 0 for cycle in cycles])),
    }
    assert actions(recorded, plays["random"], ["b"]) == [{"depth": 4, "num_tokens": 6, "share": 1.0}]
    assert actions(recorded, plays["a alone"], ["b"]) == []
    assert accept_rate(plays["a alone"]) == pytest.approx(
        (recorded.tokens.sum() - recorded.static[:, 0].sum()) / (4 * recorded.static[:, 0].sum())
    )


def test_requests_add_up_to_their_row(recorded, plays):
    for method, rows in per_request(recorded, plays).items():
        figures = recorded.figures(plays[method])
        sums = [len(rows), sum(row[0] for row in rows), sum(row[1] for row in rows)]
        assert sums == [figures[key] for key in ("num_prompts", "num_tokens", "num_cycles")]
        assert {row[2] for row in rows} == {None}


def test_signals_are_squared_gaps_over_the_larger_variance():
    """Three drafters of one level and two positions an answer; the second drafter is fastest, the third next."""
    efficiency = np.array([[1, 1, 1, 2], [2, 2, 2, 1], [1, 2, 2, 1]])
    overlap = np.array([[0.5, 0.5, 0.5, 0.5], [0.6, 0.8, 0.6, 0.8], [0.4, 0.5, 0.5, 0.4]])
    answers = []
    for columns in (slice(2), slice(2, 4)):
        lengths = efficiency[:, columns]
        outcomes = CycleOutcomes(lengths, np.ones_like(lengths), 2 * np.ones_like(lengths), np.ones_like(lengths))
        outcomes = replace(outcomes, overlap=overlap[:, columns], coverage=np.zeros(lengths.shape))
        answers.append(Counterfactual(list("abc"), [1] * 3, 1, 4, [outcomes], np.zeros((3, 4))))
    recorded = RecordedAnswers.of(answers, [[1]] * 2)
    assert recorded.static.tolist() == [[2, 1, 2], [2, 1, 1]]
    by_reward = {row["reward"]: row for row in reward_signals(recorded)}
    assert {(row["best"], row["second"]) for row in by_reward.values()} == {("b", "c")}
    # BD: means .5, .7, .45; variances 0, .01, .0025.  BE: means .25, .75, .5; variances .1875, .1875, .25
    assert by_reward["divergence"]["signal"] == pytest.approx(0.25**2 / 0.01)
    assert by_reward["divergence"]["median"] == pytest.approx((0.25**2 + 0.2**2) / 2 / 0.01)
    assert by_reward["efficiency"]["signal"] == pytest.approx(0.25**2 / 0.25)
    assert by_reward["divergence"]["agrees"] and by_reward["efficiency"]["agrees"]
    assert by_reward["coverage"]["signal"] == 0 and not by_reward["coverage"]["agrees"]
    assert reward_signals(recorded.of_drafters([1])) == []


def test_without_recorded_rewards_there_are_no_signals(recorded):
    assert reward_signals(recorded) == []


def test_a_pool_of_one_has_no_regret_and_the_full_pool_equals_its_row(recorded, plays):
    played = []
    rows = pool_scaling(recorded, {"hedgespec": {}, "ucb1": {}}, orders=20, progress=lambda: played.append(1))
    rows = rows["pool size"]
    assert len(played) == 60  # 20 orders of one, two and three drafters
    methods = ["best in hindsight", "best drafter", "hedgespec", "ucb1"]
    assert [(row["at"], row["method"]) for row in rows] == [(size, name) for size in (1, 2, 3) for name in methods]
    by = {(row["method"], row["at"]): row for row in rows}
    for name in methods:
        assert by[name, 1]["regret_cycles"] == 0 and by[name, 1]["mat"] == by["ucb1", 1]["mat"]
    for name in ("hedgespec", "ucb1"):
        figures = recorded.figures(plays[name])
        assert by[name, 3] == pytest.approx(
            {"method": name, "at": 3} | {key: figures[key] for key in ("mat", "regret_cycles")}
        )
    assert by["best in hindsight", 3]["mat"] > by["best in hindsight", 2]["mat"] > by["best in hindsight", 1]["mat"]


def test_pools_double_until_all_drafters_are_in():
    assert [pool_sizes(count) for count in (1, 2, 7, 8)] == [[1], [1, 2], [1, 2, 4, 7], [1, 2, 4, 8]]


def test_in_a_smaller_pool_each_drafter_keeps_its_cost(recorded):
    costs = [1.0 if drafter == 1 else 1e6 for drafter in range(3)]  # only the second drafter is cheap
    rows = pool_scaling(recorded, {"hedgespec": {"costs": costs}, "ftl": {}}, orders=20)["pool size"]
    by = {(row["method"], row["at"]): row["mat"] for row in rows}
    second = recorded.figures(recorded.alone(1))["mat"]
    assert by["hedgespec", 3] == pytest.approx(second, abs=0.15) != by["ftl", 3]


def test_figures_draw_every_curve(recorded, plays):
    curves = {
        "regret_curves": regret_curves(recorded, plays),
        "regret_by_order": regret_by_order(recorded, {"hedgespec": {}, "ucb1": {}}, draws=2),
        "weights": weights(recorded, recorded.maker("hedgespec"), 2),
        "actions": actions(recorded, plays["random"]),
        "per_request": per_request(recorded, plays),
        "scaling": pool_scaling(recorded, {"hedgespec": {}}, orders=2),
    }
    assert curves.keys() <= CURVES.keys()
    keys = {figure.key for figure in figures_of({"rows": [], "curves": curves})}
    orders = {"regret-0", "regret-1", "regret-2"}
    assert keys == {"regret", "weights", "actions", "scaling-0-mat", "scaling-0-regret_cycles"} | orders


def test_fewer_drafters_play_the_same_cycles(recorded):
    some = recorded.of_drafters([2, 0])
    assert some.names == ["c", "a"] and some.alone(0) == [
        [cycle._replace(drafter=0) for cycle in answer] for answer in recorded.alone(2)
    ]
    assert (some.static == recorded.static[:, [2, 0]]).all()


def test_coverages_of_fewer_drafters_are_means_over_their_own_levels():
    recorded = counterfactual([0.5, 0.5], 0)
    outcomes = replace(recorded.outcomes[0], coverage=np.full((2, recorded.num_tokens), 0.25))
    first, second = (replace(recorded, depths=[4, 2], outcomes=[outcomes]).select([drafter]) for drafter in (0, 1))
    assert (first.outcomes[0].coverage == 0.25).all() and (second.outcomes[0].coverage == 0.5).all()
