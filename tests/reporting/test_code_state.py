"""A hash of the code changes with what runs, and not with comments, docstrings and blank lines."""

from __future__ import annotations

import pytest

from drafterforge.reporting import code_state as module
from drafterforge.reporting.code_state import PARTS, changed_parts, code_state, parts_behind, statements

SOURCE = '''"""Module."""


def double(x):  # twice
    """Twice x."""
    text = "# no comment"

    return 2 * x, text
'''


def test_statements_leave_out_comments_docstrings_and_blank_lines():
    assert statements(SOURCE) == 'def double(x):\n    text = "# no comment"\n    return 2 * x, text\n'


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        (lambda text: text.replace("# twice", "# two times"), False),
        (lambda text: text.replace("Twice x.", "Two\n    times x."), False),
        (lambda text: text.replace("2 * x", "3 * x"), True),
        (lambda text: text.replace("# no comment", "# none"), True),
    ],
)
def test_the_hash_of_a_part_changes_with_its_statements(tmp_path, edit, changes):
    states = []
    for folder, text in (("before", SOURCE), ("after", edit(SOURCE))):
        (tmp_path / folder / "tree").mkdir(parents=True)
        (tmp_path / folder / "tree" / "grow.py").write_text(text)
        states.append(code_state(tmp_path / folder))
    assert changed_parts(*states, list(PARTS)) == (["tree"] if changes else [])


def test_code_that_gives_the_same_figures_is_no_change(monkeypatch):
    present = {"tree": "c", "replay": "z"}
    assert changed_parts({"tree": "a", "replay": "z"}, present, ["tree", "replay"]) == ["tree"]
    monkeypatch.setattr(module, "EQUAL", {"a": "b", "b": "c", "x": "y"})
    for measured, changed in (("a", []), ("b", []), ("c", []), ("x", ["tree"]), ("y", ["tree"])):
        assert changed_parts({"tree": measured, "replay": "z"}, present, ["tree", "replay"]) == changed
    assert changed_parts({}, present, ["tree"]) == ["tree"]


def test_every_part_has_code():
    states = code_state()
    assert set(states) == set(PARTS) and len(set(states.values())) == len(PARTS)


def test_a_row_depends_on_the_code_that_decides_it():
    assert parts_behind(live=False, selector="static", schedule="static") == ["drafters", "replay", "tree"]
    assert "selectors" in parts_behind(live=False, selector="ucbspec", schedule="static")
    assert "router" in parts_behind(live=False, selector="router", schedule="static")
    live = parts_behind(live=True, selector="static", schedule="ltd")
    assert {"kernels", "runtime", "schedulers", "policy training"} <= set(live) and "replay" not in live
