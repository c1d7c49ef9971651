"""The README's tree names every file, and its tables are those of the committed reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tree lists what git tracks")
def test_the_tree_is_what_the_files_say():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "readme_tree.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_figures_are_those_of_the_committed_reports():
    script = [sys.executable, ROOT / "scripts" / "readme_numbers.py", "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    readme = (ROOT / "README.md").read_text()
    assert readme.count("<!-- figures: ") == len(list((ROOT / "docs" / "reports").glob("*.json"))) > 0


def test_a_figure_that_was_changed_by_hand_is_found(tmp_path):
    for name in ("scripts", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = (
        (ROOT / "scripts" / "readme_numbers.py")
        .read_text()
        .replace("Path(__file__).resolve().parents[1]", "Path.cwd()")
    )
    (tmp_path / "run.py").write_text(script)
    readme = (ROOT / "README.md").read_text()
    (tmp_path / "README.md").write_text(re.sub(r"(\| autoregressive \| )1", r"\g<1>2", readme))
    check = [sys.executable, "run.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and "run python scripts/readme_numbers.py" in done.stderr
