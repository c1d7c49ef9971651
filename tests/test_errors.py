"""What errors quote."""

from __future__ import annotations

import pytest

from drafterforge.errors import quote, shorten


@pytest.mark.parametrize(
    ("value", "line"),
    [("plain", "plain"), ("two\n lines", "two lines"), ("\x1b[2J", "[2J"), (7, "7"), ([1, "a"], "[1, 'a']")],
)
def test_a_short_value_is_itself_in_one_line(value, line):
    assert shorten(value) == line


def test_a_long_value_is_cut():
    assert shorten("x" * 101) == "x" * 97 + "..." and len(shorten("x" * 100)) == 100
    assert quote("y" * 500) == "'" + "y" * 96 + "..." and quote("it's") == '"it\'s"'
