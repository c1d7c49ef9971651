"""The study trains what is not measured, once; its page says what the numbers say, and nothing where there are none."""

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
            "variants": {"1 step": ["trainer.ttt_steps=1"], "2 steps": [], "none": ["trainer.no_such_key=1"]},
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


@pytest.fixture
def study(scripts, tmp_path, capsys):
    """The script with a plan of its own: exit code, and what it printed."""

    def run(command: str, *arguments, plan: dict = PLAN):
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
        capsys.readouterr()
        given = ["--plan", str(tmp_path / "plan.yaml"), command, *map(str, arguments)]
        return scripts("study_distillation").main(given), capsys.readouterr()

    return run


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_variant_is_trained_once_measured_and_found_again(study, tmp_path):
    hf = ("target=hf", f"target.model={save_tiny_target(tmp_path / 'tiny')}", "target.name=tiny")
    typed = (*hf, f"runs_dir={tmp_path / 'runs'}")
    assert drafterforge(["prepare-data", "domain=sql", "experiment=smoke", *typed]) == 0

    code, said = study("train", "--only", "ttt", "--json", tmp_path / "one.json", *typed)
    assert code == 0, said.err
    assert "1 of 2: ttt, 1 step" in said.err and "2 of 2: ttt, 2 steps" in said.err
    assert "ttt, none: left out, no config key 'trainer.no_such_key'" in said.err
    report = json.loads((tmp_path / "one.json").read_text())
    variants = {one["label"]: one for one in report["studies"]["ttt"]["variants"]}
    assert list(variants) == ["1 step", "2 steps", "none"]
    seeds = [one["run"] for one in report["studies"]["seed"]["variants"]]
    assert variants["none"]["run"] is None and "no config key" in variants["none"]["refused"]
    assert seeds == [variants["2 steps"]["run"], None]  # the same settings, and not asked for
    assert report["runs"].keys() == {variants["1 step"]["run"], variants["2 steps"]["run"]}
    assert str(tmp_path / "runs") not in json.dumps(report)
    for name, run in report["runs"].items():
        folder = tmp_path / "runs" / "tiny" / "drafters" / name
        curve = json.loads((folder / "curves.json").read_text())
        assert [point["step"] for point in run["curve"]] == [2, 4]
        assert [point["accept_length"] for point in run["curve"]] == [point["val/accept_length"] for point in curve]
        assert 0 < run["curve"][0]["seconds"] < run["curve"][1]["seconds"]
        assert 0 < run["curve"][0]["cpu_seconds"] < run["curve"][1]["cpu_seconds"]
        assert 0 < run["curve"][0]["answer_tokens"] < run["curve"][0]["tokens"] < run["curve"][1]["tokens"]
        assert {len(point["accuracy"]) for point in run["curve"]} == {3}  # validated as deep as told
        assert run["bytes"] == (folder / "model.safetensors").stat().st_size

    code, said = study("train", "--json", tmp_path / "all.json", *typed)
    assert code == 0 and "1 of 1: seed, 1" in said.err
    whole = json.loads((tmp_path / "all.json").read_text())
    assert len(whole["runs"]) == 3
    assert {name: whole["runs"][name] for name in report["runs"]} == report["runs"]
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["seed", "ttt"]

    measured = tmp_path / "runs" / "studies" / f"{variants['1 step']['run']}.json"
    measured.unlink()  # as if killed before it was written
    code, said = study("train", *typed)
    assert code == 0 and "1 of 1: ttt, 1 step" in said.err
    again = json.loads(measured.read_text())["curve"]
    before = report["runs"][measured.stem]["curve"]
    assert [point["accept_length"] for point in again] == [point["accept_length"] for point in before]

    further = {"question": "?", "base": "on", "settings": [], "variants": {"on": [f"drafter.init={measured.stem}"]}}
    going_on = {**PLAN, "noise": "", "studies": {"start": {**further, "note": ""}}}
    code, said = study("train", "--json", tmp_path / "on.json", *typed, plan=going_on)
    assert code == 0, said.err
    (run,) = json.loads((tmp_path / "on.json").read_text())["runs"].values()
    assert [point["step"] for point in run["curve"]] == [0, 2, 4]
    assert run["curve"][0]["seconds"] == 0 < run["curve"][1]["seconds"]

    plan = json.loads(json.dumps(PLAN))
    plan["studies"]["ttt"]["variants"]["others"] = ["answers=others"]
    code, said = study("train", *typed, plan=plan)
    assert code == 0 and "ttt, others: left out, no answers named 'others'" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "tt"], "no study named 'tt'; type --only with some of seed,ttt"),
        (["answers="], "type answers=NAME"),
        (["trainer.max_step=3"], "did you mean trainer.max_steps?"),
        (["drafter=retrieval"], "EAGLE-3 drafters are studied, got drafter.kind=retrieval"),
        (["--only", "", "runs_dir=nowhere"], "nothing of these studies is measured"),
    ],
)
def test_a_mistake_is_one_line(study, arguments, said):
    code, printed = study("train", *arguments)
    assert code == 2 and said in printed.err and printed.err.count("\n") == 1, printed.err


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda plan: plan["studies"]["ttt"].update(base="9 steps"), "wanted one of 1 step, 2 steps, none"),
        (lambda plan: plan.update(noise="luck"), "noise is 'luck'; wanted one of seed, ttt"),
        (lambda plan: plan["studies"]["ttt"].pop("question"), "studies.ttt lacks 'question'"),
        (lambda plan: plan["studies"]["ttt"]["variants"].update({3: []}), "has the key 3; write it in quotes"),
        (lambda plan: plan["studies"]["ttt"].update({3: []}), "has the key 3; write it in quotes"),
    ],
)
def test_a_plan_that_makes_no_sense_is_one_line(study, edit, said):
    plan = json.loads(json.dumps(PLAN))
    edit(plan)
    code, printed = study("train", plan=plan)
    assert code == 2 and said in printed.err and printed.err.count("\n") == 1, printed.err


def test_runs_of_two_devices_are_not_set_side_by_side(study, tmp_path, scripts):
    module = scripts("study_runs")
    plan = scripts("study_plan").read_plan(written(tmp_path))
    configs = module.composed(plan, [f"runs_dir={tmp_path}"])
    for label, device in (("0", "cpu, made up"), ("1", "cuda, made up")):
        file = module.measurement(configs["seed"][label])
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(run_of([(60, 1.5)]) | {"device": device}))
    code, said = study("train", "--only", "", f"runs_dir={tmp_path}")
    assert code == 2 and "runs of two kinds do not compare: cpu, made up and cuda, made up, in seed" in said.err


@pytest.mark.parametrize("other", [{"validated_on": ["b"]}, {"answers": "b"}])
def test_variants_of_a_study_are_validated_on_the_same_answers(study, tmp_path, scripts, other):
    module = scripts("study_runs")
    configs = module.composed(scripts("study_plan").read_plan(written(tmp_path)), [f"runs_dir={tmp_path}"])
    for label, run in (("0", {"answers": "a"}), ("1", {"answers": "c", "validated_on": "a"})):
        file = module.measurement(configs["seed"][label])
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(run_of([(60, 1.5)]) | run))
    gather = ("train", "--only", "", f"runs_dir={tmp_path}")
    assert study(*gather)[0] == 0
    file.write_text(json.dumps(run_of([(60, 1.5)]) | other))
    code, said = study(*gather)
    assert code == 2 and "variants of seed were validated on other answers than one another" in said.err


def configs_of(scripts, folder: Path, plan: dict = PLAN) -> dict:
    """What would train the variants of a plan."""
    return scripts("study_runs").composed(
        scripts("study_plan").read_plan(written(folder, plan)), [f"runs_dir={folder}"]
    )


def earlier_file(folder: Path, scripts, **changed) -> Path:
    """A report of another machine, of the plan's own settings; the studies share a run."""
    report, configs = report_of(CURVES) | {"base": PLAN["base"], **changed}, configs_of(scripts, folder)
    runs = {}
    for name, study in report["studies"].items():
        for one in study["variants"]:
            if one["run"]:
                run = report["runs"][one["run"]] | {"device": "cuda, made up"}
                one["run"] = configs[name][one["label"]].name
                runs[one["run"]] = run
    path = folder / "earlier.json"
    path.write_text(json.dumps(report | {"runs": runs}))
    return path


def test_studies_of_an_earlier_report_stay_beside_new_ones(study, tmp_path, scripts, docs):
    module, configs = scripts("study_runs"), configs_of(scripts, tmp_path)
    for seed, length in (("0", 1.25), ("1", 1.5)):
        file = module.measurement(configs["seed"][seed])
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(run_of([(60, length)])))
    gather = ("train", "--only", "", f"runs_dir={tmp_path}", "--json", docs / "reports" / "distillation.json")
    code, said = study(*gather, "--earlier", earlier_file(tmp_path, scripts))
    assert code == 0, said.err
    report = json.loads((docs / "reports" / "distillation.json").read_text())
    assert report["device"] == "cpu, made up and cuda, made up"
    assert {run["device"] for run in module.runs_of(report, "seed").values()} == {"cpu, made up"}  # measured here
    assert {run["device"] for run in module.runs_of(report, "ttt").values()} == {"cuda, made up"}
    shared = configs["seed"]["0"].name  # trained here and there
    assert len(report["runs"]) == 4 and {f"{shared}, 2001-02-03T04:05:06+00:00", shared} <= report["runs"].keys()
    assert study("page", "--root", docs.parent)[0] == 0
    text = (docs / "distillation.md").read_text()
    assert (
        "After 10 steps they differ by 0.250: smaller" in text
        and "After 1.0 minutes each, **1 step** is best: 1.800" in text
    )
    assert "2 steps: 1.500; how much seeds differ was not measured there." in text  # the seeds are another machine's
    assert "| ttt | 1 step | 1.800 | 2 steps | 1.500 | +0.300 | 1.0 | 1 step |" in text
    assert "as seeds differ; where that was not measured, the best is." in text
    for device in ("cuda", "cpu"):
        assert text.count(f"\nOn {device}, made up, float32, tiny, 2001-02-03.\n") == 1

    again = earlier_file(tmp_path, scripts)
    code, said = study(*gather, "--earlier", docs / "reports" / "distillation.json")  # one that was merged before
    assert code == 0 and len(json.loads((docs / "reports" / "distillation.json").read_text())["runs"]) == 4

    plan = json.loads(json.dumps(PLAN))
    plan["studies"]["ttt"]["variants"]["1 step"] = ["trainer.ttt_steps=1", "trainer.lr=1"]
    code, said = study(*gather, "--earlier", again, plan=plan)
    assert code == 0 and "of 1 step is of other settings" in said.err and "ttt: Not measured yet." in said.out


@pytest.mark.parametrize(
    ("changed", "said"), [({"base": ["domain=math"]}, "is of other settings: base="), (None, "no such file")]
)
def test_an_earlier_report_that_does_not_fit_is_one_line(study, tmp_path, scripts, changed, said):
    file = scripts("study_runs").measurement(configs_of(scripts, tmp_path)["seed"]["0"])
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(run_of([(60, 1.5)])))
    path = tmp_path / "nowhere.json" if changed is None else earlier_file(tmp_path, scripts, **changed)
    code, printed = study("train", "--only", "", f"runs_dir={tmp_path}", "--earlier", path)
    assert code == 2 and said in printed.err and printed.err.count("\n") == 1, printed.err


@pytest.mark.slow
def test_the_plan_of_the_repository_composes(scripts):
    plan = scripts("study_plan").read_plan(scripts("study_plan").PLAN)
    configs = scripts("study_runs").composed(plan, [])
    assert not [cfg for found in configs.values() for cfg in found.values() if isinstance(cfg, Exception)]
    names = {name: [cfg.name for cfg in found.values()] for name, found in configs.items()}
    assert all(len(set(found)) == len(found) for found in names.values())  # variants of a study differ
    shared = {
        name: configs[name][plan.studies[name].base].name for name in plan.studies if not plan.studies[name].settings
    }
    assert len(set(shared.values())) == 1  # and their base is trained once


# --- the page ------------------------------------------------------------------------------------


def written(folder: Path, plan: dict = PLAN) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


def run_of(points: list[tuple[float, float]]) -> dict:
    """A made-up measurement: seconds and accept lengths."""
    curve = [
        {
            "step": 10 * place,
            "seconds": seconds,
            "cpu_seconds": 2 * seconds,
            "tokens": 100 * seconds,
            "answer_tokens": 50 * seconds,
            "accept_length": length,
            "accuracy": [0.5, 0.25, 0.125],
            "joint_accuracy": [0.5, 0.2, 0.1],
        }
        for place, (seconds, length) in enumerate(points, start=1)
    ]
    about = {"created": "2001-02-03T04:05:06+00:00", "drafterforge_version": "0", "torch": "0", "target": "tiny"}
    about |= {"device": "cpu, made up", "dtype": "float32"}
    return about | {"draft_vocab_coverage": 0.875, "bytes": 2_500_000, "peak_bytes": 7_000_000, "curve": curve}


def report_of(runs: dict[str, dict[str, list[tuple[float, float]]]]) -> dict:
    """A report with those curves, by study and label; a label without one was not measured."""
    report = {
        **{key: value for key, value in run_of([(1, 1)]).items() if key in ("created", "device", "dtype", "target")},
        **{"command": "train them", "validated_ttt_steps": 3, "noise": "seed", "base": ["domain=sql"], "winners": ""},
        **{"studies": {}, "runs": {}},
    }
    for name, study in PLAN["studies"].items():
        variants = []
        for label, settings in study["variants"].items():
            points = runs.get(name, {}).get(label)
            if points:
                report["runs"][f"{name} {label}"] = run_of(points)
            run = f"{name} {label}" if points else None
            variants.append({"label": label, "settings": settings, "refused": "", "run": run})
        report["studies"][name] = {"base": study["base"], "settings": [], "variants": variants}
    return report


CURVES = {
    "seed": {"0": [(60, 1.5), (120, 2.0)], "1": [(60, 1.5), (120, 1.9)]},
    "ttt": {"1 step": [(30, 1.6), (60, 1.8)], "2 steps": [(40, 1.2), (80, 1.8), (120, 2.2)]},
}


@pytest.fixture
def docs(tmp_path) -> Path:
    (tmp_path / "docs" / "reports").mkdir(parents=True)
    return tmp_path / "docs"


def keep(docs: Path, report: dict) -> None:
    (docs / "reports" / "distillation.json").write_text(json.dumps(report))


def test_settings_are_compared_at_equal_seconds(scripts):
    module = scripts("study_standings")
    found = module.standings(report_of(CURVES), "ttt")
    assert found.seconds == 60  # of the shortest
    assert found.lengths == pytest.approx({"1 step": 1.8, "2 steps": 1.5})  # half way from 1.2 to 1.8
    assert (found.best, found.base, found.lead) == ("1 step", "2 steps", pytest.approx(0.3))
    assert module.spread(report_of(CURVES), "ttt") == pytest.approx(0.1)
    assert module.kept(found, 0.1) == "1 step" and module.kept(found, 0.4) == "2 steps"


def test_the_best_so_far_counts_and_nothing_is_told_before_the_first_validation(scripts):
    curve = run_of([(10, 2.0), (20, 1.0), (30, 3.0)])["curve"]
    length_at = scripts("study_standings").length_at
    assert [length_at(curve, seconds) for seconds in (9, 10, 20, 25, 30)] == [None, 2.0, 2.0, 2.5, 3.0]


def test_the_page_says_what_the_numbers_say(study, docs):
    keep(docs, report_of(CURVES))
    assert study("page", "--root", docs.parent)[0] == 0
    text = (docs / "distillation.md").read_text()
    assert "`train them` measured on 2001-02-03" in text
    assert "| 1 step | 20 | 3,000 | 1.0 | 2.0 | 100 | 1.800 | -0.400 | 1.800 | 50%, 12% | 87.5% | 2.5 | 7 |" in text
    assert "| 2 steps | 30 | 6,000 | 2.0 | 4.0 | 100 | 2.200 |  | 1.500 | 50%, 12% | 87.5% | 2.5 | 7 |" in text
    assert (
        "After 1.0 minutes each, **1 step** is best: 1.800, 2 steps: 1.500; that is more than seeds differ (0.100)."
        in text
    )
    assert "After 20 steps they differ by 0.100, after 10 by 0.000: smaller leads show nothing; the slowest" in text
    assert "Not measured: none." in text
    assert "| ttt | 1 step | 1.800 | 2 steps | 1.500 | +0.300 | 1.0 | 1 step |" in text
    assert "## Not measured yet" not in text and "- more layers: there is one" in text
    for figure in re.findall(r"\(figures/(.*?)\)", text):
        assert (docs / "figures" / figure).is_file()
    assert len(list((docs / "figures").iterdir())) == 2


def test_the_figure_of_a_study_of_two_words_is_linked(study, docs):
    report, plan = report_of(CURVES), json.loads(json.dumps(PLAN))
    for of in (report["studies"], plan["studies"]):
        of["ttt of drafters"] = of.pop("ttt")
    keep(docs, report)
    assert study("page", "--root", docs.parent, plan=plan)[0] == 0
    assert "(figures/distillation-ttt-of-drafters.svg)" in (docs / "distillation.md").read_text()
    assert (docs / "figures" / "distillation-ttt-of-drafters.svg").is_file()
    assert study("page", "--root", docs.parent, "--check", plan=plan)[0] == 0


def test_a_lead_within_the_noise_keeps_the_base(study, docs):
    keep(docs, report_of(CURVES | {"ttt": {"1 step": [(60, 1.55)], "2 steps": [(60, 1.5)]}}))
    study("page", "--root", docs.parent)
    text = (docs / "distillation.md").read_text()
    assert "that is no more than seeds differ (0.100)" in text
    assert "| ttt | 1 step | 1.550 | 2 steps | 1.500 | +0.050 | 1.0 | 2 steps |" in text


def test_twins_of_the_base_tell_of_chance_and_win_nothing(study, scripts, docs):
    plan = json.loads(json.dumps(PLAN))
    variants = {"1 step": ["trainer.ttt_steps=1"], "2 steps": [], "2 steps, other seed": ["seed=2"]}
    plan["studies"]["ttt"]["variants"] = variants
    report = report_of(CURVES)
    curves = {"1 step": [(60, 1.5), (90, 1.7)], "2 steps": [(90, 1.5), (180, 1.6)]}
    for twin, noise in (([(30, 1.7), (60, 1.9)], 0.3), ([(9, 1.4), (18, 1.57)], 0.03)):  # faster than the others
        of_study = {label: run_of(points) for label, points in (curves | {"2 steps, other seed": twin}).items()}
        report["studies"]["ttt"]["variants"] = [
            {"label": label, "settings": variants[label], "refused": "", "run": label} for label in variants
        ]
        report["runs"].update(of_study)
        module = scripts("study_standings")
        assert module.twins(report, "ttt") == ["2 steps, other seed"]
        assert module.standings(report, "ttt").lengths == {"1 step": 1.7, "2 steps": 1.5}  # at 90 seconds
        assert module.spread(report, "ttt") == pytest.approx(noise)  # after 20 steps, and not the other study's 0.1
        keep(docs, report)
        assert study("page", "--root", docs.parent, plan=plan)[0] == 0
        text = (docs / "distillation.md").read_text()
        assert f"no more than seeds differ ({noise:.3f})" in text or f"more than seeds differ ({noise:.3f})" in text
        assert f"| +0.200 | 1.5 | {'2 steps' if noise > 0.2 else '1 step'} |" in text
        assert "| 2 steps, other seed | 20 |" in text  # shown all the same
        assert "no more than 0.100, as seeds differ, or in ttt what they differ by there." in text


def test_what_was_not_measured_is_listed_and_not_told_of(study, docs):
    keep(docs, report_of({"ttt": CURVES["ttt"], "seed": {"0": [(60, 1.5)]}}))  # nothing beside it
    assert study("page", "--root", docs.parent)[0] == 0
    text = (docs / "distillation.md").read_text()
    assert "## Not measured yet\n\n- seed: How much do equal settings differ?" in text and "## seed" not in text
    assert "how much seeds differ was not measured" in text
    (docs / "reports" / "distillation.json").unlink()
    assert study("page", "--root", docs.parent)[0] == 0
    assert "Nothing was measured yet." in (docs / "distillation.md").read_text()
    assert not list((docs / "figures").iterdir())  # those of before are gone


def test_a_note_on_what_was_not_measured_is_refused(study, docs):
    keep(docs, report_of({"seed": CURVES["seed"], "ttt": {"1 step": [(60, 1.5)]}}))
    plan = json.loads(json.dumps(PLAN))
    plan["studies"]["ttt"]["note"] = "One step is enough."
    code, said = study("page", "--root", docs.parent, plan=plan)
    assert code == 2 and "ttt has a note, but nothing of it is in" in said.err and not list(docs.glob("*.md"))
    keep(docs, report_of(CURVES))
    assert study("page", "--root", docs.parent, plan=plan)[0] == 0
    assert "One step is enough." in (docs / "distillation.md").read_text()


def test_a_page_that_was_changed_by_hand_is_found(study, docs):
    keep(docs, report_of(CURVES))
    assert study("page", "--root", docs.parent, "--check")[0] == 1
    assert study("page", "--root", docs.parent)[0] == 0
    assert study("page", "--root", docs.parent, "--check")[0] == 0
    path = docs / "distillation.md"
    path.write_text(path.read_text().replace("1.800", "1.900"))
    code, said = study("page", "--root", docs.parent, "--check")
    assert code == 1 and "run python scripts/study_distillation.py page" in said.err


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG has it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_figures_are_read_on_light_and_on_dark_ground(study, docs):
    keep(docs, report_of(CURVES))
    study("page", "--root", docs.parent)
    svg = (docs / "figures" / "distillation-ttt.svg").read_text()
    assert tree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"  # whole, and a drawing of its own
    assert "var(" not in svg and "1 step" in svg and "minutes of training" in svg
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert len(colours) >= 3
    for colour in colours:
        light = luminance(colour) + 0.05
        assert 1.05 / light > 3 and light / (luminance("#0d1117") + 0.05) > 3, colour


def test_the_page_of_the_repository_is_what_its_report_says(scripts, capsys):
    assert scripts("study_distillation").main(["page", "--check"]) == 0, capsys.readouterr().err
