"""What errors quote."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from drafterforge.artifacts.json_input import parse_as
from drafterforge.errors import ArtifactError, quote, shorten


@dataclass(frozen=True)
class Split:
    """What a key of a file describes."""

    lengths: list[int]


@pytest.mark.parametrize(
    ("value", "line"),
    [("plain", "plain"), ("two\n lines", "two lines"), ("\x1b[2J", "[2J"), (7, "7"), ([1, "a"], "[1, 'a']")],
)
def test_a_short_value_is_itself_in_one_line(value, line):
    assert shorten(value) == line


def test_a_long_value_is_cut():
    assert shorten("x" * 101) == "x" * 97 + "..." and len(shorten("x" * 100)) == 100
    assert quote("y" * 500) == "'" + "y" * 96 + "..." and quote("it's") == '"it\'s"'


def test_a_key_of_many_lines_is_quoted_in_one():
    with pytest.raises(ArtifactError, match=r"^index\.json\.two lines is 1, expected an object$"):
        parse_as(dict[str, Split], {"two\n\u2028lines": 1}, "index.json")
