"""A learned drafter joins only where it is better for certain, and the newest requests judge it."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafterforge.artifacts import learned
from drafterforge.artifacts.atomic import ASKED_S, save_json_atomic
from drafterforge.artifacts.learned import (
    JOINED,
    LEFT,
    LearnedRecord,
    LearnedVersion,
    absent_drafters,
    delete_texts,
    lock_learner,
    update_record,
)
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import artifact_run
from drafterforge.config.learn import LearnCommandConfig, LearnConfig
from drafterforge.data.answers import Answer, encode_shard
from drafterforge.data.served import served_shards
from drafterforge.data.stream import StreamRecord
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.pipelines import learn as learn_pipeline
from drafterforge.training import traffic
from drafterforge.training.traffic import (
    OutdatedRoundError,
    Pace,
    TrafficLearner,
    is_adapter,
    name_of,
    new_prompts,
    split_newest,
)
from drafterforge.training.traffic_gate import Gain, Verdict, is_worse, paired_gain

STREAM = "0a1b2c3d4e5f6789"
MANY = 10**6  # tokens


def answer(number: int, prompt: int) -> Answer:
    return Answer(f"a{number}", "", "", "train", [prompt, 7, number], [0, 0, 1], 2, 1, True)


def version(number: int, kind: str = "sql", state: str = JOINED) -> LearnedVersion:
    return LearnedVersion(name_of(kind, STREAM, number), kind, state, "general", 0.1, 0.05, 0.15, 9, 9, "2026-11-25")


def test_a_gain_is_relative_to_the_best_other_drafter_and_paired_by_request():
    rng = np.random.default_rng(0)
    lengths = rng.uniform(1.0, 4.0, 24)  # requests differ far more than the drafters
    rivals = {"weak": lengths * 0.9, "strong": lengths}
    gain = paired_gain(lengths * 1.1 * np.exp(rng.normal(0.0, 0.01, 24)), rivals)
    assert gain.rival == "strong" and gain.low > 0.08 and gain.high < 0.12
    assert gain.mean == pytest.approx(0.1, abs=0.01)
    assert paired_gain(lengths * 0.95, rivals).high < 0.0


def test_the_interval_holds_its_confidence():
    rng, count = np.random.default_rng(1), 1000
    false = sum(paired_gain(np.exp(rng.normal(0.0, 0.2, 24)), {"general": np.ones(24)}).low > 0.0 for _ in range(count))
    assert 0.012 < false / count < 0.042  # one side of 5 %


def test_the_newest_prompts_judge_and_no_prompt_is_in_two_splits():
    rows = [answer(number, number % 30) for number in range(40)]  # the first ten prompts come again
    splits = split_newest(rows, "", 8, 4, MANY)
    assert [row.id for row in splits["test"]] == [f"a{number}" for number in range(29, 21, -1)]
    assert [row.id for row in splits["val"]] == [f"a{number}" for number in range(21, 17, -1)]
    assert {row.id for row in splits["train"]} == {f"a{number}" for number in (*range(10, 18), *range(30, 40))}


def test_no_prompt_of_an_earlier_round_judges():
    rows = [answer(number, number % 30) for number in range(60)]
    again = rows[:50]  # after a round up to a29, all prompts come again, and no other
    assert (
        split_newest(again, "a29", 8, 4, MANY)["test"] == []
        and len(split_newest(again, "a29", 8, 4, MANY)["train"]) == 30
    )
    new = [*again, *(answer(number, number) for number in range(50, 60))]
    splits = split_newest(new, "a29", 4, 2, MANY)
    assert [row.id for row in splits["test"]] == ["a59", "a58", "a57", "a56"]
    assert [row.id for row in splits["val"]] == ["a55", "a54"]
    assert len(splits["train"]) == 30 + 4


def turns(number: int, count: int, prompt: int) -> list[Answer]:
    """The turns of a conversation, each of which begins with the turn before and its answer."""
    texts = [[prompt, *range(100, 100 + turn)] for turn in range(1, count + 1)]
    return [
        Answer(f"a{number + turn}", "", "", "train", [*text, 101 + turn], [0] * len(text) + [1], len(text), 1, True)
        for turn, text in enumerate(texts)
    ]


def test_the_turns_of_a_conversation_are_in_one_split_and_only_the_newest_judges():
    rows = [row for number in range(12) for row in turns(3 * number, 3, number)]
    splits = split_newest(rows, "", 4, 2, MANY)
    assert [row.id for row in splits["test"]] == ["a35", "a32", "a29", "a26"]
    assert [row.id for row in splits["val"]] == ["a23", "a20"]
    assert {row.id for row in splits["train"]} == {f"a{number}" for number in range(18)}
    # a conversation that goes on after a round was trained on, and does not judge
    splits = split_newest([*rows, *turns(36, 4, 11)[3:], *turns(40, 1, 50)], "a35", 4, 2, MANY)
    assert [row.id for row in splits["test"]] == ["a40"]


def test_prompts_that_begin_with_another_prompt_alone_are_conversations_of_their_own():
    rows = [Answer("short", "", "", "train", [1, 7], [0, 1], 1, 1, True)]
    rows += [Answer(f"a{n}", "", "", "train", [1, 50 + n, 7], [0, 0, 1], 2, 1, True) for n in range(20)]
    splits = split_newest(rows, "", 8, 4, MANY)
    assert [len(splits[name]) for name in ("test", "val", "train")] == [8, 4, 9]


def test_a_training_takes_the_newest_prompts_as_far_as_it_can_read_them():
    rows = [answer(number, number) for number in range(100)]  # three tokens each
    splits = split_newest(rows, "", 8, 4, 60)
    assert [row.id for row in splits["train"]] == [f"a{number}" for number in range(87, 67, -1)]


def test_a_drafter_as_good_as_its_rivals_rarely_leaves_however_many_they_are():
    rng, count = np.random.default_rng(2), 1000
    for num_rivals in (1, 8):
        lengths = np.exp(rng.normal(0.0, 0.2, [count, num_rivals + 1, 24]))
        false = sum(is_worse(drawn[0], dict(zip("abcdefgh", drawn[1:], strict=False))) for drawn in lengths)
        assert false / count < 0.04


def test_new_prompts_are_counted_from_the_last_round_on():
    rows = [answer(number, number % 8) for number in range(10)]
    assert [len(new_prompts(rows, newest)) for newest in ("", "a3", "a9", "gone")] == [8, 4, 0, 8]


class Rounds:
    """Rounds of a learner whose training and comparison are stubs."""

    def __init__(self, tmp_path, monkeypatch) -> None:
        learn = LearnConfig(folder=str(tmp_path / "ring"))
        self.cfg = LearnCommandConfig(learn=learn, runs_dir=str(tmp_path / "runs"), action="run")
        self.cfg.traffic_dir.mkdir()
        save_json_atomic(self.cfg.traffic_dir / "stream.json", asdict(StreamRecord(STREAM, 1, [])))
        self.target = SimpleNamespace(name="smollm2-135m", fingerprint="f", device=torch.device("cpu"))
        monkeypatch.setattr(traffic, "default_drafters", lambda runs: [])
        monkeypatch.setattr(TrafficLearner, "training_config", lambda self, name, *_: name)
        monkeypatch.setattr(TrafficLearner, "judge", lambda *_: Verdict(Gain("general", 0.1, 0.05, 0.15)))
        self.during = lambda pace: None  # what happens while a round trains

    def artifact(self, kind: str, name: str) -> Path:
        return artifact_dir(self.cfg.runs_dir, self.target.name, kind, name)

    def train(self, name: str, target, answers, callbacks) -> Path:
        self.write("drafters", name)
        self.during(callbacks[0])
        return self.artifact("drafters", name)

    def write(self, kind: str, name: str) -> None:
        with artifact_run(self.artifact(kind, name), kind, self.target, {}).write() as folder:
            (folder / "weights").write_text("weights")

    def learner(self) -> TrafficLearner:
        return TrafficLearner(self.cfg, self.target, self.train)

    def round(self, kind: str = "sql") -> LearnedVersion | None:
        splits = {split: [answer(number, number)] for number, split in enumerate(("train", "val", "test"))}
        learner = self.learner()
        return learner.learn(kind, splits, "a2", LearnedRecord.read(learner.folder))

    def record(self) -> LearnedRecord:
        return LearnedRecord.read(self.cfg.traffic_dir)

    def command(self, action: str) -> None:
        getattr(learn_pipeline, action)(replace(self.cfg, action={"set_frozen": "freeze"}.get(action, "status")))

    def status(self, capsys) -> dict[str, str]:
        """The table of `learn status`: row -> text."""
        self.command("show_status")
        cells = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()]
        return {cell[1]: cell[2] for cell in cells if len(cell) > 2}

    def left_over(self) -> list[str]:
        return [
            path.name for path in Path(self.cfg.runs_dir).rglob("*") if "weights" in path.name or ".arrow" in path.name
        ]


@pytest.fixture
def rounds(tmp_path, monkeypatch) -> Rounds:
    return Rounds(tmp_path, monkeypatch)


def test_a_version_joins_and_the_texts_that_it_was_trained_on_are_deleted(rounds):
    assert rounds.round().name == "sql-traffic-0a1b-v1" and rounds.record().training == ""
    assert rounds.artifact("drafters", "sql-traffic-0a1b-v1").exists() and rounds.left_over() == ["weights"]


def test_deleting_ends_a_round_at_its_next_batch_and_leaves_nothing_of_it(rounds):
    def delete(pace: Pace) -> None:
        rounds.command("delete")
        assert rounds.left_over() == []  # at once, not at the end of the round
        with pytest.raises(OutdatedRoundError):
            pace.on_train_batch_end(None, None)
        pace.check()

    rounds.during = delete
    assert rounds.round() is None
    assert rounds.left_over() == [] and rounds.record() == LearnedRecord(num_deletions=1, num_versions=0)


def test_deleting_after_a_killed_round_deletes_its_texts(rounds):
    rounds.round()

    def kill(pace: Pace) -> None:
        raise SystemExit

    rounds.during = kill
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(TrafficLearner, "delete_unfinished", lambda self: None)  # as in a process that was killed
        rounds.round()
    assert rounds.artifact("answers", "sql-traffic-0a1b-v2").exists()
    rounds.command("delete")
    assert rounds.left_over() == []


def test_the_next_learner_deletes_what_a_killed_round_has_left(rounds):
    def fail(pace: Pace) -> None:
        raise ArtifactError("the disk is full")

    rounds.during = fail
    with pytest.raises(ArtifactError, match="disk is full"):
        rounds.round()
    assert rounds.left_over() == []
    rounds.write("answers", "traffic-1-0a1b-v1")
    update_record(rounds.cfg.traffic_dir, lambda record: replace(record, training="traffic-1-0a1b-v1"))
    rounds.learner()
    assert rounds.left_over() == [] and rounds.record().training == ""


@pytest.mark.parametrize("command", ["set_frozen", "roll_back"])
def test_a_round_that_is_under_way_adds_nothing_after_a_freeze_or_a_rollback(rounds, command):
    rounds.round()
    rounds.during = lambda pace: rounds.command(command)
    assert rounds.round() is None
    assert [version.name for version in rounds.record().versions] == ["sql-traffic-0a1b-v1"]
    assert not rounds.artifact("drafters", "sql-traffic-0a1b-v2").exists()


def test_a_named_expert_is_rolled_back(rounds):
    rounds.round()
    rounds.round("chat")
    with pytest.raises(ConfigError, match=r"no learned expert x drafts; type name= with one of sql-.*, chat-"):
        learn_pipeline.roll_back(replace(rounds.cfg, action="rollback", name="x"))
    learn_pipeline.roll_back(replace(rounds.cfg, action="rollback", name="sql-traffic-0a1b-v1"))
    assert rounds.record().drafters == {"chat": "chat-traffic-0a1b-v2"}


def test_rolling_back_again_and_again_ends_at_the_drafters_before(rounds):
    for _ in range(3):
        rounds.round()
    drafting = []
    for _ in range(2):
        rounds.command("roll_back")
        drafting.append(rounds.record().drafters)
    # the first version was deleted when the third one joined, and the third one was taken back already
    assert drafting == [{"sql": "sql-traffic-0a1b-v2"}, {}]


def test_a_rollback_brings_back_what_was_replaced_and_nothing_worse(rounds, monkeypatch):
    rounds.round()  # v1
    worse = Verdict(Gain("general", 0.1, 0.05, 0.15), 0.1, incumbent_leaves=True)
    with monkeypatch.context() as patch:
        patch.setattr(TrafficLearner, "judge", lambda *_: worse)
        rounds.round()  # v2 joins, and v1 was worse than another drafter
    rounds.round()  # v3 replaces v2
    rounds.command("roll_back")
    assert rounds.record().drafters == {"sql": "sql-traffic-0a1b-v2"}
    rounds.round()  # v4 replaces v2
    rounds.command("roll_back")
    assert rounds.record().drafters == {"sql": "sql-traffic-0a1b-v2"}  # not v3, which was taken back
    rounds.command("roll_back")
    assert rounds.record().drafters == {}  # not v1


def test_an_expert_that_is_trained_or_rolled_back_does_not_draft_wherever_its_traffic_is(rounds):
    def absent() -> set[str]:
        return absent_drafters(rounds.cfg.runs_dir, rounds.target.name)

    during = []
    rounds.during = lambda pace: during.append(absent())
    rounds.round()
    assert during == [{"sql-traffic-0a1b-v1"}] and absent() == set()
    rounds.command("roll_back")
    assert absent() == {"sql-traffic-0a1b-v1"}


def test_texts_of_a_killed_round_are_deleted_once_its_learner_has_ended(rounds):
    name = "sql-traffic-0a1b-v1"
    rounds.write("answers", name)
    rounds.write("drafters", name)
    update_record(rounds.cfg.traffic_dir, lambda record: replace(record, training=name))
    lock = lock_learner(rounds.cfg.traffic_dir)
    delete_texts(rounds.cfg.traffic_dir, rounds.cfg.runs_dir, rounds.target.name)
    assert rounds.artifact("answers", name).exists()
    os.close(lock)
    delete_texts(rounds.cfg.traffic_dir, rounds.cfg.runs_dir, rounds.target.name)
    assert not rounds.artifact("answers", name).exists() and rounds.artifact("drafters", name).exists()


def test_a_killed_deletion_revives_no_expert_and_the_next_one_ends_it(rounds, capsys):
    def kill(*_) -> None:
        raise SystemExit

    for _ in range(3):
        rounds.round()  # the first version is deleted as the third one joins
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(learn_pipeline, "delete_learned", kill)
        rounds.command("delete")
    names = {path.name for path in rounds.artifact("drafters", "x").parent.glob("[!.]*")}
    assert names == {f"sql-traffic-0a1b-v{number}" for number in (2, 3)}
    assert names <= absent_drafters(rounds.cfg.runs_dir, rounds.target.name)
    rounds.command("delete")
    assert rounds.left_over() == [] and rounds.record() == LearnedRecord(num_deletions=2, num_versions=3)
    assert "and 2 drafters learned from them" in capsys.readouterr().out


def test_a_command_for_another_target_or_folder_of_runs_changes_nothing(rounds, tmp_path):
    rounds.round()
    stream = StreamRecord(STREAM, 1, [], {"target": rounds.target.name})
    save_json_atomic(rounds.cfg.traffic_dir / "stream.json", asdict(stream))
    before = rounds.record()
    for action in ("status", "run", "rollback", "export", "delete"):
        cfg = replace(rounds.cfg, action=action, target=replace(rounds.cfg.target, name="tiny"))
        with pytest.raises(ConfigError, match="holds traffic of target 'smollm2-135m', but this command is for 'tiny'"):
            learn_pipeline.run(cfg)
    for action in ("rollback", "export", "delete"):
        cfg = replace(rounds.cfg, action=action, runs_dir=str(tmp_path / "elsewhere"))
        with pytest.raises(ConfigError, match=r"are not in .*elsewhere; type runs_dir="):
            learn_pipeline.run(cfg)
    assert rounds.record() == before and rounds.left_over() != []
    learn_pipeline.run(replace(rounds.cfg, action="delete"))
    assert rounds.left_over() == []


def test_the_status_does_without_shards_that_a_full_ring_deletes_meanwhile(rounds, monkeypatch, capsys):
    shard = rounds.cfg.traffic_dir / "shard-00000000.arrow"
    shard.write_bytes(encode_shard([(0, answer(0, 1))]))
    shards = [*served_shards(rounds.cfg.traffic_dir)]
    shard.unlink()
    monkeypatch.setattr(learn_pipeline, "served_shards", lambda folder: shards)
    rounds.command("show_status")
    printed = capsys.readouterr().out
    assert "1 now" in printed and "oldest" not in printed


def test_the_status_says_what_runs_and_how_far_each_kind_is_from_its_next_expert(rounds, monkeypatch, capsys):
    lock = lock_learner(rounds.cfg.traffic_dir)
    update_record(rounds.cfg.traffic_dir, lambda record: replace(record, min_answers=96))
    table = rounds.status(capsys)
    assert table["recording"] == "not running" and table["learning"] == "running"
    assert table["next expert"] == "all kinds: 0 new prompts at the last look; needs 96"
    os.close(lock)
    learner = rounds_of(rounds, monkeypatch, {"sql": [answer(number, number % 5) for number in range(7)]})
    assert learner.round() is None
    table = rounds.status(capsys)
    assert table["learning"] == "not running" and table["next expert"].startswith(
        "sql: 5 new prompts at the last look; needs 96"
    )
    rounds.round("sql")
    assert rounds.status(capsys)["next expert"].startswith("sql: 0 new")


@pytest.mark.parametrize(
    "typed",
    [{"limit": 3}, {"max_new_tokens": 9}, {"old_prompts": 3}, {"retrieval": False}, {"seeds": [1]}, {"name": "x"}],
)
def test_a_key_that_an_action_does_not_read_is_refused(typed):
    with pytest.raises(
        ConfigError, match=rf"{next(iter(typed))}= is read by learn .*replay.* only, not by learn delete"
    ):
        LearnCommandConfig(action="delete", **typed)


def rounds_of(rounds, monkeypatch, by_kind: dict[str, list[Answer]]) -> TrafficLearner:
    """A learner that finds these answers of each kind of traffic."""

    def answers(self: TrafficLearner) -> dict[str, list[Answer]]:
        kinds = {row.id: kind for kind, rows in by_kind.items() for row in rows}
        self.kinds = {name: kinds[name] for name in sorted(kinds, key=lambda name: int(name[1:]))}
        return by_kind

    monkeypatch.setattr(TrafficLearner, "answers", answers)
    rounds.cfg = replace(rounds.cfg, learn=replace(rounds.cfg.learn, min_answers=10, held_out=4))
    return rounds.learner()


def test_a_kind_that_cannot_be_learned_keeps_no_other_from_being_learned(rounds, monkeypatch):
    def train(name: str, *args) -> None:
        if name.startswith("sql"):
            raise ArtifactError("no expert of sql")

    monkeypatch.setattr(rounds, "train", train)
    rows = [answer(number, number) for number in range(70)]
    learner = rounds_of(rounds, monkeypatch, {"sql": rows[:40], "chat": rows[40:]})
    assert learner.round().kind == "chat"
    with pytest.raises(ArtifactError, match="no expert of sql"):
        learner.round()


def test_prompts_before_the_last_round_stay_old_if_its_newest_answer_is_of_another_kind_now(rounds, monkeypatch):
    rounds_begun = []
    monkeypatch.setattr(TrafficLearner, "learn", lambda self, kind, *_: rounds_begun.append(kind))
    rows = [answer(number, number) for number in range(33)]
    learner = rounds_of(rounds, monkeypatch, {"chat": [rows[29]], "sql": rows[:29] + rows[30:]})
    update_record(learner.folder, lambda record: replace(record, newest={"sql": "a29"}))
    assert learner.round() is None and rounds_begun == []  # three prompts are new
    assert learner.newest_used(rows[:29] + rows[30:], "a29") == "a28"


@pytest.mark.parametrize(
    ("kind", "folder", "is_expert"),
    [("eagle3", "adapter", True), ("eagle3", "", False), ("retrieval", "adapter", False)],
)
def test_an_expert_continues_lora_experts_alone(tmp_path, kind, folder, is_expert):
    (tmp_path / folder).mkdir(exist_ok=True)
    runs = SimpleNamespace(summary=lambda name: SimpleNamespace(kind=kind), find=lambda name: tmp_path)
    assert is_adapter(runs, "sql") == is_expert


def test_a_record_of_an_earlier_version_opens(tmp_path):
    update_record(tmp_path, lambda record: replace(record, versions=[version(1)]))
    path = tmp_path / "learning" / "learned.json"
    values = json.loads(path.read_text())
    del values["num_versions"], values["versions"][0]["replaces"], values["versions"][0]["base_gain"]
    del values["versions"][0]["first"], values["versions"][0]["first_gain"]
    path.write_text(json.dumps(values))
    assert LearnedRecord.read(tmp_path) == LearnedRecord([version(1)], num_versions=1)


def test_a_record_names_the_newest_of_the_versions_that_have_left(monkeypatch):
    monkeypatch.setattr(learned, "MOST_VERSIONS", 2)
    versions = [version(number, state=LEFT) for number in range(1, 7)]
    versions[2] = replace(versions[2], state=JOINED, replaces=versions[0].name)
    assert LearnedRecord(versions).shortened().versions == [versions[0], versions[2], *versions[4:]]


def test_a_damaged_record_keeps_no_server_from_starting_or_ending(tmp_path):
    update_record(tmp_path, lambda record: replace(record, training="sql-traffic-0a1b-v1"))
    (tmp_path / "learning" / "learned.json").write_text("{")
    delete_texts(tmp_path, str(tmp_path), "tiny")


def test_a_bundle_is_not_replaced_and_the_error_says_what_to_type(rounds):
    rounds.round()
    (Path(rounds.cfg.runs_dir) / rounds.target.name / "bundles" / "traffic").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"bundles/traffic exists already; type name=OTHER"):
        rounds.command("export_learned")


def test_two_processes_do_not_learn_from_one_folder(tmp_path):
    lock = lock_learner(tmp_path)
    with pytest.raises(ConfigError, match="another process learns from"):
        lock_learner(tmp_path)
    threading.Timer(ASKED_S / 2, os.close, [lock]).start()  # as where `learn status` asks whether a learner runs
    os.close(lock_learner(tmp_path))


def test_the_record_names_the_newest_drafter_of_each_kind(tmp_path):
    versions = [version(1), version(2, state=LEFT), version(3, "traffic-1")]
    update_record(tmp_path, lambda record: replace(record, versions=versions))
    assert LearnedRecord.read(tmp_path).drafters == {"sql": "sql-traffic-0a1b-v1", "traffic-1": "traffic-1-0a1b-v3"}
    update_record(tmp_path, lambda record: record.with_state("sql-traffic-0a1b-v1", LEFT))
    assert LearnedRecord.read(tmp_path).drafters == {"traffic-1": "traffic-1-0a1b-v3"}


def test_a_share_of_the_cores_is_one_of_those_that_the_process_may_use(monkeypatch):
    threads = []
    monkeypatch.setattr(traffic.torch, "set_num_threads", threads.append)
    for name, function in (("nice", int), ("sched_setscheduler", print), ("cpu_count", lambda: 64)):
        monkeypatch.setattr(traffic.os, name, function, raising=False)
    monkeypatch.setattr(traffic.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert (traffic.spare_the_machine(0.25), threads) == (0.5, [1])


def test_training_works_for_its_share_of_the_time():
    pace, began, worked = Pace(0.25), time.monotonic(), 0.0
    for _ in range(5):
        start = time.monotonic()
        time.sleep(0.01)
        worked += time.monotonic() - start
        pace.on_train_batch_end(None, None)
    assert worked / (time.monotonic() - began) < 0.35
