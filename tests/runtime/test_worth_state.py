"""A server begins with what the one before it learned; files of another kind change nothing."""

from __future__ import annotations

import json

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.runtime.worth import Worth
from drafterforge.runtime.worth_state import load_state, save_state
from tests.runtime.test_worth import play

SECONDS = (0.010, 0.011, 0.040)


def new_worth(slower: float = 1.0) -> Worth:
    """A state without any cycles.  slower: the machine's seconds, in those of the usual machine."""
    return Worth(VerifyCosts((1, 5, 16), tuple(seconds * slower for seconds in SECONDS)))


@pytest.fixture
def learned() -> Worth:
    worth = new_worth()
    play(worth, 600, 0, 0.013)
    worth.row(0.0, 1, "traffic-1")
    worth.arms.history("sql", "general", True).add(0.2, 0.01)
    worth.arms.add_drafting("sql", 0.002)
    worth.arms.read_s.value = 0.0005
    return worth


def drafts_at_first(worth: Worth) -> bool:
    worth.plan([row := worth.row(0.0, 1)])
    return row.drafts


def test_a_state_that_was_saved_decides_as_before(learned, tmp_path):
    save_state(learned, tmp_path / "new" / "state")
    restarted = new_worth()
    assert drafts_at_first(restarted) and not drafts_at_first(learned)
    load_state(restarted, tmp_path / "new" / "state")
    assert not drafts_at_first(restarted)
    assert restarted.traffic.keys() == learned.traffic.keys() == {(0.0, 1, ""), (0.0, 1, "traffic-1")}
    assert restarted.traffic[0.0, 1, ""].pause == learned.traffic[0.0, 1, ""].pause
    assert restarted.traffic[0.0, 1, ""].net.value == learned.traffic[0.0, 1, ""].net.value
    prior, expected = (worth.arms.history("sql", "general", True).prior() for worth in (restarted, learned))
    assert prior == expected and prior.mean > 0.0


def test_a_state_of_before_there_were_kinds_is_read(learned, tmp_path):
    save_state(learned, tmp_path / "state")
    values = json.loads((tmp_path / "state").read_text())
    for entry in values["traffic"]:
        del entry["kind"]
    (tmp_path / "state").write_text(json.dumps(values))
    load_state(restarted := new_worth(), tmp_path / "state")
    assert restarted.traffic.keys() == {(0.0, 1, "")}


def test_seconds_are_those_of_the_machine_that_reads_them(learned, tmp_path):
    learned.neural_s.value = 0.005
    save_state(learned, tmp_path / "state")
    slow = new_worth(slower=3.0)
    load_state(slow, tmp_path / "state")
    expected = 3.0 * slow.costs.of(1, 1) / 0.030 * 0.005 / learned.costs.corrections[1].factor
    assert slow.neural_s.value == pytest.approx(expected)
    for mean, of_learned in (
        (slow.arms.read_s, learned.arms.read_s),
        (slow.arms.draft_s["sql"], learned.arms.draft_s["sql"]),
    ):
        assert mean.value / expected == pytest.approx(of_learned.value / 0.005)
    plain = [1.0 / worth.costs.of(1, 1) for worth in (slow, learned)]
    assert slow.rate(1) / plain[0] == pytest.approx(learned.rate(1) / plain[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("rates"),
        lambda state: state["neural"].update(value=-1.0),
        lambda state: state["traffic"][0].update(pause=10**9),
        lambda state: state["traffic"][0].update(rows=0),
        lambda state: state["traffic"][0]["net"].update(weight=0.0),
        lambda state: state["rates"][0].update(passes=0.0),
        lambda state: state["gains"][0]["square"].update(weight=0.0),
        lambda state: state["draft"]["sql"].update(value=0.0),
    ],
)
def test_damaged_files_are_refused_and_change_nothing(learned, tmp_path, change):
    path = tmp_path / "state"
    save_state(learned, path)
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    restarted = new_worth()
    with pytest.raises(ArtifactError):
        load_state(restarted, path)
    assert not restarted.traffic and not restarted.rates and restarted.neural_s.value == new_worth().neural_s.value
