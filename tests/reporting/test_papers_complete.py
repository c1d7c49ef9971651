"""The steps of the papers' tables, once measured, leave no cell empty that could be filled."""

from __future__ import annotations

import shlex

import pytest

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.names import parse_tree
from drafterforge.data.questions import SPEC_BENCH
from drafterforge.evaluation.selector_replay import SCALED
from drafterforge.prompts.rephrase import kinds
from drafterforge.reporting.papers.selector_steps import DEFAULT_EXPERTS
from drafterforge.reporting.papers.steps import STEPS
from drafterforge.selectors import names as selector_names
from drafterforge.selectors.bandit import REWARDS
from tests.reporting.builders import full_report, live_row, replay_row
from tests.reporting.paper_builders import tables

POOL = ["general", *DEFAULT_EXPERTS, "store", "retrieval"]
BENCHMARKS = ("Spec-Bench", "Alpaca", "CodeEditor", "DebugBench")  # of BanditSpec
METHODS = (
    "autoregressive",
    "retrieval (as PLD)",
    "datastore (as suffix tree)",
    "EAGLE-3 (generalist)",
    "EXP3Spec",
    "UCBSpec",
)
NEVER = {("banditspec", "REST", column) for column in BENCHMARKS}  # form, method, column
NEVER |= {("banditspec", method, column) for method in (*METHODS, "best drafter alone") for column in BENCHMARKS[2:]}
NEVER |= {("hedgespec", "the domain's expert", domain) for domain in {*POOL_DOMAINS} - {*DEFAULT_EXPERTS}}
PARTS = ("size policy alone", "depth policy alone", "both, each trained alone")
NEVER |= {
    ("over_best", part, f"T = {temperature}, {source}")
    for part in PARTS
    for temperature in ("0.5", "1")
    for source in ("replayed", "live")
}


def entries(text: str) -> list[str]:
    return [entry for entry in text.strip("[]").split(",") if entry]


def columns_of(keys: dict[str, str], limit: int) -> list[str]:
    """Domains of the rows of a suite."""
    if keys["suite"] != "papers":
        return ["mixed"] if keys["suite"] in ("ood", "scaling") else [*POOL_DOMAINS, "all"]
    if "suite.benchmarks" not in keys:
        return [f"mmlu_{number}" for number in range(57)]
    groups = [f"spec_bench/{group}" for group in sorted(SPEC_BENCH)[:limit]]
    names = entries(keys["suite.benchmarks"])
    return [column for name in names for column in (groups if name == "spec_bench" else [name])] + ["all"]


def timed_row(method: str, column: str, pool: list[str]) -> dict:
    name, _, schedule = method.partition("/")
    name = {"generalist": "general", "pool": "hedgespec"}.get(name, name)
    if name in selector_names():
        return live_row(f"{name} over the pool", 1.8, None, selector=name, drafters=pool, domain=column)
    title = "the domain's expert" if name == "expert" else f"{name} alone"
    scheduler = schedule.replace("TREE", "21/3/10") or "static"
    assert schedule or name in ("expert", *POOL, *pool)
    with_schedule = f"{title} with {schedule}" if schedule and not parse_tree(schedule) else title
    return live_row(with_schedule, 1.5, None, drafters=[name], domain=column, scheduler=scheduler, accept_rate=0.3)


def eval_report(keys: dict[str, str]) -> dict:
    pool = entries(keys.get("pool.drafters", "")) or POOL
    temperature = float(keys.get("suite.temperature", 0))
    rows, curves = [], {}
    limit = int(keys.get("limit", keys.get("suite.num_prompts", 99)))
    columns = columns_of(keys, limit)
    if "suite.methods" in keys:
        methods = entries(keys["suite.methods"])
        plain = [live_row("autoregressive", 1.0, None, selector="none", scheduler="none", drafters=[], mat=1.0)]
        rows = [row | {"domain": column} for column in columns for row in plain]
        rows += [timed_row(method, column, pool) for column in columns for method in methods]
        for size in map(int, entries(keys.get("suite.pool_sizes", ""))):
            rows.append(timed_row("pool", "mixed", pool[:size]) | {"axis": "pool size", "at": size})
    else:
        selectors = entries(keys["suite.selectors"])
        alone = [("static", f"{name} alone") for name in pool]
        advised = [("router", "router")] if "pool.router" in keys else []
        replays = [*alone, ("oracle", "best in hindsight"), *advised, *((name, name) for name in selectors)]
        rows = [
            replay_row(method, selector, 2.0, drafters=pool, domain=column, options={}, accept_rate=0.3)
            for column in columns
            for selector, method in replays
        ]
        scaled = [name for name in selectors if name in SCALED]
        sizes = range(1, len(pool) + 1)
        curves["scaling"] = {"pool size": [{"method": name, "at": at, "mat": 2.0} for name in scaled for at in sizes]}
        curves["mat_by_domain"] = {column: dict.fromkeys(pool, 2.0) for column in columns if column != "all"}
        if any(name.startswith("metasd") for name in selectors):
            signals = [(column, reward) for column in columns for reward in REWARDS]
            curves["signal_strength"] = [{"domain": d, "reward": reward, "signal": 0.1} for d, reward in signals]
    return full_report(rows=[row | {"temperature": temperature} for row in rows], curves=curves, suite=keys["suite"])


def policy_report(keys: dict[str, str]) -> dict:
    name, default = keys["name"], "/".join(keys[f"runtime.{part}"] for part in ("num_tokens", "depth", "top_k"))
    policies = [name, *(f"{name}-seed{seed}" for seed in entries(keys.get("seeds", "")))]
    named = [f"policy {policy}" for policy in policies]
    methods = ["no drafting", f"default tree {default}", "best static tree 32/4/8", *named, "perfect foresight"]
    curves = {"replayed": [{"name": method, "tokens_per_s": 30.0, "actions": 3} for method in methods]}
    curves |= {"grid": {"name": keys["experiment"].replace("_", "-")}, "seeds": {"replayed": {"mean": 1.0, "sd": 0.1}}}
    curves |= {"profile": keys.get("latency", "cpu"), "priced_by": keys.get("latency", "")}
    rows = []
    if keys["live.num_prompts"] != "0":
        curves["seeds"]["live"] = {"mean": 1.0, "ci95": [0.9, 1.1]}
        temperature = float(keys.get("traces.temperature", 0))
        rows = [live_row(method, 1.5, None, drafters=["general"], temperature=temperature) for method in methods[1:-1]]
    return full_report(rows=rows, curves=curves, parents=[{"kind": "policies", "name": name}])


@pytest.fixture(scope="module")
def measured() -> list[dict]:
    """What the commands of all steps report."""
    reports = []
    for step in STEPS:
        for command in step.commands:
            _, name, *words = shlex.split(command)
            keys = dict(word.split("=", 1) for word in words)
            if name == "eval":
                reports.append(eval_report(keys))
            elif keys.get("policy") == "router":
                rows = [{"prompts": kind, "accuracy": 0.9} for kind in ("as written", *kinds())]
                reports.append(full_report(rows=rows, curves={}))
            elif name == "train-policy":
                reports.append(policy_report(keys))
    return reports


def test_every_cell_that_can_be_measured_is_filled(measured):
    by_form = tables(*measured)
    empty = {
        (key, cell.method, cell.column) for key in by_form for cell in by_form[key].all_cells if cell.value is None
    }
    assert empty == NEVER
