"""`eval` over a pool: its report, lossy decoding, and the seed and the router of the replay."""

from __future__ import annotations

import json

import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.assembly.pools import build_pool
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.evaluation import timing
from drafterforge.evaluation.timing import decode
from drafterforge.targets.load import load_target

pytestmark = pytest.mark.slow  # many short tests


def test_eval_reports_drafters_selectors_and_live_runs(pool):
    done = pool("eval", "suite=mixed", "experiment=smoke")
    assert done.code == 0, done.err
    folder = pool.artifact("reports", "mixed")
    open_artifact(folder, "reports")
    report = json.loads((folder / "report.json").read_text())
    names = ["general", "math", "sql", "retrieval"]
    live = [row["method"] for row in report["rows"] if row["source"] == "live"]
    assert live == ["autoregressive", "general alone", "hedgespec over the pool"]
    replays = {row["method"]: row for row in report["rows"] if row["source"] == "replay"}
    assert {*(f"{name} alone" for name in names), "best in hindsight", "hedgespec", "ucbspec"} <= replays.keys()
    best = replays["best in hindsight"]
    assert best["of_hindsight"] == 1.0 and all(row["num_tokens"] == best["num_tokens"] for row in replays.values())
    assert all(row["num_cycles"] >= best["num_cycles"] for name, row in replays.items() if name.endswith("alone"))
    assert all(row["other_text"] == [] for row in report["curves"]["live"])
    for row in report["rows"][:3]:
        assert row["mismatches"] == 0 and row["time_s"]["total"] > 0
    assert report["rows"][2]["time_s"]["select"] > 0
    printed = " ".join(done.out.split())  # legends are broken into lines
    assert "ucbspec" in printed and "report.json" in printed and "p: one-sided Wilcoxon" in printed
    assert {row["scheduler"] for row in report["rows"][1:]} == {"static"}
    page, written = ((folder / name).read_text() for name in ("report.html", "report.md"))
    assert "Lossless: 0 mismatches" in page and "Drafters by domain" in page
    assert "Lossless: 0 mismatches" in written and "| hedgespec |" in written
    again = pool("eval", "compare=mixed,mixed", "target.name=")  # the name of the model's folder
    assert again.code == 0 and "no significant regression" in again.out


def test_a_lossy_decoder_is_reported_and_exits_with_1(pool, monkeypatch):
    def lossy(method, *rest):
        measurement = decode(method, *rest)
        if method.name == "general alone":
            tokens = measurement.answers[0].tokens
            tokens[-1] = (tokens[-1] + 1) % 3
        return measurement

    monkeypatch.setattr(timing, "decode", lossy)
    done = pool("eval", "suite=mixed", "experiment=smoke", "suite.selectors=[hedgespec]", "suite.check_live=false")
    folder = pool.artifact("reports", "mixed")
    assert done.code == 1 and "not lossless: general alone: 1 of" in done.err and "report.html" in done.err
    assert "NOT LOSSLESS: 1 mismatch" in (folder / "report.html").read_text()
    open_artifact(folder, "reports")


def test_the_seed_of_eval_reaches_selectors_that_draw(pool):
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    target.name = "tiny"
    cfg = PoolConfig(drafters=["sql", "retrieval"], selector="random")
    pool_drafter, shape = build_pool(cfg, RuntimeConfig(), RunsFolder(pool.runs, target), seed=7)
    assert pool_drafter.selector(shape).seed == 7
    cfg = PoolConfig(drafters=["sql", "retrieval"], selector="random", options={"seed": 3})
    assert build_pool(cfg, RuntimeConfig(), RunsFolder(pool.runs, target), seed=7)[0].selector(shape).seed == 3


def test_eval_with_a_router_gives_its_advice_to_replayed_selectors(pool):
    options = (
        "policy=router",
        "router.num_train=6",
        "router.num_val=2",
        "router.num_test=2",
        "traces.domains=[sql,math]",
    )
    assert pool("train-policy", *options).code == 0
    expected = ("pool.router=router", "suite.domains=[sql,math]", "suite.selectors=[hedgespec,router,random]")
    done = pool("eval", "suite=mixed", "experiment=smoke", *expected, "pool.drafters=[sql,math]", "seed=5")
    assert done.code == 0, done.err
    report = json.loads((pool.artifact("reports", "mixed") / "report.json").read_text())
    rows = {row["method"]: row for row in report["rows"] if row["source"] == "replay"}
    assert rows["hedgespec"]["options"] == {"prior": 4} and "router" in rows
    assert all(row["requests_with_other_cycles"] == 0 for row in report["curves"]["live"])


def test_an_empty_pool_says_how_to_fill_it(bench):
    assert "the pool is empty" in (line := bench("eval", "suite=mixed").one_line())
    assert "drafterforge train-drafter domain=sql" in line
