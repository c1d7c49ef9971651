"""`quickstart` from the command line on a tiny pool: its four steps, their artifacts, resumption and mistakes."""

from __future__ import annotations

import importlib
import io
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

import drafterforge
from drafterforge.artifacts.folder import open_artifact
from drafterforge.bundle.record import read_record
from drafterforge.cli import main
from drafterforge.evaluation import timing
from drafterforge.pipelines import quickstart
from drafterforge.reporting.drafter_verdict import drafter_verdict
from tests.pipelines.conftest import PLAIN, Bench, Done, rising_lengths

pytestmark = pytest.mark.slow  # whole programs

QUICK = ("quickstart", "experiment=smoke", "first_prompts=2", "first_tokens=6")
ALONE = ["general alone", "sql alone", "quickstart alone"]
METHODS = ["autoregressive", *ALONE, "sql+retrieval", "quickstart+retrieval", "the bundle"]
ASK = ("generate", "prompt=Which users are active?", "max_new_tokens=12")


def report_of(bench: Bench) -> dict:
    return json.loads((bench.artifact("reports", "quickstart") / "report.json").read_text())


@pytest.fixture(scope="module")
def quickstart_run(tmp_path_factory, pool_runs, tiny_folder) -> tuple[Path, Done]:
    """Runs of a pool and one finished `quickstart`, and what that printed."""
    runs = tmp_path_factory.mktemp("quick") / "runs"
    shutil.copytree(pool_runs, runs)
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={runs}")
    out, err = io.StringIO(), io.StringIO()
    with rising_lengths(), redirect_stdout(out), redirect_stderr(err):
        code = main([*QUICK, *hf])
    assert code == 0, err.getvalue()
    return runs, Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def quick(bench, quickstart_run) -> Bench:
    """A bench with a copy of them."""
    shutil.copytree(quickstart_run[0], bench.runs)
    return bench


def test_quickstart_tells_its_steps_and_leaves_a_report(quick, quickstart_run):
    done = quickstart_run[1]
    steps = [line for line in done.err.splitlines() if line.startswith("quickstart, ")]
    assert [line.partition(":")[0] for line in steps] == [
        f"quickstart, {number} of 4, {name}"
        for number, name in enumerate(("open", "tune", "export", "evaluate"), start=1)
    ]
    steps_table, _, last = done.out.partition("quickstart, sql, held out")
    assert "sql, before tuning" in steps_table and "hedgespec over the pool" in steps_table and "the bundle" in last
    report = report_of(quick)
    assert drafter_verdict(report, "quickstart") in done.out.splitlines()
    assert [row["method"] for row in report["rows"]] == METHODS
    assert {(row["num_prompts"], row["mismatches"]) for row in report["rows"]} == {(2, 0)}
    about = report["curves"]["quickstart"]
    assert about["seconds"].keys() == {"open", "tune", "export", "evaluate"} and min(about["seconds"].values()) > 0
    assert (about["train_prompts"], about["training_steps"]) == (8, 4) and about["answer_tokens"] > 8
    assert [row["method"] for row in about["first"]] == ["autoregressive", "hedgespec over the pool", "sql+retrieval"]
    assert {(row["num_prompts"], row["mismatches"]) for row in about["first"]} == {(2, 0)}
    parents = open_artifact(quick.artifact("reports", "quickstart"), "reports").parents
    assert [parent["name"] for parent in parents] == ["general", "sql", "quickstart", "quickstart"]
    assert not list(quick.runs.rglob(".*.partial"))


def test_a_datastore_of_all_domains_replaces_retrieval(pool):
    for domain, name in (("general", "a-store"), ("math", "a-math-store")):
        train = ("train-drafter", "experiment=smoke", "drafter=retrieval")
        assert pool(*train, f"domain={domain}", f"name={name}").code == 0
    done = pool(*QUICK)
    assert (
        done.code == 0 and "opened the pool general, math, sql, a-math-store, a-store, retrieval" in done.err
    )  # datastores after drafters
    assert report_of(pool)["curves"]["quickstart"]["first"][-1]["method"] == "sql+a-store"
    folder = pool.artifact("bundles", "quickstart")
    assert read_record(folder).defaults.drafters == ["quickstart+a-store"]
    assert pool(*ASK, f"bundle={folder}").out == pool(*ASK, "drafter=").out


def test_the_bundle_holds_the_tuned_expert_in_place_of_its_origin(quick):
    folder = quick.artifact("bundles", "quickstart")
    assert read_record(folder).defaults.drafters == ["quickstart+retrieval"]
    tuned = open_artifact(quick.artifact("drafters", "quickstart"), "drafters")
    assert tuned.config["origin"]["name"] == "sql" and tuned.config["drafter"]["lora"]["rank"] == 4
    inside = folder / "drafters" / "quickstart" / "adapter" / "adapter_model.safetensors"
    weights = quick.artifact("drafters", "quickstart") / "adapter" / "adapter_model.safetensors"
    assert inside.read_bytes() == weights.read_bytes()
    plain = quick(*ASK, "drafter=")
    engine = drafterforge.open(folder, dtype="float32")
    assert engine.generate("Which users are active?", max_new_tokens=12) == plain.out[:-1]
    for drafter in ("", "quickstart", "general"):
        typed = [f"drafter={drafter}"] if drafter else []
        assert quick(*ASK, "bundle=quickstart", *typed).out == plain.out, drafter


def test_typed_drafters_go_into_the_bundle(pool):
    done = pool(*QUICK, "pool.drafters=[general,sql,math]", "name=given", "drafter.init=sql")
    assert done.code == 0, done.err
    defaults = read_record(pool.artifact("bundles", "given")).defaults
    assert defaults.drafters == ["general", "given", "math"]


def test_tuning_without_gain_is_reported_and_the_next_command_works(pool):
    with rising_lengths(by=-1):
        done = pool(*QUICK)
    warning = "quickstart continued sql for 4 steps; validation did not improve, so quickstart is a copy of sql; "
    assert f"{warning}8 answers to learn from" in done.err and report_of(pool)["curves"]["quickstart"]["best_step"] == 0
    typed = done.out.splitlines()[-1].partition("next: drafterforge ")[2]
    assert typed.startswith("generate target=hf") and pool(*typed.split(), "max_new_tokens=3").code == 0
    # tiny drafters of some processors are equally good: then the copy is compared with the other one
    assert re.search(r"quickstart` drafts exactly as `(sql|general)`", done.out)
    assert "quickstart all the same, as an example" in done.out


def test_the_results_page_shows_the_report(quick, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    results = importlib.import_module("results")
    index = yaml.safe_load((Path(__file__).parents[2] / "docs" / "reports" / "index.yaml").read_text())
    section = results.section("quickstart", index["quickstart"], report_of(quick), Path())
    assert "seconds until the first figures" in section and "| the bundle |" in section


def count_decoding(monkeypatch, stop_at: int = 0) -> list[str]:
    """Names of the methods that decode from now on; Ctrl-C meets the call with number `stop_at`."""
    calls, real = [], timing.decode

    def decode(method, *rest):
        calls.append(method.name)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(method, *rest)

    monkeypatch.setattr(timing, "decode", decode)
    return calls


def test_an_interrupted_quickstart_resumes(pool, monkeypatch):
    first, last = 2 * 3, 2 * len(METHODS)
    with monkeypatch.context() as patched:
        count_decoding(patched, stop_at=first + len(METHODS) + 2)  # in the last step, at the second prompt
        assert "type the same command to continue" in pool(*QUICK).one_line(130)
    tuned = (pool.artifact("drafters", "quickstart") / "manifest.json").read_bytes()
    assert "tiny/reports/quickstart" not in pool.finished()
    line = pool(*QUICK, "first_tokens=3").one_line()
    assert "unfinished work of other settings (first.max_new_tokens: " in line and "overwrite=true" in line
    with monkeypatch.context() as patched:
        patched.setattr(quickstart, "code_state", lambda: {"runtime": "changed"})
        assert "unfinished work of other settings (code" in pool(*QUICK).one_line()
    calls = count_decoding(monkeypatch)
    done = pool(*QUICK)
    assert done.code == 0, done.err
    assert len(calls) == last - len(METHODS) and set(calls) == set(METHODS)  # the second prompt, and nothing else
    assert "was trained before" in done.err and "(made before)" in done.err
    assert (pool.artifact("drafters", "quickstart") / "manifest.json").read_bytes() == tuned
    assert [row["num_prompts"] for row in report_of(pool)["rows"]] == [2] * len(METHODS)


def test_quickstart_again_trains_nothing_and_refuses_other_settings(quick):
    tuned = (quick.artifact("drafters", "quickstart") / "manifest.json").read_bytes()
    done = quick(*QUICK)
    assert done.code == 0 and "was trained before" in done.err
    assert (quick.artifact("drafters", "quickstart") / "manifest.json").read_bytes() == tuned
    assert [row["method"] for row in report_of(quick)["rows"]] == METHODS
    assert "trainer.lr" in quick(*QUICK, "trainer.lr=0.5").one_line()


def test_another_domain_under_the_same_name_is_refused_before_anything_is_timed(quick):
    done = quick(*QUICK, "domain=math")
    assert "answers/quickstart was made with other settings" in done.one_line()
    assert "before tuning" not in done.out and "opened the pool" not in done.err


def test_quickstart_reads_the_users_prompts(pool):
    path = pool.folder / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"How many rows has table {n}?"}) for n in range(12)))
    done = pool(*QUICK, "data=jsonl", f"path={path}", "name=mine", "drafter.init=general")
    assert done.code == 0, done.err
    report = json.loads((pool.artifact("reports", "mine") / "report.json").read_text())
    assert [row["method"] for row in report["rows"]] == [
        "autoregressive",
        "general alone",
        "mine alone",
        "general+retrieval",
        "mine+retrieval",
        "the bundle",
    ]
    defaults = read_record(pool.artifact("bundles", "mine")).defaults
    assert defaults.drafters == ["mine+retrieval"]


MISTAKES = {
    "no drafters named 'science'": ("domain=science",),
    "drafterforge quickstart domain=science drafter.init=general target=hf": ("domain=science",),
    "drafter.init=runs/sql is no name of a drafter": ("drafter.init=runs/sql",),
    "quickstart tunes a LoRA expert, got drafter.tuning=full": ("drafter.tuning=full",),
    "quickstart needs a name": ("name=",),
    "eval.chain=true is read by train-drafter only": ("eval.chain=true",),
    "first_prompts must be >= 1": ("first_prompts=0",),
    "no selector 'hedgspec'; did you mean": ("pool.selector=hedgspec",),
}


@pytest.mark.parametrize("expected", MISTAKES)
def test_mistakes_get_one_line(pool, expected):
    assert expected in pool(*QUICK, *MISTAKES[expected]).one_line()
    assert not list(pool.runs.glob("tiny/answers/quickstart"))


def test_a_target_without_drafters_gets_the_command_to_type(bench):
    line = bench(*QUICK).one_line()
    assert "quickstart starts from trained drafters, and there are none for tiny" in line
    assert f"drafterforge train-drafter domain=sql target=hf target.model={bench.target}" in line


def test_a_bundle_that_is_not_quickstart_s_stays(pool):
    assert pool("export", "bundle=quickstart", "pool.drafters=[general]").code == 0
    before = (pool.artifact("bundles", "quickstart") / "bundle.json").read_bytes()
    assert "is not quickstart's; type name=OTHER" in pool(*QUICK).one_line()
    assert not pool.artifact("answers", "quickstart").exists()
    assert (pool.artifact("bundles", "quickstart") / "bundle.json").read_bytes() == before
