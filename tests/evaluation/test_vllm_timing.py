"""Servers are timed in turns, on the same requests; rows, mismatches and counters follow from their answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge.config.evaluation import SuiteConfig
from drafterforge.errors import ConfigError
from drafterforge.evaluation import vllm_server, vllm_timing
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import timed_rows
from drafterforge.evaluation.vllm_timing import ServerGroup, VllmTiming, request_groups, served_mismatches
from drafterforge.interop.vllm.metrics import INTERVAL_S
from drafterforge.reporting.tables import tables_of
from tests.evaluation.vllm_builders import NAMES, POOL, REQUESTS, fake_methods

LIMIT = 13
SETTLE_S = vllm_timing.SETTLE_S


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_server, "POLL_S", 0.02)
    monkeypatch.setattr(vllm_timing, "SETTLE_S", 0.0)


def suite(**changes) -> SuiteConfig:
    options = {"temperatures": [0.0], "batch_sizes": [1, 4], "replay": False, "check_live": False}
    return SuiteConfig(name="vllm", max_new_tokens=LIMIT, **options | changes)


def timed(folder: Path, together: bool = True, rounds: int = 2, **options):
    """Measurements of three servers on nine requests, one and four at a time, mismatches, and the timing."""
    methods = fake_methods(folder, **options)
    groups = request_groups(suite(), 0, range(6), len(REQUESTS))
    with ServerGroup(methods, together, 30.0) as servers:
        timing = VllmTiming(servers, REQUESTS, ResumeCache(folder))
        measurements = timing.measure(groups, rounds)
        return measurements, served_mismatches(servers, REQUESTS, measurements), timing


def calls_of(path: Path) -> list[list]:
    """Kind of the server and prompt of each timed request."""
    calls = map(json.loads, path.read_text().splitlines())
    return [[kind, tuple(prompt)] for kind, limit, prompt in calls if limit == LIMIT]


def by_section(measurements: list[Measurement]) -> dict[tuple, list[tuple[str, int]]]:
    """Method and requests of each measurement, by number of requests at a time."""
    sections: dict[tuple, list] = {}
    for entry in measurements:
        requests = tuple(info.request for info in entry.requests)
        sections.setdefault((entry.axis, entry.at, entry.group), []).append((entry.method, requests))
    return sections


def test_groups_are_full_and_have_an_axis_for_several_requests_at_a_time():
    groups = request_groups(suite(temperatures=[0.0, 0.8]), 0, [0, 2, 4], 6)
    places = {(g.run.axis, g.run.at, g.run.temperature, g.run.batch_size) for g in groups}
    assert places == {
        ("", 0.0, 0.0, 1), ("batch size", 4, 0.0, 4), ("temperature", 0.8, 0.8, 1), ("batch size", 4, 0.8, 4),
    }  # fmt: skip
    assert [g.indices for g in groups if g.run.batch_size == 4] == [(0, 2, 4, 1)] * 2


def test_more_requests_at_a_time_than_there_are_is_skipped(capsys):
    groups = request_groups(suite(batch_sizes=[1, 8]), 0, range(3), 3)
    assert len(groups) == 3 and "8 requests at a time skipped" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"nothing can be timed; type suite\.batch_sizes=\[1\]"):
        request_groups(suite(batch_sizes=[8]), 0, range(3), 3)


def test_every_method_answers_every_request_and_the_order_rotates(tmp_path):
    calls = tmp_path / "calls"
    measurements, mismatches, timing = timed(tmp_path, calls=str(calls))
    assert mismatches == []
    for (axis, at, group), entries in by_section(measurements).items():
        expected = (group,) if not axis else tuple(range(4))
        assert entries == [(name, expected) for name in NAMES] and at == (4 if axis else 0)
    kinds = [kind for kind, _ in calls_of(calls)][:18]
    order = ["plain", "drafter", "pool"]
    assert kinds == [order[(turn + number) % 3] for turn in range(6) for number in range(3)]
    assert all(entry.other_cores is not None and entry.seconds > 0 for entry in measurements)
    sql = timing.counters[POOL]["sql"]
    cycles = sum(len(entry.cycles) for entry in measurements if entry.method == POOL)
    assert sql == {"cycles": cycles, "accepted_tokens": 2.0 * cycles}  # those of the warm-up are not counted
    (table,) = tables_of({"rows": [], "curves": {"drafters": timing.counters}})
    assert [POOL, "sql", "100.0%", f"{cycles}", "2.00"] in table.cells


def test_rows_have_our_keys_and_figures(tmp_path):
    measurements, _, _ = timed(tmp_path)
    rows = timed_rows(measurements, [], {})
    alone = {(row["method"], row["domain"]): row for row in rows if not row.get("axis")}
    assert {domain for _, domain in alone} == {"all", "sql", "math"}
    plain, pool = alone["autoregressive", "all"], alone[POOL, "all"]
    assert plain["mat"] == 1.0 and plain["num_cycles"] == plain["num_tokens"] - 6 and plain["speedup"] == 1.0
    assert pool["mat"] > alone["general alone", "all"]["mat"] > 1.0 and pool["accept_rate"] > 0
    assert pool["num_tokens"] == plain["num_tokens"] == 3 * LIMIT + 3 * 10  # those of even prompts end early
    assert len(pool["speedup_ci95"]) == 2 and pool["mismatches"] == 0 and pool["peak_mb"] is None
    assert pool["selector"] == "hedgespec" and pool["drafters"] == ["general", "sql"] and pool["dtype"] == "float32"
    batches = [row for row in rows if row.get("axis")]
    assert [(row["axis"], row["at"], row["batch_size"], row["num_prompts"]) for row in batches] == [
        ("batch size", 4, 4, 4)
    ] * 3


def test_a_different_answer_is_a_mismatch_with_its_margin(tmp_path):
    measurements, mismatches, _ = timed(tmp_path, differs="pool")
    assert len(mismatches) == 6 + 4 and {mismatch["method"] for mismatch in mismatches} == {POOL}
    first = mismatches[0]
    length = len(measurements[0].answers[0].tokens)
    assert (first["prompt"], first["position"], first["rerun"]) == (0, length - 1, False)
    assert first["margin"] == pytest.approx(0.25)
    rows = timed_rows(measurements, mismatches, {})
    assert {row["mismatches"] for row in rows if row["method"] == POOL} == {6, 3, 4}
    assert {row["mismatches"] for row in rows if row["method"] != POOL} == {0}


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_server_at_a_time_answers_shares_in_rotating_order(tmp_path, rounds):
    calls = tmp_path / "calls"
    measurements, _, timing = timed(tmp_path, together=False, rounds=rounds, calls=str(calls))
    kinds = [kind for kind, _ in calls_of(calls)]
    blocks = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    order = ["plain", "drafter", "pool", "drafter", "pool", "plain"]
    assert blocks == order[: 3 * rounds]
    sections = by_section(measurements)
    assert len(sections) == 7 and all([name for name, _ in entries] == [*NAMES] for entries in sections.values())
    assert timing.servers.process_groups == [] and timing.counters[POOL]["sql"]["cycles"] > 0


def test_an_interrupted_timing_resumes(tmp_path, monkeypatch):
    calls, real, seen = tmp_path / "calls", VllmTiming._measure_group, []

    def interrupted(self, method, group):
        seen.append(method.name)
        if len(seen) == 8:  # in the third round
            raise KeyboardInterrupt
        return real(self, method, group)

    monkeypatch.setattr(VllmTiming, "_measure_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        timed(tmp_path, calls=str(calls))
    num_before = len(calls_of(calls))
    measurements, mismatches, timing = timed(tmp_path, calls=str(calls))
    assert len(calls_of(calls)) - num_before == 3 * 4 + 3 * 4  # two of six single requests were complete
    assert len(by_section(measurements)) == 7 and mismatches == []
    cycles = sum(len(entry.cycles) for entry in measurements if entry.method == POOL)
    assert timing.counters[POOL]["sql"]["cycles"] == cycles  # of both sessions
    monkeypatch.setattr(VllmTiming, "_measure_round", lambda *_: pytest.fail("measured again"))
    _, _, cached = timed(tmp_path)  # no server starts
    assert (cached.version, cached.counters) == (timing.version, timing.counters) == ("0.32.0", timing.counters)


def test_counters_are_read_until_the_pool_has_written_them(tmp_path):
    late = iter([{"sql": {"cycles": count}} for count in (3.0, 3.0, 5.0, 9.0, 9.0, 11.0)])
    engine = SimpleNamespace(counters=lambda: next(late), server=SimpleNamespace(is_warm=False))
    pool = SimpleNamespace(name=POOL, drafters=["general", "sql"], engine=engine)
    timing = VllmTiming(SimpleNamespace(methods=[pool]), REQUESTS, ResumeCache(tmp_path))
    timing._warm_up(pool)
    assert timing._count(pool) == {"sql": {"cycles": 6.0}}
    assert SETTLE_S > INTERVAL_S
