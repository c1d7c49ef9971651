"""The minutes of the papers' steps follow from what their commands do."""

from __future__ import annotations

from drafterforge.reporting.papers.minutes import ANSWER_S, COMMAND_S, DRAFTS_S, PLAIN_S, POOL_S, READ_S, minutes_of
from drafterforge.reporting.papers.step import CLOCK, Step, replayed, timed
from drafterforge.reporting.papers.steps import BY_NAME, STEPS

DAY = 8 * 60


def minutes(*commands: str, folder: str = "") -> int:
    return minutes_of([Step("step", CLOCK, commands, (), folder=folder)])["step"]


def test_all_steps_whose_questions_are_at_hand_fit_into_a_day_of_work():
    by_name = minutes_of(STEPS)
    assert by_name.keys() == BY_NAME.keys() and min(by_name.values()) > 0
    assert sum(by_name.values()) - by_name["ltd-mmlu"] <= DAY


def test_shared_traces_and_profiles_count_once():
    step = BY_NAME["ltd"]
    train = step.commands[0]
    assert minutes(train, train, folder="ltd") < 2 * minutes(train, folder="ltd")
    first, second = minutes_of([step, Step("again", CLOCK, step.commands, (), folder=step.folder)]).values()
    assert second < first


def test_timed_requests_cost_an_answer_of_every_method():
    command = timed("x", ("gsm8k", "mt_bench"), 40, "general", "ucbspec")  # 120 requests
    seconds = COMMAND_S + 120 * (PLAIN_S + 2 * POOL_S + 3 * READ_S)
    assert abs(60 * minutes(command) - seconds) <= 60
    tree, large = (minutes(timed("x", ("gsm8k",), 40, f"general/{name}")) for name in ("21/3/10", "241/9/10"))
    assert tree < large


def test_replays_cost_the_answers_and_their_drafts_by_every_drafter():
    few, more = (minutes(replayed("domains", "x", f"suite.num_prompts={count}", "ucbspec")) for count in (400, 800))
    assert few < more < 2 * few
    assert 60 * more >= COMMAND_S + 800 * (ANSWER_S + 11 * DRAFTS_S)
