"""`check_lossless.py` writes what it prints, and its exit code says whether an answer differs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.models import tiny_target

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_lossless.py"
PROMPTS = [[1, 2, 3, 1, 2, 3], [7, 8, 7, 8, 7]]


@pytest.fixture
def check_lossless(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("check_lossless", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "load_target", lambda config: tiny_target())
    monkeypatch.setattr(module, "held_out_prompts", lambda target, count, domains: PROMPTS[:count])
    return module


def test_the_file_has_the_keys_other_tools_read(check_lossless, tmp_path):
    path = tmp_path / "lossless.json"
    assert check_lossless.main(["--prompts", "2", "--max-new-tokens", "6", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert (report["bench"], report["dtype"], report["numerics"]) == ("lossless", "float32", "fast")
    assert [row["method"] for row in report["rows"]] == ["autoregressive", "retrieval", "auto"]
    assert all(row["num_prompts"] == 2 and row["num_tokens"] == 12 for row in report["rows"])
    assert report["rows"][0]["mat"] == 1
    assert report["figures"] == {"num_prompts": 2, "num_tokens": 12, "mismatches": 0}


def test_fixed_shapes_are_checked_without_the_default(check_lossless, tmp_path):
    path = tmp_path / "lossless.json"
    assert check_lossless.main(["--graphs", "--prompts", "2", "--max-new-tokens", "6", "--json", str(path)]) == 0
    assert [row["method"] for row in json.loads(path.read_text())["rows"]] == ["autoregressive", "retrieval"]


def test_an_answer_that_differs_is_counted_and_told(check_lossless, monkeypatch, tmp_path):
    monkeypatch.setattr(check_lossless, "count_mismatches", len)
    monkeypatch.setattr(
        check_lossless, "find_mismatches", lambda name, *_: [] if name == "autoregressive" else [Different]
    )
    path = tmp_path / "lossless.json"
    assert check_lossless.main(["--prompts", "1", "--max-new-tokens", "4", "--json", str(path)]) == 1
    report = json.loads(path.read_text())
    assert [row["mismatches"] for row in report["rows"]] == [0, 1, 1] and report["figures"]["mismatches"] == 2


class Different:
    """A difference that stands."""

    prompt, position, margin, rerun = 0, 2, 0.5, False
