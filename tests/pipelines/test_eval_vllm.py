"""`eval suite=vllm` from the command line, with a program in place of vLLM that answers without a model."""

from __future__ import annotations

import json
import socket

import pytest

from drafterforge.evaluation import vllm_server, vllm_timing
from drafterforge.evaluation.measurements import FILE, load_measurements
from drafterforge.interop.vllm.pool_folder import PoolFolder
from tests.evaluation.vllm_builders import free_ports, write_program
from tests.pipelines.conftest import Bench, Done

pytestmark = pytest.mark.slow  # whole programs

SHORT = ("suite.domains=[sql,math]", "suite.max_new_tokens=12", "suite.batch_sizes=[1,4]", "limit=3")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_server, "POLL_S", 0.02)
    monkeypatch.setattr(vllm_timing, "SETTLE_S", 0.0)


def evaluate(bench: Bench, *arguments: str, **options: str) -> Done:
    """Run the suite with the fake `vllm`.  options: see there."""
    variable = f"suite.server_env={{FAKE_VLLM:'{json.dumps(options)}'}}"
    places = (f"suite.vllm_command={write_program(bench.folder)}", f"suite.ports={free_ports(6)}")
    return bench("eval", "suite=vllm", *SHORT, variable, *places, *arguments)


def report_of(bench: Bench, name: str = "vllm") -> dict:
    return json.loads((bench.artifact("reports", name) / "report.json").read_text())


def test_a_pool_and_its_drafters_are_exported_served_and_timed(pool):
    done = evaluate(pool, "suite.methods=[generalist,sql,pool]", 'suite.server_args=[--max-model-len,"2000"]')
    assert done.code == 0, done.err
    report, folder = report_of(pool), pool.artifact("reports", "vllm")
    single = [row for row in report["rows"] if row["domain"] == "all"]
    names = ["autoregressive", "general alone", "sql alone", "hedgespec over the pool"]
    assert [row["method"] for row in single] == names
    assert [row["mismatches"] for row in report["rows"]] == [0] * len(report["rows"])
    assert single[3]["drafters"] == ["general", "math", "sql", "retrieval"] and single[3]["mat"] > single[1]["mat"] > 1
    assert {row["batch_size"] for row in report["rows"]} == {1, 4} and report["suite"] == "vllm"
    assert report["device"].startswith("vLLM 0.32.0, ") and (report["dtype"], report["numerics"]) == ("float32", "fast")
    assert report["curves"]["drafters"]["hedgespec over the pool"]["sql"]["cycles"] > 0
    assert PoolFolder.open(pool.artifact("exports", "main-vllm-pool")).stacked == ["general", "math", "sql"]
    command = report["curves"]["commands"]["sql alone"]
    assert command.startswith("vllm serve ") and "main-sql-vllm-plain" in command and "--port" not in command
    assert "suite.num_prompts=6" in report["curves"]["again"]
    assert len(list(folder.glob("vllm-*.log"))) == 4 and len(load_measurements(folder / FILE)) == 4 * (6 + 1)
    page = (folder / "report.html").read_text()
    assert "Evaluation in vLLM of tiny" in page and "Drafters of the served pool" in page
    assert "Time of a cycle" not in page  # servers say nothing of its steps
    assert "Lossless: 0 mismatches" in page and "live, by batch size" in done.out

    again = evaluate(pool, "name=again")
    assert again.code == 0, again.err
    assert again.err.count("exported earlier") == 2 and "the drafters are those of" in again.err
    assert not list(pool.runs.glob("*/*/.*.partial"))


def test_without_a_pool_drafters_come_from_the_runs(pool):
    calls = pool.folder / "calls"
    questions = pool.folder / "questions.jsonl"
    lines = [{"question_id": n, "turns": ["Why?", "And then?"], "domain": "sql"} for n in range(4)]
    questions.write_text("\n".join(map(json.dumps, lines)))
    options = (f"suite.questions={questions}", "suite.together=false", "suite.temperatures=[0.0,0.8]")
    done = evaluate(pool, "suite.methods=[generalist]", *options, calls=str(calls))
    assert done.code == 0, done.err
    assert not pool.artifact("bundles", "main").exists()
    assert pool.artifact("exports", "general-vllm-plain").is_dir()
    report = report_of(pool)
    sampled = [row for row in report["rows"] if row["temperature"] > 0]
    assert sampled and all(row["mismatches"] is None for row in sampled)
    entries = load_measurements(pool.artifact("reports", "vllm") / FILE)
    assert {info.turn for entry in entries for info in entry.requests} == {0, 1}  # the server answered the first turns
    assert [row["method"] for row in report["rows"] if not row.get("axis")] == ["autoregressive", "general alone"]


def test_different_answers_fail_in_float32(pool):
    done = evaluate(pool, "suite.methods=[generalist]", "suite.batch_sizes=[1]", differs="drafter")
    assert "not lossless: general alone: 6 of 6 answers differ" in done.one_line(1)


def test_a_server_that_fails_leaves_its_log(pool):
    line = evaluate(pool, "suite.methods=[generalist]", dies="drafter").one_line()
    assert "vLLM with general alone ended with exit code 1" in line and "ValueError: the cache is too small" in line
    (log,) = pool.runs.glob("tiny/reports/.vllm.partial/vllm-general-alone.log")
    assert str(log) in line and "tiny/reports/vllm" not in pool.finished()


MISTAKES = {
    "there is no such program on the PATH": "suite.vllm_command=vllm-nowhere",
    "has --port, which this suite sets": "suite.server_args=[--port,9]",
    "has no method 'pol'; did you mean pool?": "suite.methods=[pol]",
    "has no method 'default'": "suite.methods=[default]",
    "additional_config.drafterforge has no key 'sel'": (
        'suite.server_args=[--additional-config,\'{"drafterforge":{"sel":1}}\']'
    ),
    "no bundle named 'house'": "bundle=house",
    "suite.replay= is read by suite=quick|domains|papers": "suite.replay=true",
    "suite.rounds= is read with suite.together=false only": "suite.rounds=3",
    "suite.ports must lie in": "suite.ports=0",
    "--dtype int4; wanted one of": "suite.server_args=[--dtype,int4]",
}


@pytest.mark.parametrize("expected", MISTAKES)
def test_mistakes_are_one_line(pool, expected):
    assert expected in evaluate(pool, *MISTAKES[expected].split()).one_line()


def test_a_port_in_use_is_one_line(pool):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"port {port}, for vLLM with autoregressive" in evaluate(pool, f"suite.ports={port}").one_line()


def test_a_bundle_is_read_by_this_suite_only(pool):
    assert "bundle=house is read by suite=vllm only" in pool("eval", "suite=quick", "bundle=house").one_line()
