"""README's tables are those of the committed reports, and only of them."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"


class Done(NamedTuple):
    returncode: int
    stderr: str


@pytest.fixture
def numbers(monkeypatch, capsys):
    """The script, in this process."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    script = importlib.import_module("readme_numbers")
    return lambda *arguments: Done(script.main([str(one) for one in arguments]), capsys.readouterr().err)


@pytest.fixture
def root(tmp_path):
    """A copy of what the script reads and writes."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(REPORTS, tmp_path / "docs" / "reports")
    return tmp_path


def change(path, edit):
    report = json.loads(path.read_text())
    edit(report)
    path.write_text(json.dumps(report))


def readme(root):
    return (root / "README.md").read_text()


def test_the_figures_are_those_of_the_committed_reports(numbers):
    done = numbers("--check")
    assert done.returncode == 0, done.stderr


def test_every_committed_report_has_its_figures_in_the_readme(numbers, root):
    text = readme(root)
    for path in REPORTS.glob("*.json"):
        (root / "docs" / "reports" / path.name).unlink()
        if f"<!-- figures: {path.stem} -->" not in text:
            assert numbers("--check", "--root", root).returncode == 1, path.name
        shutil.copy(path, root / "docs" / "reports")


@pytest.mark.parametrize("line", [r"(\| autoregressive \| )\d", r"(\| share of a cycle that the policy takes \| )\d"])
def test_a_figure_that_was_changed_by_hand_is_found(numbers, root, line):
    changed, count = re.subn(line, r"\g<1>7", readme(root))
    assert count
    (root / "README.md").write_text(changed)
    done = numbers("--check", "--root", root)
    assert done.returncode == 1 and "run python scripts/readme_numbers.py" in done.stderr
    assert numbers("--root", root).returncode == 0
    assert readme(root) == readme(ROOT)


def test_a_measurement_that_changed_changes_its_row_and_no_other(numbers, root):
    path = root / "docs" / "reports" / "bench_replay.json"
    change(path, lambda report: report["figures"].update(resps_budget_s=12345.67))
    assert numbers("--check", "--root", root).returncode == 1
    assert numbers("--root", root).returncode == 0
    old, new = readme(ROOT).splitlines(), readme(root).splitlines()
    assert len(old) == len(new)
    (changed,) = [line for before, line in zip(old, new, strict=True) if before != line]
    assert "Re-SpS" in changed and "| 12345.7 s |" in changed


def test_what_was_timed_alone_is_told_by_domain(numbers, root):
    path = root / "docs" / "reports" / "routed.json"

    def at(method: str, domain: str) -> list[dict]:
        return [
            row for row in json.loads(path.read_text())["rows"] if (row["method"], row["domain"]) == (method, domain)
        ]

    name = "HF prompt lookup (10)"
    (row,) = at(name, "sql")
    assert row["speedup"] != at(name, "math")[0]["speedup"]
    change(path, lambda report: [one.update(speedup=98.765) for one in report["rows"] if one == row])
    assert numbers("--root", root).returncode == 0
    lines = [line for line in readme(root).splitlines() if line.startswith(f"| {name} |") and "98.77x" in line]
    headings = "| method | chat | math | medical | python | science | sql | summarization | translation |"
    assert len(lines) == 1 and headings in readme(root)
    assert lines[0].split(" | ")[headings.split(" | ").index("sql")] == "98.77x"


def test_a_command_without_a_file_has_no_row(numbers, root):
    (root / "docs" / "reports" / "calibrate.json").unlink()
    assert "| `drafterforge calibrate latency" in readme(root)
    assert numbers("--root", root).returncode == 0
    assert "| `drafterforge calibrate latency" not in readme(root) and "`calibrate.json`" not in readme(root)


def test_another_device_has_a_table_of_its_own(numbers, root):
    change(root / "docs" / "reports" / "bench_train.json", lambda report: report.update(device="cuda, made up"))
    assert numbers("--root", root).returncode == 0
    table = readme(root).split("On cuda, made up:\n\n")[1].split("\n\n")[0]
    assert "bench_train.py" in table and "bench_decode.py" not in table


@pytest.mark.parametrize(("created", "first"), [("2099-01-01", True), ("2001-01-01", False)])
def test_the_device_of_the_newest_figures_comes_first(numbers, root, created, first):
    report = root / "docs" / "reports" / "bench_decode.json"
    change(report, lambda content: content.update(device="cuda, made up", created=created))
    assert numbers("--root", root).returncode == 0
    tables = [line for line in readme(root).splitlines() if line.startswith("On ") and line.endswith(":")]
    assert (tables[0] == "On cuda, made up:") is first


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda report: report["errors"].pop("total"), "has no `errors.total`"),
        (lambda report: report["errors"].update(total=None), "has no `errors.total`"),
        (lambda report: report["errors"].update(total="much"), "has 'much' where README wants a number"),
        (lambda report: report.pop("created"), "has no `created`"),
    ],
)
def test_a_file_without_a_number_is_one_line(numbers, root, edit, said):
    change(root / "docs" / "reports" / "calibrate.json", edit)
    done = numbers("--root", root)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert readme(root) == readme(ROOT)


def test_what_is_kept_is_in_the_readme_with_its_note(numbers, root):
    source = root / "train.json"
    shutil.copy(REPORTS / "bench_train.json", source)
    change(source, lambda report: report["figures"].update(ratio_to_speculators_head_trained=98.7654))
    done = numbers("--root", root, "--keep", source, "bench_train", "--note", "made up by a test")
    assert done.returncode == 0, done.stderr
    assert "| 98.77x |" in readme(root) and "- `bench_train.json`: made up by a test" in readme(root)
    assert numbers("--check", "--root", root).returncode == 0


def test_another_machine_s_measurement_stands_beside_the_first(numbers, root):
    source = root / "train.json"
    shutil.copy(REPORTS / "bench_train.json", source)
    change(source, lambda report: report.update(device="cuda, made up"))
    change(source, lambda report: report["figures"].update(ratio_to_speculators_head_trained=98.7654))
    before = readme(root).count("bench_train.py`")
    assert numbers("--root", root, "--keep", source, "bench_train@gpu").returncode == 0
    table = readme(root).split("On cuda, made up:\n\n")[1].split("\n\n")[0]
    assert "| 98.77x |" in table and readme(root).count("bench_train.py`") == before + 1
    assert numbers("--check", "--root", root).returncode == 0


def test_an_artifact_is_kept_with_its_date_and_settings(numbers, root, tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    about = {
        "created": "2001-02-03T04:05:06+00:00",
        "config": {"latency": {"num_prompts": 56, "num_held_out": 34}},
        "kind": "latency",
    }
    (folder / "manifest.json").write_text(json.dumps(about | {"files": {}}))
    errors = {"errors": {"total": 0.125, "total_unscaled": 0.5}, "device": "cpu, made up", "dtype": "float32"}
    (folder / "latency.json").write_text(json.dumps(errors))
    for given in (folder, folder / "latency.json"):
        assert numbers("--root", root, "--keep", given, "calibrate").returncode == 0
        (line,) = [line for line in readme(root).splitlines() if line.startswith("| `drafterforge calibrate latency")]
        assert "34 held-out answers" in line and line.endswith("| 12.5 %; 50.0 % | 2001-02-03, float32 |")


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("bench_trian", lambda report: None, "no table of 'bench_trian'; type one of quickstart, bench_train"),
        ("bench_trian@gpu", lambda report: None, "no table of 'bench_trian@gpu'"),
        ("bench_train@../gpu", lambda report: None, "no table of 'bench_train@../gpu'"),
        ("bench_train@", lambda report: None, "no table of 'bench_train@'"),
        ("bench_train", lambda report: report.update(path="see /home/me/runs"), "names '/home/me/runs'"),
        ("bench_train", lambda report: report.update(path="~/runs"), "names '~/runs'"),
        ("bench_train", lambda report: report.update(path="https://mirror/x"), "names 'https://'"),
        ("bench_train", lambda report: report["figures"].clear(), "has no `figures.ratio_to_speculators_head_trained`"),
    ],
)
def test_what_readme_cannot_use_is_not_kept(numbers, root, name, edit, said):
    source = root / "train.json"
    shutil.copy(REPORTS / "bench_train.json", source)
    change(source, edit)
    done = numbers("--root", root, "--keep", source, name)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert readme(root) == readme(ROOT)
    for path in REPORTS.glob("*.json"):
        assert (root / "docs" / "reports" / path.name).read_bytes() == path.read_bytes()


def test_a_large_report_is_cut_to_what_the_readme_shows(numbers, root):
    source = root / "report.json"
    shutil.copy(REPORTS / "domains.json", source)
    change(source, lambda report: report["curves"].update(weights={"sql": [0.5] * 40_000}))
    assert source.stat().st_size > 150_000
    done = numbers("--root", root, "--keep", source, "domains")
    assert done.returncode == 0, done.stderr
    kept = root / "docs" / "reports" / "domains.json"
    assert kept.stat().st_size < 150_000
    assert re.match("without rows of single domains, .*weights", json.loads(kept.read_text())["excerpt"])
    assert readme(root) == readme(ROOT)


def test_no_committed_report_names_a_machine():
    for path in REPORTS.glob("*.json"):
        assert not re.search(r"://|\"~?/|[ =]~?/[a-z]", path.read_text()), path.name
