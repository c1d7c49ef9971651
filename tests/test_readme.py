"""The README's tree names every file."""

from __future__ import annotations

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
