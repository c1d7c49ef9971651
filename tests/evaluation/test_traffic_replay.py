"""Figures of a replayed log of requests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import ContextIndex, Retrieval
from drafterforge.evaluation import traffic_replay
from drafterforge.evaluation.lossless import Mismatch
from drafterforge.evaluation.traffic_replay import (
    ReplayedTraffic,
    draft_alone,
    gains_over_plain,
    moving_mat,
    replay_curves,
    replay_rows,
)
from drafterforge.runtime.rows import Cycle, Generation


def answers(*lengths: int, seconds: float = 1.0) -> list[Generation]:
    """Answers of two cycles each, which emit half of the tokens."""
    return [
        Generation([1], [0] * length, cycles=[Cycle(1, 2, length // 2)] * 2, time_s={"total": seconds})
        for length in lengths
    ]


def test_a_moving_mean_is_tokens_over_cycles_of_the_last_requests(monkeypatch):
    monkeypatch.setattr(traffic_replay, "WINDOW", 2)
    seeds = [answers(2, 4, 8), answers(6, 6, 6)]
    assert moving_mat(seeds) == [[2, 2.25, 1.5, 3.0], [3, 3.0, 3.0, 3.0]]


def test_gains_are_ratios_of_tokens_per_second_of_each_seed():
    replays = [
        ReplayedTraffic(
            seed,
            {
                "autoregressive": answers(4, 4, 4, seconds=3.0),
                "auto": answers(4, 4, 4),
                "auto, learned experts": answers(4, 4, 4, seconds=seconds),
            },
        )
        for seed, seconds in ((0, 0.5), (1, 2.0))
    ]
    assert gains_over_plain(replays, range(1, 3)) == {"learned experts": pytest.approx([2.0, 0.5])}


def test_a_request_counts_once_however_many_seeds_replay_it():
    def replayed(seed: int, differs: bool) -> ReplayedTraffic:
        methods = {"autoregressive": answers(4, 4, 4, 4, 4, 4, 4, seconds=2.0), "auto": answers(4, 6, 8, 4, 6, 8, 4)}
        wrong = Mismatch("auto", 0, 2, 0.5, rerun=False), Mismatch("auto", 1, 2, 1e-6, rerun=True)
        return ReplayedTraffic(seed, methods, [*wrong[not differs :]])

    (_, alone), (plain, twice) = (
        replay_rows(replays, {"all requests": range(7)}, "float32", "fast")
        for replays in ([replayed(0, True)], [replayed(0, True), replayed(1, True)])
    )
    assert twice["num_prompts"] == plain["num_prompts"] == 7 and twice["num_tokens"] == 2 * 40
    for key in ("tokens_per_s", "speedup", "speedup_ci95", "wilcoxon_p", "mat", "mismatches"):
        assert twice[key] == alone[key], key
    curves = replay_curves([replayed(0, False), replayed(1, False)], 7)
    assert curves["per_request"]["auto"][0] == [8, 4, 2.0] and len(curves["per_request"]["auto"]) == 7
    assert twice["mismatches"] == 1 and plain["mismatches"] == 0
    assert [(entry["seed"], entry["prompt"], entry["rerun"]) for entry in curves["mismatches"]] == [
        (0, 1, True), (1, 1, True),
    ]  # fmt: skip


def test_plain_decoding_has_its_own_numerics():
    methods = {"autoregressive": answers(4, seconds=2.0), "auto": answers(4)}
    rows = replay_rows([ReplayedTraffic(0, methods)], {"all requests": range(1)}, "float32", "invariant")
    assert [row["numerics"] for row in rows] == ["fast", "invariant"]


def test_without_retrieval_nothing_is_looked_up():
    hybrids = {name: HybridDrafter(neural=None, retrieval=Retrieval()) for name in ("general", "sql")}
    pool = SimpleNamespace(drafters=hybrids, replace=hybrids.__setitem__)

    def matches() -> list[int]:
        counts = []
        for hybrid in hybrids.values():
            index = ContextIndex(hybrid.retrieval.spec)
            index.append([1, 2, 3] * 10)
            counts.append(len(index.occurrences()))
        return counts

    assert min(matches()) > 0
    draft_alone(pool)
    assert matches() == [0, 0]
    assert hybrids["general"].retrieval is hybrids["sql"].retrieval  # so they share an index
