"""Bars that end, honest rates, and lines for a log."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console
from rich.table import Table

from drafterforge.config import progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    """What a terminal shows."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=screen, force_terminal=True, width=100, highlight=False))
    return screen


@pytest.fixture
def log_file(monkeypatch) -> io.StringIO:
    """What is written where there is no terminal."""
    written = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=written, width=100, highlight=False))
    return written


def test_time_left_follows_the_recent_rate_and_not_the_mean():
    clock = Clock()
    rate = progress.Rate(0, clock)
    for step in range(1, 101):  # a warm-up of 100 s, then ten steps a second
        clock.now += 1.0 if step <= 100 else 0.1
        rate.reach(step)
    for step in range(101, 801):
        clock.now += 0.1
        rate.reach(step)
    assert rate.per_s == pytest.approx(10.0, rel=0.02)
    assert rate.left_s(1800) == pytest.approx(100.0, rel=0.02)


def test_time_left_grows_while_a_step_hangs_and_is_unknown_before_the_first():
    clock = Clock()
    rate = progress.Rate(5, clock)
    assert rate.left_s(10) is None
    clock.now = 2.0
    rate.reach(6)
    assert rate.left_s(10) == pytest.approx(8.0)
    clock.now = 20.0
    assert rate.left_s(10) == pytest.approx(80.0)


def test_few_slow_steps_still_give_a_rate():
    clock = Clock()
    rate = progress.Rate(0, clock)
    for step in range(1, 20):
        clock.now += 300.0
        rate.reach(step)
    assert rate.left_s(21) == pytest.approx(600.0)


@pytest.mark.parametrize(("advanced", "ended"), [(0, "1/1"), (41, "41/41")])
def test_a_bar_ends_full_although_its_total_was_a_guess(terminal, advanced, ended):
    with progress.bar("training", 56 if advanced else 1) as bar:
        for _ in range(advanced):
            bar.advance()
    assert ended in terminal.getvalue() and not re.search(r"left\s*$", terminal.getvalue())


def test_an_interrupted_bar_stays_where_it_was(terminal):
    with pytest.raises(KeyboardInterrupt), progress.bar("training", 5) as bar:
        bar.advance(2)
        raise KeyboardInterrupt
    assert "2/5" in terminal.getvalue() and "5/5" not in terminal.getvalue()


def test_a_bar_inside_a_bar_is_drawn_below_it(terminal):
    with progress.bar("outer", 2) as outer:
        with progress.bar("inner", 3):
            pass
        outer.advance(2)
    assert "3/3" in terminal.getvalue() and "2/2" in terminal.getvalue() and not progress._open


def test_a_log_gets_dated_lines_even_while_a_step_hangs(log_file, monkeypatch):
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.05)
    with progress.bar("training", 10, completed=4) as bar:
        bar.advance(1, status="loss 2.5")
        deadline = time.perf_counter() + 5
        while log_file.getvalue().count("\n") < 2 and time.perf_counter() < deadline:
            time.sleep(0.01)
    first, second, *_ = log_file.getvalue().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d training: 5/10 after \d+ s, \d+ s left, loss 2\.5$", first)
    assert "5/10" in second


def test_what_ends_within_a_minute_writes_nothing_into_a_log(log_file):
    with progress.bar("training", 10) as bar:
        bar.advance(10)
    assert log_file.getvalue() == ""


def test_texts_of_strangers_do_not_steer_the_terminal(capsys):
    hostile = "a\x1b[2J\x07\x9b31m\u202eb\nc"
    table = Table(title=hostile)
    table.add_row(hostile)
    progress.table_console().print(table)
    progress.say(hostile)
    out, err = capsys.readouterr()
    assert out.count("a\ufffd[2J") == 2 and err == "a\ufffd[2J\ufffd\ufffd31m\ufffdb\nc\n"
    assert not set(out) & set("\x1b\x07\x9b\u202e")
