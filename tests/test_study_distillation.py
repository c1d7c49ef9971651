"""Studies train each variant once; the page says what the report holds."""

from __future__ import annotations

import importlib
import json
import re
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest
import yaml

from drafterforge.cli import main as drafterforge
from tests.tiny import save_tiny_target

ROOT = Path(__file__).parents[1]
PLAN = {
    "validated_ttt_steps": 3,
    "noise": "seed",
    "base": ["domain=sql", "answers=sql", "experiment=smoke"],
    "studies": {
        "seed": {
            "question": "How much do equal settings differ?",
            "base": "0",
            "settings": [],
            "variants": {"0": [], "1": ["seed=1"]},
            "note": "",
        },
        "ttt": {
            "question": "How many steps?",
            "base": "2 steps",
            "settings": [],
            "variants": {"1 step": ["trainer.ttt_steps=1"], "2 steps": [], "missing": ["answers=missing"]},
            "note": "",
        },
    },
    "not_studied": {"more layers": "there is one"},
}


@pytest.fixture
def scripts(monkeypatch):
    """The study's modules, in this process."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module


def copy_plan() -> dict:
    return json.loads(json.dumps(PLAN))


def write_plan(folder: Path, plan: dict = PLAN) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


@pytest.fixture
def study(scripts, tmp_path, capsys):
    """The script with its own plan: exit code, and what it printed."""

    def run(command: str, *arguments, plan: dict = PLAN):
        capsys.readouterr()
        options = ["--plan", str(write_plan(tmp_path, plan)), command, *map(str, arguments)]
        return scripts("study_distillation").main(options), capsys.readouterr()

    return run


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_variant_is_trained_and_measured_once(study, tmp_path):
    hf = ("target=hf", f"target.model={save_tiny_target(tmp_path / 'tiny')}", "target.name=tiny")
    typed = (*hf, f"runs_dir={tmp_path / 'runs'}")
    assert drafterforge(["prepare-data", "domain=sql", "experiment=smoke", *typed]) == 0
    path = tmp_path / "report.json"

    code, printed = study("train", "--only", "ttt", "--json", path, *typed)
    assert code == 0, printed.err
    assert "1 of 3: ttt, 1 step" in printed.err and "2 of 3: ttt, 2 steps" in printed.err
    assert "ttt, missing: skipped, no answers named 'missing'" in printed.err
    report = json.loads(path.read_text())
    assert [variant["run"] for variant in report["studies"]["ttt"]["variants"]] == ["ttt, 1 step", "ttt, 2 steps", None]
    assert report["studies"].keys() == {"ttt"} and str(tmp_path / "runs") not in path.read_text()
    curves = {
        tuple(point["val/accept_length"] for point in json.loads(file.read_text()))
        for file in (tmp_path / "runs" / "tiny" / "drafters").glob("study-*/curves.json")
    }
    for run in report["runs"].values():
        first, last = run["curve"]
        assert (first["step"], last["step"]) == (2, 4)
        assert (first["accept_length"], last["accept_length"]) in curves
        assert 0 < first["seconds"] < last["seconds"] and 0 < first["cpu_seconds"] < last["cpu_seconds"]
        assert 0 < first["answer_tokens"] < first["tokens"] < last["tokens"]
        assert len(first["accuracy"]) == len(last["joint_accuracy"]) == 3  # validated_ttt_steps

    code, printed = study("train", "--only", "seed", "--json", path, *typed)
    assert code == 0 and "1 of 1: seed, 1" in printed.err  # "0" is the base of ttt
    extended_report = json.loads(path.read_text())
    assert (
        extended_report["studies"]["ttt"] == report["studies"]["ttt"]
        and extended_report["runs"].items() >= report["runs"].items()
    )
    assert extended_report["runs"]["seed, 0"] == extended_report["runs"]["ttt, 2 steps"]
    assert [line.split(":")[0] for line in printed.out.splitlines()] == ["seed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "tt"], "there is no study 'tt'; type --only with some of seed,ttt"),
        (["trainer.max_step=3"], "did you mean trainer.max_steps?"),
    ],
)
def test_a_mistake_is_one_line(study, arguments, message):
    code, printed = study("train", *arguments)
    assert code == 2 and message in printed.err and printed.err.count("\n") == 1, printed.err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plan: plan["studies"]["ttt"].update(base="9 steps"), "must be one of 1 step, 2 steps, missing"),
        (lambda plan: plan.update(noise="luck"), "noise is 'luck'; it must be one of seed, ttt"),
        (lambda plan: plan["studies"]["ttt"].pop("question"), "studies.ttt lacks 'question'"),
    ],
)
def test_a_wrong_plan_is_one_line(study, edit, message):
    plan = copy_plan()
    edit(plan)
    code, printed = study("train", plan=plan)
    assert code == 2 and message in printed.err and printed.err.count("\n") == 1, printed.err


def measure_by_hand(scripts, folder: Path, runs: dict[str, dict]) -> tuple:
    """A plan and configs of the study of seeds, with measurements in runs_dir."""
    module, plan = scripts("study_runs"), scripts("study_plan").read_plan(write_plan(folder))
    configs = module.compose_studies(plan, ["seed"], [f"runs_dir={folder}"])
    for label, run in runs.items():
        file = module.measurement_path(configs["seed"][label])
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(run))
    return plan, configs


@pytest.mark.parametrize("change", [{"device": "cuda, made up"}, {"validated_on": ["b"]}])
def test_runs_that_do_not_compare_are_refused(tmp_path, scripts, change):
    run = run_of([(60, 1.5)])
    plan, configs = measure_by_hand(scripts, tmp_path, {"0": run, "1": run | change})
    with pytest.raises(
        scripts("study_runs").ArtifactError, match=f"runs of seed do not compare: {next(iter(change))} is"
    ):
        scripts("study_runs").update_report(plan, configs, [], None)


def test_other_studies_of_a_report_stay(tmp_path, scripts):
    run = run_of([(60, 1.25)])
    plan, configs = measure_by_hand(scripts, tmp_path, {"0": run, "1": run})
    path = tmp_path / "report.json"
    old = report_of(CURVES) | {"base": PLAN["base"]}
    old["runs"] = {key: run | {"device": "cuda, made up"} for key, run in old["runs"].items()}
    path.write_text(json.dumps(old))
    report = scripts("study_runs").update_report(plan, configs, [], path)
    assert report["device"] == "cpu, made up and cuda, made up"
    assert report["studies"]["ttt"] == old["studies"]["ttt"]
    assert report["runs"].keys() == {"seed, 0", "seed, 1", "ttt 1 step", "ttt 2 steps"}
    assert scripts("study_comparison").seed_spread(report, "ttt") is None  # the seeds are of another device
    path.write_text(json.dumps(old | {"base": ["domain=math"]}))
    with pytest.raises(scripts("study_runs").ArtifactError, match="was measured with base="):
        scripts("study_runs").update_report(plan, configs, [], path)


@pytest.mark.slow
def test_the_plan_of_the_repository_composes(scripts):
    plan = scripts("study_plan").read_plan(scripts("study_plan").PLAN)
    configs = scripts("study_runs").compose_studies(plan, [], [])
    names = {name: [cfg.name for cfg in variants.values()] for name, variants in configs.items()}
    assert all(len(set(of_study)) == len(of_study) for of_study in names.values())  # variants of a study differ
    bases = {configs[name][study.base].name for name, study in plan.studies.items() if not study.settings}
    assert len(bases) == 1  # studies share the run of their base


# --- the page ------------------------------------------------------------------------------------


def run_of(points: list[tuple[float, float]]) -> dict:
    """A made-up measurement of seconds and accept lengths."""
    curve = [
        {
            "step": 10 * number,
            "seconds": seconds,
            "cpu_seconds": 2 * seconds,
            "tokens": 100 * seconds,
            "answer_tokens": 50 * seconds,
            "accept_length": length,
            "accuracy": [0.5, 0.25, 0.125],
            "joint_accuracy": [0.5, 0.2, 0.1],
        }
        for number, (seconds, length) in enumerate(points, start=1)
    ]
    setup = {"created": "2001-02-03T04:05:06+00:00", "drafterforge_version": "0", "torch": "0", "target": "tiny"}
    setup |= {"device": "cpu, made up", "dtype": "float32", "validated_on": ["a"]}
    return setup | {"draft_vocab_coverage": 0.875, "bytes": 2_500_000, "peak_bytes": 7_000_000, "curve": curve}


def report_of(curves: dict[str, dict[str, list[tuple[float, float]]]]) -> dict:
    """A report with these curves, by study and label; a label without one was not measured."""
    report = {
        **{key: value for key, value in run_of([(1, 1)]).items() if key in ("created", "device", "dtype", "target")},
        **{"command": "train them", "validated_ttt_steps": 3, "noise": "seed", "base": ["domain=sql"]},
        **{"studies": {}, "runs": {}},
    }
    for name, study in PLAN["studies"].items():
        variants = []
        for label, settings in study["variants"].items():
            points = curves.get(name, {}).get(label)
            if points:
                report["runs"][f"{name} {label}"] = run_of(points)
            variants.append({"label": label, "settings": settings, "run": f"{name} {label}" if points else None})
        report["studies"][name] = {"base": study["base"], "settings": [], "variants": variants}
    return report


CURVES = {
    "seed": {"0": [(60, 1.5), (120, 2.0)], "1": [(60, 1.5), (120, 1.9)]},
    "ttt": {"1 step": [(30, 1.6), (60, 1.8)], "2 steps": [(40, 1.2), (80, 1.8), (120, 2.2)]},
}


@pytest.fixture
def page(scripts, tmp_path):
    """The page of a report and a plan."""

    def render(report: dict, plan: dict = PLAN) -> str:
        return scripts("study_page").page(scripts("study_plan").read_plan(write_plan(tmp_path, plan)), report)

    return render


def test_settings_are_compared_after_equal_seconds(scripts):
    comparison = scripts("study_comparison").compare(report_of(CURVES), "ttt")
    assert comparison.seconds == 60  # of the fastest
    assert comparison.lengths == pytest.approx({"1 step": 1.8, "2 steps": 1.5})  # half way from 1.2 to 1.8
    assert (comparison.best, comparison.rival, comparison.lead) == ("1 step", "2 steps", pytest.approx(0.3))
    assert comparison.seed_spread == pytest.approx(0.1) and comparison.recommended == "1 step"


def test_the_best_length_so_far_counts_from_the_first_validation_on(scripts):
    curve = run_of([(10, 2.0), (20, 1.0), (30, 3.0)])["curve"]
    length_at = scripts("study_comparison").length_at
    assert [length_at(curve, seconds) for seconds in (9, 10, 20, 25, 30)] == [None, 2.0, 2.0, 2.5, 3.0]


def test_the_page_shows_the_numbers_of_its_report(page):
    text = page(report_of(CURVES))
    assert "`train them` measured until 2001-02-03" in text
    assert "| 1 step | 20 | 3,000 | 1.0 | 2.0 | 100 | 1.800 | -0.400 | 1.800 | 50%, 12% | 87.5% | 2.5 | 7 |" in text
    assert "| 2 steps | 30 | 6,000 | 2.0 | 4.0 | 100 | 2.200 |  | 1.500 | 50%, 12% | 87.5% | 2.5 | 7 |" in text
    assert (
        "After 1.0 minutes each, **1 step** is best: 1.800, 2 steps: 1.500; the lead is above the spread of seeds"
        in text
    )
    assert "After 20 steps, seeds differ by 0.100; smaller leads are chance." in text
    assert "Not measured: missing." in text
    assert "| ttt | 1 step | 1.800 | 2 steps | 1.500 | +0.300 | 1.0 | 1 step |" in text
    assert "## Not measured yet" not in text and "- more layers: there is one" in text


def test_a_lead_within_the_spread_of_seeds_keeps_the_base(page):
    text = page(report_of(CURVES | {"ttt": {"1 step": [(60, 1.55)], "2 steps": [(60, 1.5)]}}))
    assert "the lead is within the spread of seeds (0.100)" in text
    assert "| ttt | 1 step | 1.550 | 2 steps | 1.500 | +0.050 | 1.0 | 2 steps |" in text


def test_variants_of_another_seed_measure_the_spread_and_do_not_compete(scripts):
    module, report = scripts("study_comparison"), report_of(CURVES)
    settings = {"1 step": ["trainer.ttt_steps=1"], "2 steps": [], "2 steps, other seed": ["seed=2"]}
    curves = {"1 step": [(60, 1.5), (90, 1.7)], "2 steps": [(90, 1.5), (180, 1.6)]}
    for curve, spread in (([(30, 1.7), (60, 1.9)], 0.3), ([(9, 1.4), (18, 1.57)], 0.03)):  # faster than the others
        report["studies"]["ttt"]["variants"] = [
            {"label": label, "settings": settings[label], "run": label} for label in settings
        ]
        report["runs"] |= {label: run_of(points) for label, points in (curves | {"2 steps, other seed": curve}).items()}
        comparison = module.compare(report, "ttt")
        assert comparison.lengths == {"1 step": 1.7, "2 steps": 1.5}  # at 90 seconds
        assert comparison.seed_spread == pytest.approx(spread)  # after 20 steps; the study of noise has 0.1
        assert comparison.recommended == ("2 steps" if spread > 0.2 else "1 step")


def test_a_study_without_two_runs_is_listed_as_not_measured(page):
    text = page(report_of({"ttt": CURVES["ttt"], "seed": {"0": [(60, 1.5)]}}))
    assert "## Not measured yet\n\n- seed: How much do equal settings differ?" in text and "## seed" not in text
    assert "the spread between seeds was not measured" in text


def test_a_note_on_a_study_without_runs_is_refused(page, scripts):
    plan = copy_plan()
    plan["studies"]["ttt"]["note"] = "One step is enough."
    with pytest.raises(scripts("study_page").ConfigError, match="ttt has a note, but no runs in"):
        page(report_of({"seed": CURVES["seed"], "ttt": {"1 step": [(60, 1.5)]}}), plan)
    assert "One step is enough." in page(report_of(CURVES), plan)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_figures_are_readable_on_light_and_on_dark_pages(scripts):
    svg = scripts("study_page").figures(report_of(CURVES))["distillation-ttt.svg"]
    assert tree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in svg and "1 step" in svg and "minutes of training" in svg
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert len(colours) >= 3
    for colour in colours:
        light = luminance(colour) + 0.05
        assert 1.05 / light > 3 and light / (luminance("#0d1117") + 0.05) > 3, colour


def test_the_page_of_the_repository_shows_its_report(scripts, capsys):
    assert scripts("study_distillation").main(["page", "--check"]) == 0, capsys.readouterr().err
    assert "(figures/distillation-natural-cost.svg)" in (ROOT / "docs" / "distillation.md").read_text()
