"""What `serve learn=on` records trains a drafter, and one command deletes it all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.learned import FOLDER, LearnedRecord, lock_learner
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.engines import open_engine
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.learn import LearnCommandConfig, LearnConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.serving import ServeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import SPLITS, AnswerSet
from drafterforge.data.stream import StreamRecord, used_bytes
from drafterforge.evaluation import lossless, traffic_resume
from drafterforge.evaluation.measurements import load_measurements
from drafterforge.evaluation.traffic_replay import ReplayedTraffic, TrafficReplay
from drafterforge.pipelines import learn_replay
from drafterforge.pipelines.train_drafter import train
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Row
from drafterforge.server import learning
from drafterforge.server.learning import LOG, LearnerProcess
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import Target, load_target
from drafterforge.training.traffic import Pace, TrafficLearner
from drafterforge.training.traffic_gate import Gain, Verdict
from tests.programs import Program
from tests.server.conftest import eventually, serving

pytestmark = pytest.mark.slow  # whole programs

NUM_REQUESTS = 20
BETTER = Verdict(Gain("general", 0.1, 0.05, 0.15))


def paths(bench) -> dict[str, Any]:
    target = TargetConfig(name="tiny", source="hf", model=str(bench.target), dtype="float32")
    return {"target": target, "runs_dir": str(bench.runs)}


def hf_target(bench) -> Target:
    return load_target(paths(bench)["target"])


def record(bench) -> Path:
    """Serve the tiny target, and record its answers where `serve` does by default."""
    learn = LearnConfig(record=True, train=False)
    with serving(Engine(hf_target(bench)), learn=learn, runs_dir=str(bench.runs)) as up:
        for number in range(NUM_REQUESTS):
            prompt = list(range(3 + number, 9 + 2 * number))
            assert up.ask(prompt=prompt, max_tokens=12).status_code == 200
        eventually(lambda: up.figure("recorded_answers_total") == NUM_REQUESTS)
    return learn.traffic_dir(str(bench.runs), "tiny")


def test_a_drafter_learns_from_served_traffic_without_another_pass_of_the_target(bench, monkeypatch):
    ring, captured, real = record(bench), [], FeatureCapture.__call__

    def capture(self: FeatureCapture, batch: list[list[int]]):
        captured.extend(batch)
        return real(self, batch)

    monkeypatch.setattr(FeatureCapture, "__call__", capture)
    typed = (f"path={ring}", "experiment=smoke", "drafter=eagle3", "data.num_train=40", "data.num_val=40")
    done = bench("train-drafter", "data=traffic", *typed, "data.num_test=40")
    assert done.code == 0, done.err
    answers = AnswerSet.open(bench.artifact("answers", "traffic"))
    assert sum(len(answers.rows(split)) for split in SPLITS) == NUM_REQUESTS
    assert len(captured) == 2  # to compare the recorded features with the target's own
    report = json.loads((bench.artifact("reports", "traffic") / "report.json").read_text())
    assert all(row["mismatches"] == 0 for row in report["rows"])


def test_the_status_shows_what_is_recorded_and_delete_deletes_it(bench):
    ring = record(bench)
    assert "next: serve further requests; an expert learns from 96 answers or more" in bench("learn", "status").out
    status = bench("learn", "status", f"learn.min_answers={NUM_REQUESTS}", "learn.held_out=4")
    assert status.code == 0 and f"{NUM_REQUESTS} now" in status.out and str(ring) in status.out
    flags = f"target=hf target.model={bench.target} target.name=tiny target.dtype=float32 runs_dir={bench.runs}"
    assert f"next: drafterforge train-drafter data=traffic path={ring} {flags}\n" in status.out
    frozen = bench("learn", "freeze", f"learn.folder={ring}").out
    assert f"no expert is learned until `drafterforge learn thaw {flags} learn.folder={ring}`" in frozen
    assert f"frozen; to go on learning, type `drafterforge learn thaw {flags}`" in bench("learn", "status").out
    done = bench("learn", "delete")
    assert done.code == 0 and used_bytes(ring) == 0
    status = bench("learn", "status").out
    assert "0 now" in status and "no answers are on disk" in status and "next:" not in status


def test_mistakes_are_one_line(bench):
    assert "holds no recorded traffic; start a server with `drafterforge serve" in bench("learn", "freeze").one_line()
    status = bench("learn", "status")
    assert status.code == 0 and "nothing was recorded in" in status.out
    assert "got 'forget'" in bench("learn", "forget").one_line()
    assert "learn.sample must lie in [0, 1]" in bench("serve", "learn=on", "learn.sample=2").one_line()


LEARN = LearnConfig(record=True, train=False, min_answers=16, held_out=4, steps=4)


@pytest.fixture
def learner(pool, monkeypatch) -> TrafficLearner:
    """A learner with traffic, for which every expert is a little better than the generalist."""
    record(pool)
    monkeypatch.setattr(TrafficLearner, "judge", lambda *_: BETTER)
    target = hf_target(pool)
    cfg = LearnCommandConfig(target=target.settings, learn=LEARN, runs_dir=str(pool.runs))
    return TrafficLearner(cfg, target, train)


def test_a_round_trains_an_expert_that_joins_a_running_server_and_leaves_again(pool, learner, monkeypatch):
    version = learner.round()
    stream = StreamRecord.read(learner.folder).id[:4]
    assert version.state == "joined" and version.name == f"traffic-1-{stream}-v1" and version.num_judged == 4
    manifest = Manifest.read(pool.artifact("drafters", version.name))
    assert {(parent["kind"], parent["name"]) for parent in manifest.parents} == {
        ("answers", version.name),
        ("drafters", "general"),
    }
    assert learner.round() is None  # no newer answers
    done = pool("learn", "export")
    assert done.code == 0 and f"target.model={pool.target}" in done.out.splitlines()[-1]
    record_of_bundle = json.loads((pool.runs / "tiny" / "bundles" / "traffic" / "bundle.json").read_text())
    assert {entry["name"] for entry in record_of_bundle["drafters"]} == {"general", version.name}
    with monkeypatch.context() as patch:
        patch.setattr(RunsFolder, "unproven", lambda self: [])  # a tiny training improves nothing
        done = pool("export", "bundle=plain")
    assert (
        done.code == 0 and f"left out, because they learned from the traffic of a server: {version.name};" in done.err
    )
    record_of_bundle = json.loads((pool.runs / "tiny" / "bundles" / "plain" / "bundle.json").read_text())
    assert version.name not in {entry["name"] for entry in record_of_bundle["drafters"]}
    engine, _ = open_engine(ServeConfig(drafter="pool", pool=PoolConfig(drafters=["general", "sql"]), **paths(pool)))
    prompt = list(range(5, 15))
    expected = Engine(hf_target(pool)).generate([prompt], 12)[0].tokens
    with serving(engine, learn=LEARN, runs_dir=str(pool.runs)) as up:
        # The server follows the record itself, although it trains nothing.
        for command, names in (("freeze", ["general", "sql", version.name]), ("rollback", ["general", "sql"])):
            assert pool("learn", command).code == 0
            eventually(lambda names=names: engine.drafter.names == names)
            answer = up.ask(prompt=prompt, max_tokens=12, return_token_ids=True).json()["choices"][0]
            assert answer["token_ids"] == expected
    assert f"{version.name} of" in pool("learn", "status").out
    assert "no expert that was learned" in pool("learn", "export").one_line()
    assert pool("learn", "delete").code == 0
    assert not pool.artifact("drafters", version.name).exists()
    assert not pool.artifact("answers", version.name).exists()


def test_an_expert_that_is_not_better_is_rejected_and_deleted(pool, learner, monkeypatch):
    monkeypatch.undo()
    version = learner.round()
    assert version.state == "rejected" and version.low < 0.0 and version.rival in ("general", "sql", "math")
    assert not pool.artifact("drafters", version.name).exists()
    assert "no expert that was learned" in pool("learn", "rollback").one_line()


@pytest.mark.parametrize("moment", ["training", "judging"])
def test_deleting_while_an_expert_is_learned_deletes_it_too(pool, learner, monkeypatch, moment):
    check, judged = Pace.on_train_batch_end, []

    def delete() -> None:
        assert pool("learn", "delete").code == 0

    def after_a_batch(self: Pace, *args) -> None:
        delete()
        check(self, *args)

    def judge(*args) -> Verdict:
        judged.append(moment)
        delete()
        return BETTER

    monkeypatch.setattr(TrafficLearner, "judge", judge)
    if moment == "training":
        monkeypatch.setattr(Pace, "on_train_batch_end", after_a_batch)
    assert learner.round() is None and LearnedRecord.read(learner.folder).versions == []
    assert judged == ([] if moment == "training" else [moment])  # training ends at the next batch
    for kind in ("drafters", "answers"):
        assert not [*(pool.runs / "tiny" / kind).glob("*traffic-1-*")]
        assert not [*(pool.runs / "tiny" / kind).glob(".traffic-1-*")]


def test_killed_at_any_time_a_learner_leaves_no_half_artifact(pool, monkeypatch):
    monkeypatch.setattr(learning, "POLL_S", 0.0)  # no pauses between starts
    monkeypatch.setattr(subprocess, "Popen", Program)
    folder = record(pool)
    typed = ["learn", "run", "target=hf", f"target.model={pool.target}", "target.name=tiny", "target.dtype=float32"]
    typed += [f"runs_dir={pool.runs}", "learn.min_answers=16", "learn.held_out=4", "learn.steps=4"]
    process = LearnerProcess([*typed, f"learn.folder={folder}"], folder)
    for delay in (0.0, 1.5):
        assert process.watch() == "running"
        time.sleep(delay)
        process.stop()
        for name in pool.finished():
            open_artifact(pool.runs / name, Manifest.read(pool.runs / name).kind)
        LearnedRecord.read(folder)
    process.watch()
    eventually(lambda: LearnedRecord.read(folder).versions != [])
    process.stop()
    assert LearnedRecord.read(folder).error == ""


def test_a_learner_that_cannot_start_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "POLL_S", 0.0)  # no pauses between starts
    process = LearnerProcess(["learn", "nonsense"], tmp_path)
    limit = time.monotonic() + 120
    while process.watch() == "running":
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert process.watch() == "failed"
    assert "learn must be one of" in (tmp_path / FOLDER / LOG).read_text()


def test_a_replay_deletes_no_answers_but_those_of_an_interrupted_one(tmp_path, monkeypatch):
    rows = [SimpleNamespace(id="aa-00000001"), SimpleNamespace(id="aa-00000002")]
    monkeypatch.setattr(traffic_resume, "served_shards", lambda folder: [(folder, rows)])
    assert traffic_resume.is_left_by("aa", tmp_path) and not traffic_resume.is_left_by("", tmp_path)
    rows.append(SimpleNamespace(id="bb-00000001"))  # of a server that was started since
    assert not traffic_resume.is_left_by("aa", tmp_path)
    rows.clear()
    assert traffic_resume.is_left_by("", tmp_path)
    lock = lock_learner(tmp_path)
    assert not traffic_resume.is_left_by("", tmp_path)
    os.close(lock)


def test_a_replay_learns_from_a_log_and_reports_what_it_brings(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(TrafficLearner, "judge", lambda *_: BETTER)
    log = tmp_path / "requests.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"Explain {number} to me."}], "domain": "ab"[number % 4 == 0]}
        for number in range(20)
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    typed = ("learn.min_answers=16", "learn.held_out=4", "learn.steps=4", "max_new_tokens=10", "old_prompts=3")
    typed += ("seeds=[5]",)
    run, seeds = TrafficReplay.run, list[int]()

    def interrupted(replay: TrafficReplay, *args) -> ReplayedTraffic:
        seeds.append(replay.cfg.seed)
        if seeds == [0, 5]:  # the second seed ends after it has recorded and learned
            run(replay, *args)
            raise KeyboardInterrupt
        return run(replay, *args)

    monkeypatch.setattr(TrafficReplay, "run", interrupted)
    assert pool("learn", "replay", str(log), *typed).code == 130
    done = pool("learn", "replay", str(log), *typed)
    assert done.code == 0, done.err
    assert seeds == [0, 5, 5]  # the first one is not replayed again
    assert len(load_measurements(pool.artifact("reports", "traffic") / "cycles.parquet")) == 2 * 4 * 23
    report = json.loads((pool.artifact("reports", "traffic") / "report.json").read_text())
    assert [row["num_prompts"] for row in report["rows"]] == [20] * 4 + [6] * 4 + [5] * 4 + [15] * 4 + [3] * 4
    assert all(row["mismatches"] == 0 for row in report["rows"])
    learned = report["curves"]["learned"]
    assert [(version["seed"], version["requests"]) for version in learned] == [(0, 16), (5, 16)]
    assert {(version["kind"], version["state"]) for version in learned} == {("traffic-1", "joined")}
    for name, state in (("traffic", "left"), ("traffic-seed5", "joined")):  # the experts of earlier seeds are deleted
        (version,) = LearnedRecord.read(pool.runs / "tiny" / name).versions
        assert version.state == state and pool.artifact("drafters", version.name).exists() == (state == "joined")
    assert "seed 5, after 16 requests: traffic-1-" in done.out and "with learned experts and memory" in done.out
    assert "with 2 seeds)" in done.out and "requests of b, tokens/s over those without learning" in done.out
    gains = report["curves"]["gains_by_seed"]["last 6 requests"]
    assert [len(values) for values in gains.values()] == [2, 2]
    moving = report["curves"]["mat_by_request"]
    assert {name: [point[0] for point in points] for name, points in moving.items()} == {
        name: [20] for name in ("auto", "auto, learned experts", "auto, learned experts and memory")
    }
    page = (pool.artifact("reports", "traffic") / "report.html").read_text()
    assert "MAT by request, moving mean" in page and "a learned drafter joins, after 16 requests" in page
    overall = done.out.index("all requests, tokens/s over those without learning")
    assert overall < done.out.index("last 6 requests, tokens/s over") and "domain" in done.out
    alone = ("retrieval=false", "limit=6", "max_new_tokens=10", "name=alone", f"learn.folder={tmp_path / 'alone'}")
    assert f"but {learned[1]['name']} would draft" in pool("learn", "replay", str(log), *alone).one_line()
    assert pool("learn", "delete", f"learn.folder={pool.runs / 'tiny' / 'traffic-seed5'}").code == 0
    assert pool("learn", "replay", str(log), *alone).code == 0
    report = json.loads((pool.artifact("reports", "alone") / "report.json").read_text())
    methods = ["autoregressive", "auto without retrieval", "auto without retrieval, learned experts"]
    assert [row["method"] for row in report["rows"][:3]] == methods
    assert all(row["mismatches"] == 0 for row in report["rows"])
    empty = f"learn.folder={tmp_path / 'empty'}"

    def rounded(replay: TrafficReplay, name: str, prompt: list[int]) -> Row:
        row = decode(replay, name, prompt)
        row.answer.tokens[-1] += name != "autoregressive"
        return row

    decode = TrafficReplay._decode
    monkeypatch.setattr(TrafficReplay, "_decode", rounded)
    monkeypatch.setattr(lossless, "top2_margin", lambda *_: 1e-6)
    tied = ("limit=1", "max_new_tokens=10", "name=tied", f"learn.folder={tmp_path / 'tied'}")
    assert pool("learn", "replay", str(log), *tied).code == 0
    report = json.loads((pool.artifact("reports", "tied") / "report.json").read_text())
    assert all(row["mismatches"] == 0 for row in report["rows"])
    assert [entry["rerun"] for entry in report["curves"]["mismatches"]] == [True] * 3
    assert "type a smaller one" in pool("learn", "replay", str(log), "max_new_tokens=100000", empty).one_line()
    monkeypatch.setattr(learn_replay, "load_target", lambda *_: pytest.fail("loaded"))
    assert "a replay begins without traffic" in pool("learn", "replay", str(log), *typed).one_line()
    shutil.copytree(pool.runs / "tiny" / "traffic-seed5", tmp_path / "empty-seed5")  # of a later seed alone
    assert "empty-seed5 holds some" in pool("learn", "replay", str(log), *typed, empty).one_line()
    assert "learn.sample= is not read by" in pool("learn", "replay", str(log), "learn.sample=0.5").one_line()
    assert "type `drafterforge learn replay LOG.jsonl" in pool("learn", "replay").one_line()
    assert "is read by learn replay only" in pool("learn", "status", str(log)).one_line()
    assert "seeds= is read by learn replay only" in pool("learn", "status", "seeds=[1]").one_line()
