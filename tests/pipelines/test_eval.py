"""`eval` from the command line: interrupted runs resume, the seed decides every figure, and the cycles are kept."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from drafterforge.cli import main
from drafterforge.evaluation import method_factory, timing
from drafterforge.evaluation.measurements import FILE, load_measurements
from drafterforge.evaluation.rows import timed_rows
from drafterforge.evaluation.suites import Suite
from drafterforge.reporting.verdict import summarize
from tests.pipelines.conftest import PLAIN, Bench, empty_charts

pytestmark = pytest.mark.slow  # whole programs

DOMAINS = ("eval", "suite=domains", "experiment=smoke", "suite.domains=[sql,math,chat]", "suite.num_prompts=3")
FEW = ("suite.selectors=[hedgespec,ucb1]", "suite.tuning_prompts=0", "suite.timed_prompts=3", "suite.check_live=false")


def report_of(bench: Bench, name: str = "domains") -> dict:
    return json.loads((bench.artifact("reports", name) / "report.json").read_text())


def exact(report: dict) -> list[dict]:
    """Rows without measured times."""
    clock = (
        "tokens_per_s speedup speedup_ci95 speedup_macro speedup_macro_ci95 wilcoxon_p wilcoxon_p_holm time_s peak_mb"
    )
    return [{key: value for key, value in row.items() if key not in clock.split()} for row in report["rows"]]


@pytest.fixture(scope="session")
def measured_runs(tmp_path_factory, pool_runs, tiny_folder) -> Path:
    """Runs of the pool with a report on it."""
    runs = tmp_path_factory.mktemp("measured") / "runs"
    shutil.copytree(pool_runs, runs)
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={runs}")
    with empty_charts():
        assert main([*DOMAINS, *FEW, *hf]) == 0
    return runs


@pytest.fixture
def measured(bench, measured_runs) -> Bench:
    """A bench with a copy of these runs."""
    shutil.copytree(measured_runs, bench.runs)
    return bench


def test_a_domain_suite_times_its_methods_on_every_domain(measured):
    report = report_of(measured)
    live = [row for row in report["rows"] if row["source"] == "live"]
    methods = [
        "autoregressive",
        "general alone",
        "the domain's expert",
        "retrieval alone",
        "hedgespec over the pool",
        "general+retrieval",
        "HF generate",
        "HF prompt lookup (10)",
    ]
    assert [row["method"] for row in live if row["domain"] == "all"] == methods
    assert {row["domain"] for row in live} == {"all", "chat", "math", "sql"}
    ours = [row for row in live if not row.get("external")]
    assert all(row["mismatches"] == 0 for row in ours)
    assert all(row["regret_cycles"] is not None for row in ours if row["method"] != "autoregressive")
    for row in live:
        assert row["num_prompts"] == (3 if row["domain"] == "all" else 1)
    assert report["curves"]["per_request"].keys() == {*methods}
    assert report["curves"]["actions"] == []  # no scheduler chose a tree


def test_in_half_precision_drafters_give_the_text_of_half_precision(pool):
    done = pool(*DOMAINS, *FEW, "target.dtype=bfloat16", "suite.methods=[generalist]")
    assert done.code == 0, done.err
    live = [row for row in report_of(pool)["rows"] if row["source"] == "live" and row["domain"] == "all"]
    expected = [("autoregressive", "fast"), ("autoregressive, invariant", "invariant"), ("general alone", "invariant")]
    assert [(row["method"], row["numerics"]) for row in live] == expected
    assert [row["mismatches"] for row in live] == [0, 0, 0]


def test_every_row_follows_from_the_cycles_file(measured):
    report = report_of(measured)
    entries = load_measurements(measured.artifact("reports", "domains") / FILE)
    alone = [e for e in entries if e.source == "replay" and e.selector == "static"]
    best: dict[int, int] = {}
    for entry in alone:
        request = entry.requests[0].request
        best[request] = min(best.get(request, 1 << 30), len(entry.cycles))
    assert timed_rows(entries, report["curves"]["mismatches"], best) == [
        row for row in report["rows"] if row["source"] == "live"
    ]
    replays = [row for row in report["rows"] if row["source"] == "replay"]
    assert {row["domain"] for row in replays} == {"all", "chat", "math", "sql"}
    for row in replays:
        matches = [e for e in entries if e.source == "replay" and e.method == row["method"]]
        matches = [e for e in matches if row["domain"] in ("all", e.domain)]
        assert row["num_cycles"] == sum(len(e.cycles) for e in matches) > 0


def test_an_interrupted_run_resumes_to_the_same_tokens_and_figures(measured, monkeypatch):
    full, real, calls, begun = report_of(measured), timing.decode, [], set()

    def interrupted(method, group, *rest):
        calls.append((method.name, tuple(group[0].tokens)))
        if len(calls) == 12 and not begun:  # in the second request
            raise KeyboardInterrupt
        return real(method, group, *rest)

    monkeypatch.setattr(timing, "decode", interrupted)
    assert "interrupted" in measured(*DOMAINS, *FEW, "name=cut").one_line(130)
    assert "tiny/reports/cut" not in measured.finished()
    begun |= {prompt for _, prompt in calls}
    calls.clear()
    done = measured(*DOMAINS, *FEW, "name=cut")
    assert done.code == 0, done.err
    assert len(calls) == 2 * 8  # one of three requests was complete
    assert len({prompt for _, prompt in calls} & begun) == 1
    assert exact(report_of(measured, "cut")) == exact(full)
    assert "the pool has no drafter for chat: there `expert` is general" in done.err
    tokens = [
        [
            (e.method, e.group, [answer.tokens for answer in e.answers])
            for e in load_measurements(measured.artifact("reports", n) / FILE)
        ]
        for n in ("domains", "cut")
    ]
    assert tokens[0] == tokens[1]
    assert not list(measured.artifact("reports", "cut").parent.glob(".*.partial"))


def test_answers_to_other_questions_are_not_mixed_with_those_of_an_interrupted_run(pool, monkeypatch):
    path, real = pool.folder / "own.jsonl", timing.decode
    papers = ("eval", "suite=papers", f"suite.questions={path}", "experiment=smoke", *FEW, "suite.methods=[generalist]")

    def ask(*questions: str) -> None:
        path.write_text("\n".join(json.dumps({"id": f"q{n}", "turns": [q]}) for n, q in enumerate(questions)))

    def interrupted(*_):
        raise KeyboardInterrupt

    ask("Why?", "How?")
    monkeypatch.setattr(timing, "decode", interrupted)
    assert "interrupted" in pool(*papers).one_line(130)
    monkeypatch.setattr(timing, "decode", real)
    ask("Why?", "Who?")
    line = pool(*papers).one_line()
    assert "(questions: " in line and "to go on, overwrite=true to delete it, or name=OTHER to leave it" in line
    assert pool(*papers, "overwrite=true").code == 0
    prompts = report_of(pool, "papers")["curves"]["prompts"]
    assert len(prompts["questions"]) == 64 and prompts["max_new_tokens"] == 8


HYBRIDS = {
    "sqll+retrieval": "suite.methods=[sqll+retrieval]",
    "expert+general": "suite.methods=[expert+general]",
    "mathh+retrieval": "suite.name=auto suite.methods=[auto] suite.cell_methods=[auto,mathh+retrieval]",
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_mistakes_in_hybrids_are_refused_before_anything_is_answered(pool, monkeypatch, name):
    monkeypatch.setattr(Suite, "requests", lambda *_: pytest.fail("answered"))
    assert f"suite.methods has {name}" in pool(*DOMAINS, *FEW, *HYBRIDS[name].split()).one_line()


def test_retrieval_is_timed_beside_a_pool_without_it_and_opened_only_if_timed(pool, monkeypatch):
    options = (
        "pool.drafters=[general,sql]",
        "suite.methods=[retrieval,generalist+retrieval,sql+retrieval,expert+retrieval]",
    )
    assert pool(*DOMAINS, *FEW, *options, "limit=1").code == 0
    live = [row for row in report_of(pool)["rows"] if row["source"] == "live" and row["domain"] == "all"]
    assert [row["method"] for row in live] == [
        "autoregressive", "retrieval alone", "general+retrieval", "sql+retrieval", "the domain's expert+retrieval",
    ]  # fmt: skip
    assert [row["mismatches"] for row in live] == [0] * 5
    monkeypatch.setattr(method_factory, "open_model", lambda *_: pytest.fail("opened"))
    assert pool("eval", "suite=ood", "experiment=smoke", *FEW, "suite.timed_prompts=0", "limit=1").code == 0


def test_a_pool_of_drafters_with_retrieval_in_their_trees_is_replayed_and_timed(pool):
    drafters = "pool.drafters=[general+retrieval,sql+retrieval,math]"
    methods = "suite.methods=[expert,pool,generalist+retrieval,expert+retrieval]"
    done = pool(*DOMAINS, *FEW, "limit=1", drafters, methods, "suite.check_live=true", "name=both")
    assert done.code == 0, done.err
    report = report_of(pool, "both")
    assert {row["method"]: row["requests_with_other_cycles"] for row in report["curves"]["live"]} == dict.fromkeys(
        ["general+retrieval", "sql+retrieval", "math", "hedgespec"], 0
    )
    live = [row for row in report["rows"] if row["domain"] == "all" and row["source"] == "live"]
    assert [row["method"] for row in live] == [
        "autoregressive", "the domain's expert", "hedgespec over the pool", "general+retrieval alone",
        "the domain's expert+retrieval",
    ]  # fmt: skip
    assert [row["mismatches"] for row in live] == [0] * 5


def test_limit_makes_a_suite_shorter(pool):
    options = ("pool.options={prior: 4}", "suite.methods=[pool,sql,ucb1,auto]")
    done = pool(*DOMAINS, *FEW, "limit=1", *options, "name=short")
    assert done.code == 0, done.err
    report = report_of(pool, "short")
    live = [row for row in report["rows"] if row["domain"] == "all" and row["source"] == "live"]
    assert [row["method"] for row in live] == [
        "autoregressive", "hedgespec over the pool", "sql alone", "ucb1 over the pool", "auto",
    ]  # fmt: skip
    assert all(row["num_prompts"] == 3 for row in live)
    commands, machine = report["curves"]["commands"], report["curves"]["machine"]
    assert commands["sql alone"].startswith("drafterforge generate drafter=sql ")
    assert commands["hedgespec over the pool"].startswith("drafterforge generate drafter=pool ")
    assert commands["auto"].startswith("drafterforge generate drafter=auto ")
    tree = "runtime.num_tokens=6 runtime.depth=2 runtime.top_k=2 "
    assert f"drafter=sql {tree}" in commands["sql alone"] and f"drafter=auto {tree}" in commands["auto"]
    assert f"drafter=pool pool.options='{{prior:4}}' {tree}" in commands["hedgespec over the pool"]
    assert f"drafter=pool pool.selector=ucb1 {tree}" in commands["ucb1 over the pool"]
    for command in commands.values():
        assert main([*shlex.split(command)[1:], "max_new_tokens=3"]) == 0, command
    assert "autoregressive" not in commands and [session["requests"] for session in machine["sessions"]] == [3]
    assert "report.html and report.json" in done.out and summarize(report).sentences[0] in done.out


def test_questions_of_two_turns_are_played_in_order(pool):
    folder = pool.folder / "bench"
    folder.mkdir()
    two = {"question_id": 1, "category": "writing", "turns": ["Say one thing.", "And why?"]}
    long = {"question_id": 2, "category": "qa", "turns": ["word " * 3000]}
    (folder / "mt_bench.jsonl").write_text(json.dumps(two) + "\n" + json.dumps(long) + "\n")
    (folder / "gsm8k.jsonl").write_text(json.dumps({"question_id": 7, "category": "math", "turns": ["1 + 1?"]}))
    done = pool("eval", "suite=papers", f"suite.questions={folder}", "experiment=smoke", *FEW, "suite.num_prompts=4")
    assert done.code == 0, done.err
    assert "turn 1 of" in done.err and "skipped: its prompt has" in done.err
    entries = [e for e in load_measurements(pool.artifact("reports", "papers") / FILE) if e.method == "autoregressive"]
    requests = [(request.domain, request.question, request.turn) for entry in entries for request in entry.requests]
    assert sorted(requests) == [("gsm8k", "gsm8k-7", 0), ("mt_bench", "mt_bench-1", 0), ("mt_bench", "mt_bench-1", 1)]
    first, second = (entry for entry in entries if entry.domain == "mt_bench")
    assert second.requests[0].prompt_tokens > first.requests[0].prompt_tokens + len(first.answers[0].tokens)
    rows = report_of(pool, "papers")["rows"]
    assert {row["domain"] for row in rows if row["source"] == "live"} == {"all", "gsm8k", "mt_bench"}


def test_sampled_answers_are_replayed_and_timed_as_they_are_decoded(pool):
    sampled = ("suite.temperature=1", "suite.methods=[generalist,pool,hf_generate]")
    done = pool(*DOMAINS, *FEW, *sampled, "suite.check_live=true")
    assert done.code == 0, done.err
    report = report_of(pool)
    assert {row["temperature"] for row in report["rows"]} == {1.0}
    assert " temperature=1 prompt=" in report["curves"]["commands"]["general alone"]
    live = [row for row in report["rows"] if row["source"] == "live" and row["domain"] == "all"]
    assert [row["method"] for row in live] == ["autoregressive", "general alone", "hedgespec over the pool"]
    assert all(row["mismatches"] == 0 for row in live)
    for check in report["curves"]["live"]:
        assert check["num_cycles"] == check["replayed_cycles"] and not check["other_text"]
    entries = load_measurements(pool.artifact("reports", "domains") / FILE)
    assert {entry.temperature for entry in entries} == {1.0}
    (answer,) = {tuple(e.answers[0].tokens) for e in entries if e.requests[0].request == 0}  # live as replayed
    assert pool(*DOMAINS, *FEW, "suite.methods=[generalist]", "name=greedy").code == 0
    greedy = load_measurements(pool.artifact("reports", "greedy") / FILE)
    assert answer != tuple(next(e.answers[0].tokens for e in greedy if e.requests[0].request == 0))


def test_every_selector_is_replayed_with_every_scheduler_and_timed_with_some(pool):
    assert pool("train-policy", "policy=planner", "experiment=smoke", "drafter=general", "live.num_prompts=0").code == 0
    options = (
        "suite.schedulers=[planner]",
        "pool.scheduler=planner",
        "suite.methods=[pool,ucb1/planner,sql/planner,sql/3/2/1]",
    )
    done = pool(*DOMAINS, *FEW, *options)
    assert done.code == 0, done.err
    report = report_of(pool)
    replays = {row["method"]: row for row in report["rows"] if row["source"] == "replay" and row["domain"] == "all"}
    for name in ("hedgespec", "ucb1", "sql alone", "best in hindsight"):
        assert replays[name]["scheduler"] == "static" and replays[f"{name} with planner"]["scheduler"] == "planner"
    live = [row for row in report["rows"] if row["source"] == "live" and row["domain"] == "all"]
    assert [row["method"] for row in live] == [
        "autoregressive",
        "hedgespec over the pool with planner",
        "ucb1 over the pool with planner",
        "sql alone with planner",
        "sql alone with 3/2/1",
    ]
    assert all(row["mismatches"] == 0 for row in live)
    assert [(parent["kind"], parent["name"]) for parent in report["parents"]][-1] == ("policies", "planner")
    command = report["curves"]["commands"]["sql alone with 3/2/1"]
    assert "drafter=sql runtime.num_tokens=3 runtime.depth=2 runtime.top_k=1 " in command
    entries = load_measurements(pool.artifact("reports", "domains") / FILE)
    chains = [cycle for entry in entries if entry.method == "sql alone with 3/2/1" for cycle in entry.cycles]
    assert max(cycle.depth for cycle in chains) == 2 and {cycle.num_nodes for cycle in chains} <= {1, 2, 3}
    played = {
        (entry.method, entry.group): [
            (cycle.drafter, cycle.accept_length, cycle.depth, cycle.num_nodes) for cycle in entry.cycles
        ]
        for entry in entries
        if entry.source == "replay" and entry.selector == "static"
    }
    for entry in entries:  # a drafter alone with a policy: the replay's cycles are the live ones
        if entry.method == "sql alone with planner" and entry.source == "live":
            cycles = played[entry.method, entry.requests[0].request]
            assert [(cycle.accept_length, cycle.depth, cycle.num_nodes) for cycle in entry.cycles] == [
                cycle[1:] for cycle in cycles
            ]
    shares = [row["share"] for row in report["curves"]["actions"]]
    assert sum(shares) == pytest.approx(1.0) and report["curves"]["weights"].keys() == {
        "general", "sql", "math", "retrieval",
    }  # fmt: skip
    assert report["curves"]["regret_curves"].keys() == {"hedgespec", "ucb1", "best in hindsight"}


SCALING = (
    "suite.temperatures=[0.0,1.0]",
    "suite.batch_sizes=[2,32]",
    "suite.context_lengths=[450,5000]",
    "suite.pool_sizes=[1,2,16]",
)


def test_scaling_times_every_axis_and_stays_lossless(pool):
    command = ("eval", "suite=scaling", "experiment=smoke", "suite.domains=[sql,math]", "suite.num_prompts=2")
    costs = "pool.options={costs: [2,2,2,1]}"  # of all drafters; smaller pools take a part of the list
    done = pool(
        *command, *SCALING, "suite.timed_prompts=2", "suite.tuning_prompts=0", "suite.selectors=[hedgespec]", costs
    )
    assert done.code == 0, done.err
    assert "batch size 32 skipped" in done.err and "context length 5000 skipped" in done.err
    report = report_of(pool, "scaling")
    places = {(row["axis"], row["at"]) for row in report["rows"] if row.get("axis")}
    expected = {("temperature", 0.0), ("temperature", 1.0), ("batch size", 2.0), ("context length", 450.0)}
    assert places == expected | {("pool size", size) for size in (1.0, 2.0, 4.0)}
    live = [row for row in report["rows"] if row["source"] == "live"]
    assert len(live) > 20 and all(row["mismatches"] == 0 for row in live)
    assert {row["temperature"] for row in live} == {0.0, 1.0} and {row["batch_size"] for row in live} == {1, 2}
    assert report["curves"]["scaling"].keys() == {"temperature", "batch size", "context length", "pool size"}
    entries = load_measurements(pool.artifact("reports", "scaling") / FILE)
    plain = [entry for entry in entries if entry.method == "autoregressive"]
    short, long = (
        [request.prompt_tokens for entry in plain if entry.axis == axis for request in entry.requests]
        for axis in ("temperature", "context length")
    )
    assert max(short) < max(long) <= 450
    tokens = {entry.temperature: entry.answers[0].tokens for entry in entries if entry.axis == "temperature"}
    assert tokens[0.0] != tokens[1.0]


MISTAKES = {
    "which is no drafter of the pool, selector or method; did you mean 'hf_generate'": "suite.methods=[hf_generat]",
    "a policy follows a drafter or selector": "suite.methods=[autoregressive/planner]",
    "a policy follows a drafter or": "suite.methods=[general+retrieval/planner]",
    "wanted an EAGLE-3 or block drafter of the pool, + and a retrieval drafter": "suite.methods=[sql+general]",
    "has expert+general, but general is no retrieval drafter of the pool": "suite.methods=[expert+general]",
    "no policies named 'planer'": "suite.methods=[general/planer]",
    "runtime.num_tokens must be <= 1024, got 9999": "suite.methods=[general/9999/3/4]",
    "suite.name must be one of": "suite.name=domain",
    "measures nothing": "suite.replay=false suite.timed_prompts=0",
    "limit must be >= 0": "limit=-1",
    "not by suite=scaling; leave it out, or type suite.temperatures=": "suite.name=scaling suite.temperature=1",
    "not by suite=domains; leave it out, or type suite.temperature=": "suite.temperatures=[0.7]",
    "suite.selectors= is read with suite.replay=true only": "suite.replay=false",
    "suite=papers needs question files": "suite=papers",
    "the requests of a batch have different experts": "suite.name=scaling suite.methods=[generalist,expert]",
}


@pytest.mark.parametrize("expected", MISTAKES)
def test_mistakes_are_one_line(pool, expected):
    assert expected in pool(*DOMAINS, *FEW, *MISTAKES[expected].split()).one_line()
    assert "tiny/reports/domains" not in pool.finished()


AUTO = (
    "eval", "suite=auto", "experiment=smoke", "suite.domains=[sql,math]", "suite.num_prompts=4",
    "suite.timed_prompts=2",
)  # fmt: skip
CELLS = (
    "suite.temperatures=[0.0,1.0]", "suite.batch_sizes=[1,2,64]", "suite.context_lengths=[450,5000]",
    "suite.cell_prompts=2", "suite.warm_up_prompts=1",
)  # fmt: skip


def test_the_default_is_compared_by_domain_and_in_every_cell(pool):
    done = pool(*AUTO, *CELLS)
    assert done.code == 0, done.err
    assert "batch size 64 skipped" in done.err and "context length 5000 skipped" in done.err
    assert "Worst domain of the default" in done.out and "Worst cell of the default" in done.out
    report = report_of(pool, "auto")
    domains, cells = report["curves"]["auto"]["domains"], report["curves"]["auto"]["cells"]
    assert [(row["domain"], row["num_prompts"]) for row in domains] == [("all", 2), ("math", 1), ("sql", 1)]
    places = [(row["temperature"], row["batch_size"], row["context"]) for row in cells]
    assert places == [(0.0, 1, 450), (0.0, 2, 450), (1.0, 1, 450), (1.0, 2, 450)]
    live = [row for row in report["rows"] if row["source"] == "live"]
    assert all(row["mismatches"] == 0 for row in live)
    for row in [*domains, *cells]:
        assert row["best"] != "auto" and row["over_best"] <= row["over_plain"]
    for row in domains:
        assert row["regret_s"].keys() == row["regret_s_by_prompt"].keys() > {"auto", row["best_fixed"]}
        assert row["regret_s"][row["best_fixed"]] == 0.0 <= row["regret_s_by_prompt"][row["best_fixed"]]
    for cell in cells:
        assert cell["regret_s"].keys() >= {"auto", "autoregressive"}
        assert cell["num_prompts"] == 2 and cell["warm_up_prompts"] == 1
        keys = {"method": "auto", "temperature": cell["temperature"], "batch_size": cell["batch_size"], "at": 450}
        (row,) = [row for row in live if keys.items() <= row.items()]
        assert row["speedup"] == cell["over_plain"]
    entries = load_measurements(pool.artifact("reports", "auto") / FILE)
    requests = {info.request for entry in entries if entry.axis for info in entry.requests}
    assert len(requests) == 2 and min(requests) == 4 + 1  # requests that warm the engines are not timed
    assert len({info.prompt_tokens for entry in entries if entry.axis for info in entry.requests}) > 1
    assert report["curves"]["auto"]["replay"] is None  # the shape of trees is fixed, so that nothing is decided
    page = (pool.artifact("reports", "auto") / "report.html").read_text()
    assert "Regret in seconds per 1,000 tokens" in page and "Default, replayed on its own answers" not in page
    assert "Default on a stream, by domain" in page and "Default in every cell" in page


def test_the_default_is_compared_on_questions_in_mixed_order(pool):
    folder = pool.folder / "bench"
    folder.mkdir()
    for name in ("gsm8k", "mt_bench"):
        lines = [json.dumps({"question_id": n, "category": "c", "turns": [f"{n} and {n}?"]}) for n in range(4)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    none = ("suite.temperatures=[]", "limit=3")
    decides = ("runtime.num_tokens=null", "runtime.depth=null", "runtime.top_k=null")
    done = pool(*AUTO, f"suite.questions={folder}", *none, *decides)
    assert done.code == 0, done.err
    curve = report_of(pool, "auto")["curves"]["auto"]
    assert [row["domain"] for row in curve["domains"]] == ["all", "gsm8k", "mt_bench"] and curve["cells"] == []
    for figures in (curve["replay"], curve["replay"]["same_load"]):
        assert 0 < figures["num_prompts"] == len(figures["prompts"]) <= 4 and figures["predicted_tokens_per_s"] > 0
    assert "A replay predicts the default's tokens/s" in done.out
    assert "Default, replayed on its own answers" in (pool.artifact("reports", "auto") / "report.html").read_text()
