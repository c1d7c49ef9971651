"""The drafters of a running engine follow the learner's record."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafterforge.artifacts import learned
from drafterforge.artifacts.learned import JOINED, LEFT, LearnedRecord, LearnedVersion, update_record
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError
from drafterforge.runtime.arms import ArmKnowledge, RowArms
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from drafterforge.server import learning
from drafterforge.server.learning import LearnedDrafters, Learning
from drafterforge.tree.grow import TreeShape

VERSION = LearnedVersion("traffic-1-v1", "traffic-1", JOINED, "general", 0.1, 0.05, 0.15, 9, 9, "2026-11-25")


def learned_drafters(tmp_path, monkeypatch) -> LearnedDrafters:
    """Of an engine with one drafter, to which learned ones are added without files."""
    pool = Pool({"general": Retrieval()}, "static")
    add = partial(pool.add, shape=TreeShape(6, 3, 2))
    engine = SimpleNamespace(drafter=pool, add_drafter=add, remove_drafter=pool.remove)
    monkeypatch.setattr(LearnedDrafters, "_open", lambda *_: Retrieval())
    return LearnedDrafters(engine, SimpleNamespace(default_router=lambda: None), tmp_path)


@pytest.fixture
def drafters(tmp_path, monkeypatch) -> LearnedDrafters:
    return learned_drafters(tmp_path, monkeypatch)


def follow(drafters: LearnedDrafters) -> list[str]:
    drafters.poll(lambda change: change())
    return drafters.pool.names


def test_a_record_in_a_folder_that_cannot_be_read_is_not_waited_for(drafters, monkeypatch):
    monkeypatch.setattr(learned, "lock_folder", lambda folder: None)  # also of a folder that cannot be opened
    monkeypatch.setattr(learned.os, "access", lambda *_: False)
    with pytest.raises(ArtifactError, match=r"cannot read .*check its permissions"):
        update_record(drafters.folder, lambda record: record)


def test_what_a_comparison_has_shown_is_expected_of_an_expert_that_joins(drafters, monkeypatch):
    arms = ArmKnowledge(0.01)
    monkeypatch.setattr(drafters.pool, "worth", SimpleNamespace(arms=arms, forget_kinds=lambda kinds: None))
    version = replace(VERSION, base_gain=0.1, first="general", first_gain=0.2)
    update_record(drafters.folder, lambda record: replace(record, versions=[version]))
    follow(drafters)
    row = RowArms(arms, ["general", VERSION.name], advised=VERSION.name)
    assert row.beliefs[VERSION.name].mean == pytest.approx(np.log(1.2)) and row.best(0.02) == VERSION.name
    assert RowArms(arms, ["general", VERSION.name]).best(0.02) == "general"  # in requests of other kinds


def test_what_was_learned_and_left_before_leaves_the_pool(tmp_path, monkeypatch):
    update_record(tmp_path, lambda record: replace(record, versions=[VERSION]))
    drafters = learned_drafters(tmp_path, monkeypatch)
    drafters.pool.add(VERSION.name, Retrieval(), shape=TreeShape(6, 3, 2))  # it joined when the engine was opened
    update_record(tmp_path, lambda record: LearnedRecord())  # all was deleted before the first look
    assert follow(drafters) == ["general", VERSION.name]  # the record is that of an empty folder
    update_record(tmp_path, lambda record: replace(record, num_deletions=1))
    assert follow(drafters) == ["general"]


def test_a_damaged_record_is_reported_while_serving_goes_on(tmp_path, monkeypatch):
    update_record(tmp_path, lambda record: replace(record, versions=[VERSION]))
    (tmp_path / "learning" / "learned.json").write_text("{")
    learning_thread = Learning(learned_drafters(tmp_path, monkeypatch), None, lambda: None)
    monkeypatch.setattr(learning_thread.ending, "wait", lambda _: learning_thread.ending.set())
    learning_thread._work(lambda change: change())
    assert learning_thread.state == "failed"


def test_a_pool_without_a_router_sorts_requests_by_the_learner_s(tmp_path, monkeypatch):
    router = SimpleNamespace(
        kind="target",
        labels=["general", "sql"],
        probabilities=lambda features: np.array([0.01, 0.99]),
        label_shares=lambda names: np.zeros((2, len(names))),
    )
    monkeypatch.setattr(learning, "advisor", lambda source, names: router)
    drafters = learned_drafters(tmp_path, monkeypatch)
    expert = replace(VERSION, name="sql-traffic-v1", kind="sql")
    update_record(tmp_path, lambda record: replace(record, versions=[expert]))
    names = follow(drafters)
    advice = drafters.router.advice([1, 2], torch.zeros(2, 6), names, None)
    assert names[int(advice.argmax())] == "sql-traffic-v1"


def test_requests_for_which_a_learned_drafter_is_advised_are_a_kind_of_their_own(drafters, monkeypatch):
    worth = Worth(VerifyCosts((1, 5, 16), (0.01, 0.011, 0.04)))
    monkeypatch.setattr(drafters.pool, "worth", worth)
    update_record(drafters.folder, lambda record: replace(record, versions=[VERSION]))
    follow(drafters)
    assert drafters.pool.kinds == {VERSION.name: "traffic-1"}
    worth.row(0.0, 1, "traffic-1")
    update_record(drafters.folder, lambda record: record.with_state(VERSION.name, LEFT))
    follow(drafters)
    assert drafters.pool.kinds == {} and worth.traffic.keys() == {(0.0, 1, "")}


def test_a_change_that_was_not_made_yet_is_waited_for(drafters):
    queued = []
    versions = [VERSION, replace(VERSION, name="traffic-1-v2")]

    def turn(joined: int) -> None:
        states = [replace(version, state=JOINED if version is versions[joined] else LEFT) for version in versions]
        update_record(drafters.folder, lambda record: replace(record, versions=states))
        drafters.poll(queued.append)

    turn(0)
    queued.pop()()
    turn(1)
    turn(0)  # a rollback before the worker had time
    queued.pop(0)()
    drafters.poll(queued.append)
    queued.pop()()
    assert drafters.pool.names == ["general", "traffic-1-v1"] and queued == []


def test_a_version_that_does_not_open_is_reported(drafters, monkeypatch):
    monkeypatch.setattr(LearnedDrafters, "_open", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    update_record(drafters.folder, lambda record: replace(record, versions=[VERSION]))
    learning_thread = Learning(drafters, None, lambda: None)
    monkeypatch.setattr(learning_thread.ending, "wait", lambda _: learning_thread.ending.set())
    learning_thread._work(lambda change: change())
    assert learning_thread.state == "failed"


@pytest.mark.parametrize("error", [ArtifactError("its files are damaged"), RuntimeError("out of memory")])
def test_a_version_that_does_not_open_keeps_no_later_one_from_joining(drafters, monkeypatch, error):
    def fail(*_) -> None:
        raise error

    update_record(drafters.folder, lambda record: replace(record, versions=[VERSION]))
    with monkeypatch.context() as patch:
        patch.setattr(LearnedDrafters, "_open", fail)
        assert follow(drafters) == ["general"]
    later = replace(VERSION, name="traffic-1-v2")
    update_record(drafters.folder, lambda record: replace(record, versions=[later]))
    assert follow(drafters) == ["general", "traffic-1-v2"]
    update_record(drafters.folder, lambda record: LearnedRecord(num_deletions=1))
    assert follow(drafters) == ["general"]


def test_a_drafter_that_the_engine_refuses_keeps_no_other_from_joining_or_leaving(drafters, monkeypatch, caplog):
    experts = [replace(VERSION, name=f"{kind}-traffic-v{n}", kind=kind) for n, kind in ((1, "sql"), (2, "chat"))]
    update_record(drafters.folder, lambda record: replace(record, versions=[experts[1]]))
    assert follow(drafters) == ["general", "chat-traffic-v2"]

    join = drafters.engine.add_drafter

    def add(name: str, drafter: Retrieval) -> None:
        if name == "sql-traffic-v1":
            raise RuntimeError("the device is out of memory")
        join(name, drafter)

    monkeypatch.setattr(drafters.engine, "add_drafter", add)
    update_record(drafters.folder, lambda record: replace(record, versions=[experts[0], VERSION]))
    drafters.learned |= {"chat-traffic-v2"}
    assert follow(drafters) == ["general", "traffic-1-v1"]
    assert "sql-traffic-v1 does not join: the device is out of memory" in caplog.text
