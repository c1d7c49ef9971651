"""docs/results.md and its picture are what docs/reports say, and scripts/results.py refuses what it cannot show."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from drafterforge.reporting.papers.page import render_papers

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return lambda *arguments: importlib.import_module("results").main([str(argument) for argument in arguments])


@pytest.fixture
def root(tmp_path):
    """A copy of what the script reads and writes."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def change(root, name, edit):
    path = root / "docs" / "reports" / f"{name}.json"
    report = json.loads(path.read_text())
    edit(report)
    path.write_text(json.dumps(report))
    return path


def test_the_page_and_the_picture_are_what_the_reports_say(results, capsys):
    assert results("--check") == 0, capsys.readouterr().err


def test_the_papers_tables_are_what_their_reports_say_and_every_empty_cell_has_a_reason(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("papers_tables")
    _, evidence, tables = module.documented(ROOT)
    page = render_papers(evidence, tables, module.shipped_drafters("smollm2-135m"))
    assert (ROOT / "docs" / "papers.md").read_text() == page
    assert "earlier pool" not in render_papers(evidence, tables)
    assert "earlier pool" in render_papers(evidence, tables, {"general": "another"})
    assert [cell for table in tables for cell in table.unexplained] == []


@pytest.mark.parametrize("file", ["results.md", "figures/speed.svg"])
def test_a_figure_that_was_changed_by_hand_is_noticed(results, root, file, capsys):
    path = root / "docs" / file
    path.write_text(re.sub(r"1\.\d\dx", "9.87x", path.read_text(), count=1))
    assert results("--check", "--root", root) == 1
    assert f"{path} is out of date" in capsys.readouterr().err
    assert results("--root", root) == 0 and results("--check", "--root", root) == 0


def test_a_report_that_changed_changes_its_section(results, root):
    change(root, "bench_replay", lambda report: report["figures"].update(resps_budget_s=12345.67))
    assert results("--root", root) == 0
    assert "| 12345.7 |" in (root / "docs" / "results.md").read_text()


def test_a_measurement_that_is_older_than_the_pool_says_so(results, root):
    def section_dated(created):
        change(root, "domains", lambda report: report.update(created=created))
        assert results("--root", root) == 0
        page = (root / "docs" / "results.md").read_text()
        return page.split("\n## Speed on prompts of eight domains\n")[1].split("\n## ")[0]

    assert "Measured with an earlier pool" in section_dated("2001-02-03T04:05:06+00:00")
    assert "earlier pool" not in section_dated("2999-02-03T04:05:06+00:00")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda report: report["errors"].pop("total"), "has no `errors.total`"),
        (lambda report: report["errors"].update(total="much"), "has 'much' where the index wants a number"),
        (lambda report: report.pop("created"), "has no `created`"),
    ],
)
def test_a_report_without_a_number_is_one_line(results, root, edit, message, capsys):
    change(root, "calibrate", edit)
    assert results("--root", root) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_every_report_is_in_the_index(results, root, capsys):
    shutil.copy(root / "docs" / "reports" / "calibrate.json", root / "docs" / "reports" / "unknown.json")
    assert results("--root", root) == 2
    assert "does not list unknown" in capsys.readouterr().err


def test_a_measurement_of_another_machine_is_shown_beside_the_first(results, root):
    source = root / "train.json"
    shutil.copy(root / "docs" / "reports" / "bench_train.json", source)
    source.write_text(source.read_text().replace("cpu, 2 threads", "cuda, invented"))
    assert results("--root", root, "--keep", source, "bench_train@gpu") == 0
    training = (root / "docs" / "results.md").read_text().split("\n## Training\n")[1].split("\n## ")[0]
    assert training.count("bench_train.py") == 2 and "cuda, invented" in training


def test_an_artifact_is_kept_with_the_date_and_settings_of_its_manifest(results, root, tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    config = {"latency": {"num_prompts": 56, "num_held_out": 34}}
    (folder / "manifest.json").write_text(json.dumps({"created": "2001-02-03T04:05:06+00:00", "config": config}))
    (folder / "latency.json").write_text(json.dumps({"errors": {"total": 0.125}, "device": "cpu", "dtype": "float32"}))
    assert results("--root", root, "--keep", folder, "calibrate") == 0
    page = (root / "docs" / "results.md").read_text()
    assert "latency.num_held_out=34" in page and "| 12.5 % |" in page and "cpu, float32; 2001-02-03" in page


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("bench_trian", lambda report: None, "does not list 'bench_trian'"),
        ("bench_train", lambda report: report.update(path="see /home/me/runs"), "names '/home/me/runs'"),
        ("bench_train", lambda report: report.update(path="https://mirror/x"), "names 'https://'"),
        ("bench_train", lambda report: report["figures"].clear(), "has no `figures.ratio_to_speculators_head_trained`"),
    ],
)
def test_what_the_page_cannot_show_is_not_kept(results, root, name, edit, message, capsys):
    before = (root / "docs" / "reports" / "bench_train.json").read_bytes()
    source = root / "train.json"
    source.write_bytes(before)
    report = json.loads(before)
    edit(report)
    source.write_text(json.dumps(report))
    assert results("--root", root, "--keep", source, name) == 2
    assert message in capsys.readouterr().err
    assert (root / "docs" / "reports" / "bench_train.json").read_bytes() == before


def test_a_path_without_a_report_is_not_kept(results, root, capsys):
    assert results("--root", root, "--keep", root / "nothing", "bench_pool") == 2
    assert capsys.readouterr().err.startswith(f"{root / 'nothing'} is no file, and no folder with any of manifest.json")


def test_no_report_names_a_machine():
    for path in (ROOT / "docs" / "reports").glob("*.json"):
        assert not re.search(r"://|\"~?/|[ =]~?/[a-z]", path.read_text()), path.name


def test_the_picture_is_whole_and_has_colours_for_light_and_dark_pages():
    text = (ROOT / "docs" / "figures" / "speed.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg") and "prefers-color-scheme: dark" in text
    assert not re.search(r"(?:href|src)=|url\(", text)


def test_learning_is_shown_against_the_server_without_it(results):
    module = importlib.import_module("results")
    rows = [
        {"domain": part, "method": method, "tokens_per_s": speed, "mat": speed / 10}
        for part, speeds in (("all requests", (20, 20, 24, 30)), ("last 100 requests", (20, 25, 25, 50)))
        for method, speed in zip(("autoregressive", "auto", "auto, experts", "auto, memory"), speeds, strict=True)
    ]
    text = "\n".join(module.learned({"rows": rows, "curves": {}}))
    assert "| all requests | 2.00 | 1.20x; 2.40 | 1.50x; 3.00 |" in text
    assert "| last 100 requests | 2.50 | 1.00x; 2.50 | 2.00x; 5.00 |" in text
    gains = {"last 100 requests": {"memory": [2.1, 1.9, 2.0]}}
    text = "\n".join(module.learned({"rows": rows, "curves": {"gains_by_seed": gains}}))
    assert "| 1.00x; 2.50 | 2.00x (1.90x to 2.10x by seed); 5.00 |" in text


def test_rows_along_an_axis_name_what_else_varies(results):
    module = importlib.import_module("results")
    row = {"method": "auto", "source": "live", "axis": "batch size", "at": 8, "speedup": 2.0, "mat": 3.0}
    rows = [row | {"domain": "all", "temperature": 0.0}, row | {"domain": "mixed", "temperature": 0.7, "speedup": 1.5}]
    assert list(module.scaled({"rows": rows}))[1].splitlines()[2:] == [
        "| batch size | 8 | auto | 2.00x | 3.00 |",
        "| batch size | 8 | auto (temperature 0.7) | 1.50x | 3.00 |",
    ]


def test_experts_are_shown_by_domain(results):
    module = importlib.import_module("results")
    rows = [
        {"domain": "chat", "questions": 80, "public": 2.0, "experts_full": None},
        {"domain": "sql", "questions": 78, "public": 2.0, "experts_full": 2.5},
    ]
    by_steps = [{"steps": 20, "full": 1.25, "lora": 1.1, "control": 1.3}]
    text = "\n".join(module.premise({"rows": rows, "by_steps": by_steps}))
    assert "on 78 to 80 held-out questions each" in text
    assert "| chat | 2.00 |  |" in text and "| sql | 2.00 | 2.50 |" in text
    assert "| steps | full | lora | control |" in text and "| 20 | 1.25x | 1.10x | 1.30x |" in text
