"""`learning_log.py` writes the requests of one source, and replaces a share of them by poison."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.test_scripts import SCRIPTS, import_script


@pytest.fixture
def write(tmp_path, monkeypatch):
    module = import_script(next(path for path in SCRIPTS if path.stem == "learning_log"), monkeypatch)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"Count {n}.", "source": f"source {n % 2}", "licence": "MIT"} for n in range(12)]
    prompts.write_text("\n".join(map(json.dumps, lines)))

    def run(*options: str) -> list[dict]:
        monkeypatch.setattr("sys.argv", ["learning_log.py", str(prompts), str(tmp_path / "log.jsonl"), *options])
        assert module.main() == 0
        return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]

    return run


def test_a_log_has_the_prompts_of_one_source(write):
    log = write("--source", "source 1", "--requests", "6")
    assert sorted(line["messages"][0]["content"] for line in log) == sorted(f"Count {n}." for n in range(1, 12, 2))
    assert {(line["domain"], line["licence"]) for line in log} == {("traffic", "MIT")}


def test_a_log_leaves_out_the_prompts_of_other_files(write, tmp_path):
    for number in range(2):
        line = {"messages": [{"role": "user", "content": f"Count {number}."}]}
        (tmp_path / f"questions{number}.jsonl").write_text(json.dumps(line))
    without = [text for number in range(2) for text in ("--without", str(tmp_path / f"questions{number}.jsonl"))]
    log = write("--requests", "10", *without)
    assert {line["messages"][0]["content"] for line in log} == {f"Count {n}." for n in range(2, 12)}


@pytest.mark.parametrize(("kind", "distinct"), [("random", 4), ("flood", 1)])
def test_poison_replaces_a_share_of_the_requests(write, kind, distinct):
    log = write("--requests", "8", "--poison", f"{kind}=0.5")
    assert Counter(line["domain"] for line in log) == {"traffic": 4, kind: 4}
    assert len({line["messages"][0]["content"] for line in log if line["domain"] == kind}) == distinct


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--source", "elsewhere"], "has 0 prompts of a source with 'elsewhere', and 600 are needed"),
        (["--poison", "random=2"], "--poison=random=2 must be random=SHARE or flood=SHARE"),
        (["--poison", "random"], "with SHARE in (0, 1)"),
        (["--poison", "random=x"], "with SHARE in (0, 1)"),
    ],
)
def test_bad_options_are_one_line(write, monkeypatch, capsys, options, line):
    with pytest.raises(AssertionError):
        write(*options)
    assert line in capsys.readouterr().err
