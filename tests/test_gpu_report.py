"""`gpu_report.py` runs its steps one by one, continues where it was interrupted, and publishes what is done."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
REPORT = {"created": "2001-02-03T04:05:06+00:00", "dtype": "bfloat16", "figures": {"speed": 2.5}}
WRITE = f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('''{json.dumps(REPORT)}''')"


@pytest.fixture
def gpu_report(monkeypatch):
    """The script, on a machine that it need not ask for its device."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("gpu_report")
    monkeypatch.setattr(module, "describe", lambda environment: ("cpu, stub", "9.9"))
    monkeypatch.setattr(module, "code_version", lambda: "first")
    monkeypatch.setattr(module, "embedded_obstacle", lambda environment: "")
    return module


@pytest.fixture
def step(gpu_report, tmp_path):
    """Makes a step whose process runs some Python."""

    def make(name, code, **settings):
        script = tmp_path / f"{name}.py"
        script.write_text(code)
        command = f"{script} {{output}}"
        return gpu_report.Step(name, command, command, ("speed",), expected_s=0, **settings)

    return make


@pytest.fixture
def run(gpu_report, tmp_path):
    """Runs steps; returns the exit code and the records."""

    def call(steps, *arguments):
        folder = tmp_path / "out"
        code = gpu_report.main(["--device", "cpu", "--out", str(folder), *arguments], steps)
        return code, {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    return call


def test_a_failed_step_does_not_stop_the_run(step, run, tmp_path, capsys):
    code, records = run([step("bad", "raise SystemExit('broken')"), step("good", WRITE)])
    assert code == 1
    assert {name: record["state"] for name, record in records.items()} == {"bad": "failed", "good": "done"}
    assert records["bad"]["reason"] == "exit code 1, and no result; see bad.log"
    assert records["good"]["report"] == {**REPORT, "device": "cpu, stub"}
    assert "broken" in (tmp_path / "out" / "bad.log").read_text()
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert "failed" in lines[0] and "done" in lines[1] and "speed 2.5" in lines[1]
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as archive:
        assert archive.getnames() == ["bad.json", "bad.log", "good.json", "good.log"]


def test_a_step_that_is_done_is_not_run_again_with_the_same_code(step, run, gpu_report, monkeypatch, capsys):
    steps = [step("good", WRITE), step("bad", "raise SystemExit(3)")]
    run(steps)
    capsys.readouterr()
    code, _ = run(steps)
    printed = capsys.readouterr().out
    assert code == 1 and "good: python" not in printed and "bad: python" in printed and "done before" in printed
    monkeypatch.setattr(gpu_report, "code_version", lambda: "second")
    _, records = run(steps, "--step", "good")
    assert "good: python" in capsys.readouterr().out and records["good"]["version"] == "second"
    monkeypatch.setattr(gpu_report, "describe", lambda environment: ("cpu, stub", "10.0"))
    _, records = run(steps, "--step", "good")
    assert "good: python" in capsys.readouterr().out and records["good"]["torch"] == "10.0"


def test_a_step_that_takes_too_long_is_ended_with_its_children(step, run, gpu_report, monkeypatch, tmp_path):
    late = tmp_path / "late"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(late)!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    monkeypatch.setattr(gpu_report, "LONGEST_S", 0.5)
    exit_code, records = run([step("slow", code)])
    assert exit_code == 1 and records["slow"]["reason"].startswith("stopped after")
    time.sleep(1.5)
    assert not late.exists()


def test_a_step_without_its_weights_is_skipped_in_one_line(step, run, gpu_report, monkeypatch, capsys):
    monkeypatch.setattr(gpu_report, "embedded_obstacle", lambda environment: "no weights")
    code, records = run([step("embedded", WRITE, embedded=True), step("random", WRITE)])
    assert code == 0 and records["embedded"]["state"] == "skipped" and records["random"]["state"] == "done"
    assert re.search(r"embedded\s+skipped\s+no weights\n", capsys.readouterr().out)


def test_no_step_begins_that_may_outlast_the_run(gpu_report, step, run, capsys):
    long = gpu_report.Step("long", "none", "none", (), expected_s=60)
    code, records = run([long, step("short", WRITE)], "--within", "30")
    assert code == 0 and list(records) == ["short"] and "not run" in capsys.readouterr().out


def test_without_a_gpu_it_says_how_to_rehearse(gpu_report, capsys):
    assert gpu_report.main(["--device", "cuda"], [gpu_report.Step("x", "", "", ())]) == 2
    assert "--quick --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H100 PCIe", "h100"),
        ("cpu, 2 threads, AVX512", "cpu"),
    ],
)
def test_reports_are_named_after_the_model_of_the_gpu(gpu_report, device, name):
    assert gpu_report.device_name(device) == name


def test_tests_that_need_a_missing_library_are_no_failures(gpu_report, tmp_path):
    steps = importlib.import_module("gpu_report_steps")
    cases = {
        "passed": "",
        "skipped": '<skipped message="needs a GPU"/>',
        "unavailable": "<error>ModuleNotFoundError: No module named 'hydra'</error>",
        "failed": '<failure message="assert 1 == 2"/>',
    }
    path = tmp_path / "junit.xml"
    path.write_text(
        "".join(f'<testcase name="{name}">{inner}</testcase>' for name, inner in cases.items()).join(
            ("<testsuites><testsuite>", "</testsuite></testsuites>")
        )
    )
    report = steps.read_tests(path)
    assert report["figures"] == {"passed": 1, "failed": 1, "skipped": 1, "unavailable": 1}
    assert not steps.tests_pass(report, "NVIDIA H100", 1)
    report["figures"]["failed"] = 0
    assert steps.tests_pass(report, "NVIDIA H100", 1)
    report["figures"]["passed"] = 0
    assert not steps.tests_pass(report, "NVIDIA H100", 0) and steps.tests_pass(report, "cpu", 0)


def test_every_step_runs_a_script_and_has_a_place_on_the_results_page(gpu_report):
    index = yaml.safe_load((ROOT / "docs" / "reports" / "index.yaml").read_text())
    steps = gpu_report.all_steps()
    assert {step.report for step in steps} == set(index["gpu"]["reports"]) <= index.keys()
    for step in steps:
        for command in (step.command, step.quick):
            program = command.split()[0]
            assert program == "-P" or (ROOT / program).is_file()
            assert "{output}" in command


def test_the_steps_import_the_package_of_this_checkout_without_an_installation(gpu_report):
    code = "import drafterforge, drafterforge.configs, drafterforge.pipelines; print(drafterforge.configs.__file__)"
    with gpu_report.importable_package() as package:
        environment = gpu_report.environment_of("cpu", package)
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(str(package))
        assert Path(done.stdout.strip()).resolve() == ROOT / "configs" / "__init__.py"
    assert environment["CUDA_VISIBLE_DEVICES"] == "" and not package.exists()


def test_the_script_imports_neither_torch_nor_the_package():
    code = "import sys, gpu_report; print([name for name in ('torch', 'drafterforge') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.fixture
def root(tmp_path):
    """A copy of what --publish writes to, without measurements of other machines."""
    shutil.copytree(ROOT / "docs", tmp_path / "root" / "docs", ignore=shutil.ignore_patterns("*@*.json"))
    (tmp_path / "root" / "configs" / "latency").mkdir(parents=True)
    return tmp_path / "root"


def test_results_are_published_beside_those_of_the_cpu(gpu_report, root, tmp_path, capsys):
    folder = tmp_path / "results"
    folder.mkdir()
    report = {**REPORT, "device": "NVIDIA H100 80GB HBM3", "size": "llama3.1-8b", "rows": []}
    latency = {**report, "figures": {"token_ms": 4.25}, "profile": {"target": "llama3.1-8b"}}
    train = {
        **report,
        "figures": {"answer_tokens_per_s": 54321.0},
        "rows": [{"method": "drafterforge", "ttt_steps": 7}],
    }
    record = {"state": "done", "quick": False, "device": report["device"], "version": "first", "torch": "9.9"}
    contents = {"latency-8b": record | {"name": "latency-8b", "report": latency}}
    contents |= {"train": record | {"name": "bench_train", "report": train}}
    contents |= {"decode": record | {"name": "bench_decode", "report": report, "quick": True}}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    assert gpu_report.main(["--publish", "--out", str(folder), "--root", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "decode.json is left out: made with --quick" in printed and "wrote 2 reports" in printed
    names = {path.name for path in (root / "docs" / "reports").glob("*@h100.json")}
    assert names == {"latency-8b@h100.json", "bench_train@h100.json"}
    assert (root / "configs" / "latency" / "h100-llama3.1-8b.json").is_file()
    page = (root / "docs" / "results.md").read_text()
    table = page.split("## On a GPU")[1]
    assert "| figure | CPU | h100 |" in table
    assert re.search(r"\| Training: answer tokens/s, our defaults \| [\d,]+ \| 54,321 \|", table)
    assert re.search(r"\| Training: .*speculators.* \| [\d.]+x \| not run \|", table)
    assert "| A cycle at 32B | not run | not run |" in table
    assert "| Latency profile at 8B: milliseconds of a token without a drafter | not run | 4.25 |" in table
    assert "No figure was measured on a GPU yet" not in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "older"}, "train.json was measured by code older, this is code first"),
        ({"torch": "9.8"}, "train.json was measured with torch 9.8, tests.json with torch 9.9"),
    ],
)
def test_results_of_other_code_or_torch_are_not_published(gpu_report, root, tmp_path, capsys, changes, message):
    record = {"state": "done", "quick": False, "version": "first", "torch": "9.9", "device": "cpu", "report": REPORT}
    for name, content in (("tests", record), ("train", record | changes)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"name": name}))
    assert gpu_report.main(["--publish", "--out", str(tmp_path), "--root", str(root)]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not list((root / "docs" / "reports").glob("*@*.json"))
