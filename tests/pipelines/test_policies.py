"""calibrate and train-policy from the command line on a tiny target."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.cli import main
from drafterforge.config.commands import CalibrateConfig, TrainPolicyConfig
from drafterforge.config.compose import load_config, to_dict
from drafterforge.config.replay import TracesConfig
from drafterforge.evaluation import calibration, lossless, policy_comparison, trace_recording
from drafterforge.pipelines import train_drafter, train_policy
from drafterforge.runtime.rows import Generation
from drafterforge.schedulers.latency import read_profile
from drafterforge.schedulers.policy import load_policy
from tests.pipelines.conftest import PLAIN, Bench
from tests.test_scripts import import_script

pytestmark = pytest.mark.slow  # many short tests

SQL = ("experiment=smoke", "drafter=sql")
POLICIES = {
    "planner": ("policy=planner",),
    "resps": ("policy=resps", "policy.train_hold_cycles=2", "policy.hold_cycles=3"),
    "ltd": ("policy=ltd",),
    "marginal": ("policy=marginal",),
    "narrow": ("policy=planner", "grid.top_ks=[2]", "grid.depths=[1]", "name=narrow"),
    "resps-text": ("policy=resps-text", "policy.train_hold_cycles=2", "policy.hold_cycles=3"),  # another name
    "small": ("policy=resps", "policy.actor=[64,64]", "policy.critic=[64,64]", "policy.hold_cycles=50", "name=small"),
    "alone": ("policy=ltd", "policy.decides=independent", "name=alone"),
}


@pytest.fixture(scope="session")
def policy_runs(tmp_path_factory, trained_runs, tiny_folder) -> Path:
    """Runs of one drafter, its traces, the device's profile and a planner's policy."""
    runs = tmp_path_factory.mktemp("policies") / "runs"
    shutil.copytree(trained_runs, runs)
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={runs}")
    assert main(["train-policy", *SQL, "policy=planner", *hf]) == 0
    return runs


@pytest.fixture
def policies(bench, policy_runs) -> Bench:
    """A bench with a copy of these runs."""
    shutil.copytree(policy_runs, bench.runs)
    return bench


def test_train_policy_records_calibrates_trains_and_measures(policies):
    assert {"tiny/traces/sql", "tiny/latency/sql", "tiny/policies/planner", "tiny/reports/policy-planner"} <= set(
        policies.finished()
    )
    report = open_artifact(policies.artifact("reports", "policy-planner"), "reports")
    assert {parent["kind"] for parent in report.parents} == {"policies", "drafters"}
    metrics = open_artifact(policies.artifact("traces"), "traces").metrics
    assert metrics["answers"] > 0 and metrics["positions"] >= metrics["answers"] and metrics["bytes_per_position"] > 0
    assert "cpu" in metrics["device"]
    profile = read_profile(policies.artifact("latency"))
    assert profile.errors["total"] >= 0 and sum(profile.autoregressive.values()) > 0
    kinds = {parent["kind"] for parent in open_artifact(policies.artifact("policies", "planner"), "policies").parents}
    assert kinds == {"drafters", "traces", "latency"}
    report = json.loads((policies.artifact("reports", "policy-planner") / "report.json").read_text())
    replayed, again, recalibrate = (report["curves"][key] for key in ("replayed", "again", "recalibrate"))
    assert again.startswith("drafterforge train-policy policy=planner ") and " drafter=sql " in again
    measured = open_artifact(policies.artifact("latency"), "latency").config
    typed = shlex.split(recalibrate)[2:]
    cfg = load_config("calibrate", CalibrateConfig, typed)
    assert cfg.drafter == "sql" and cfg.overwrite and to_dict(cfg.latency).items() >= measured["latency"].items()
    assert to_dict(cfg.grid).items() >= measured["grid"].items()
    names = [row["name"] for row in replayed]
    assert names[0].startswith("default tree") and "policy planner" in names and "perfect foresight" in names
    rates = {row["name"]: row["tokens_per_s"] for row in replayed}
    assert rates["perfect foresight"] >= max(rates[name] for name in names if not name.startswith("default")) - 1e-3
    assert len(report["rows"]) == 4 and all(row["mismatches"] == 0 for row in report["rows"])
    assert (policies.artifact("policies", "planner") / "curves.png").stat().st_size > 1000


def test_a_grid_that_always_drafts_is_compared_with_no_drafting_as_any(policies):
    def replayed(name: str) -> dict[str, float]:
        report = json.loads((policies.artifact("reports", f"policy-{name}") / "report.json").read_text())
        return {row["name"]: row["tokens_per_s"] for row in report["curves"]["replayed"]}

    done = policies("train-policy", *SQL, "policy=ltd", "grid.mask=drafting", "name=drafts", "live.num_prompts=0")
    assert done.code == 0, done.err
    rates = replayed("drafts")
    assert rates["no drafting"] == pytest.approx(replayed("planner")["no drafting"], rel=1e-6)
    assert not any(name.startswith("best static tree 1/0/1") for name in rates)


ASK = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")


@pytest.fixture(scope="module")
def target_text(tiny_folder) -> str:
    """The target's answer, as `generate` prints it."""
    with redirect_stdout(StringIO()) as out:
        assert main([*ASK, "drafter=", "target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN]) == 0
    return out.getvalue()


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "planner"])
def test_every_method_trains_from_the_same_traces_and_drafts_the_target_s_text(
    policies, name, target_text, monkeypatch
):
    monkeypatch.setattr(trace_recording, "record_answer", lambda *_, **__: pytest.fail("recorded again"))
    done = policies("train-policy", *SQL, *POLICIES[name])
    assert done.code == 0, done.err
    assert f"policy {name}" in done.out and " is not shown to beat the best static tree: " in done.out
    assert "pool.scheduler=" not in done.out.splitlines()[-1]
    assert policies(*ASK, "drafter=sql", f"pool.scheduler={name}").out == target_text
    load_policy(policies.artifact("policies", name))


def test_several_seeds_give_policies_of_their_own_and_a_spread(policies):
    done = policies("train-policy", *SQL, "policy=resps", "seeds=[1,2]", "traces.temperature=0", "name=spread")
    assert done.code == 0, done.err
    assert "mean and deviation of 3 seeds: replayed " in done.out and "; live " in done.out
    report = json.loads((policies.artifact("reports", "policy-spread") / "report.json").read_text())
    spread = report["curves"]["seeds"]
    assert spread["seeds"] == [0, 1, 2] and len(spread["live"]["values"]) == 3 == len(spread["replayed"]["values"])
    assert spread["live"]["ci95"] is None  # too few prompts
    for name, seed in (("spread", 0), ("spread-seed1", 1), ("spread-seed2", 2)):
        assert open_artifact(policies.artifact("policies", name), "policies").config["seed"] == seed
    alone = policies("train-policy", *SQL, "policy=resps", "seed=0", "name=alone")
    assert alone.code == 0, alone.err
    weights = [
        policies.artifact("policies", name) / "policy.safetensors" for name in ("spread", "alone", "spread-seed1")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes() != weights[2].read_bytes()


def test_sampled_answers_are_recorded_and_decoded(policies):
    typed = ("policy=planner", "traces.temperature=1", "traces.name=sampled", "name=sampled")
    done = policies("train-policy", *SQL, *typed)
    assert done.code == 0, done.err
    report = json.loads((policies.artifact("reports", "policy-sampled") / "report.json").read_text())
    assert {(row["temperature"], row["mismatches"]) for row in report["rows"]} == {(1.0, 0)}
    assert open_artifact(policies.artifact("traces", "sampled"), "traces").config["traces"]["temperature"] == 1.0


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_near_tie_is_decoded_again_in_float64_and_is_no_mismatch(policies, monkeypatch, temperature):
    decode = policy_comparison.generate_in_turns

    def rounded(*arguments: object) -> dict[str, list[Generation]]:
        answers = decode(*arguments)
        for of_method in [*answers.values()][1:]:
            of_method[0].tokens[1] += 1
        return answers

    monkeypatch.setattr(policy_comparison, "generate_in_turns", rounded)
    monkeypatch.setattr(lossless, "top2_margin", lambda *_: 1e-6)
    typed = ("policy=planner", f"traces.temperature={temperature}", f"traces.name=near{temperature}")
    done = policies("train-policy", *SQL, *typed, f"name=near{temperature}")
    assert done.code == 0, done.err
    report = json.loads((policies.artifact("reports", f"policy-near{temperature}") / "report.json").read_text())
    assert [row["mismatches"] for row in report["rows"]] == [0] * 4
    mismatches = report["curves"]["mismatches"]
    assert [entry["method"] for entry in mismatches] == [row["method"] for row in report["rows"][1:]]
    assert {(entry["prompt"], entry["position"], entry["rerun"]) for entry in mismatches} == {(0, 1, True)}


@pytest.mark.parametrize(("num_train", "num_test"), [(200, 80), (10, 80), (1, 80), (3, 1), (1, 1)])
@pytest.mark.parametrize("share", [0.9, 0.4, 0.1, 0.02])
def test_the_suggested_numbers_of_answers_fit(num_train, num_test, share):
    count, traces = int((num_train + num_test) * share), TracesConfig(num_train=num_train, num_test=num_test)
    typed = trace_recording.fitting_counts(traces, share)
    fitting = load_config("train_policy", TrainPolicyConfig, typed.split()).traces if typed else None
    if fitting is None:
        assert count < 2
    elif "num_test" in typed:
        assert fitting.num_train + fitting.num_test == count <= num_test
    else:
        assert fitting.num_train + num_test == count


def test_the_size_of_a_recording_is_estimated_before_it_begins(policies):
    typed = ("train-policy", *SQL, "policy=planner", "traces.name=large", "name=large")
    line = policies(*typed, "traces.num_train=4000000", "traces.max_gb=0.5").one_line()
    assert "the traces large would take up to" in line and "but traces.max_gb=0.5; type traces.max_gb=" in line
    assert not policies.artifact("traces", "large").exists()
    assert ", or " not in policies(*typed, "traces.max_gb=1e-9").one_line()
    assert "recording " in policies(*typed, "live.num_prompts=0").err


def test_an_interrupted_recording_resumes(policies, monkeypatch):
    full = policies.artifact("traces")
    before = {file.name: file.read_bytes() for file in full.glob("shard-*.safetensors")}
    shutil.rmtree(full)
    real, calls = trace_recording.record_shard, []

    def once(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(trace_recording, "record_shard", once)
    assert "interrupted" in policies("train-policy", *SQL, "policy=planner").one_line(130)
    assert not full.exists()
    assert policies("train-policy", *SQL, "policy=planner").code == 0
    assert len(calls) == len(before) + 1
    assert {file.name: file.read_bytes() for file in full.glob("shard-*.safetensors")} == before


def test_a_grid_without_the_default_tree_is_compared_with_it(policies):
    typed = ("policy=marginal", "grid.top_ks=[1]", "grid.depths=[1]", "traces.score_top_k=1", "traces.name=thin")
    done = policies("train-policy", *SQL, *typed, "name=thin")
    assert done.code == 0, done.err
    assert "default tree 6/2/2" in done.out


def test_drafters_and_trees_are_selected_together(policies):
    shutil.copytree(policies.artifact("drafters", "sql"), policies.artifact("drafters", "more"))
    expected = ("policy=joint", "traces.drafters=[sql,more]", "traces.name=both", "policy.arms=3")
    done = policies("train-policy", *SQL, *expected)
    assert done.code == 0, done.err
    report = json.loads((policies.artifact("reports", "policy-joint") / "report.json").read_text())["curves"]
    rates = {row["name"]: row["tokens_per_s"] for row in report["replayed"]}
    assert 1 <= len(report["arms"]) <= 3 and "hedgespec" in rates
    hindsight = rates["best arm of each answer in hindsight"]
    assert hindsight >= max(rate for name, rate in rates.items() if name.endswith("alone")) - 1e-9


MISTAKES = {
    "was made with other settings": ("train-policy", *SQL, "policy=planner", "traces.num_test=3"),
    "or traces.name=OTHER to keep it": ("train-policy", *SQL, "name=new", "traces.num_test=3"),
    "no policies named 'plannerr'": ("train-policy", *SQL, "name=new", "live.policies=[plannerr]"),
    "policy.size_gamma must lie in [0, 1]": ("train-policy", *SQL, "policy=ltd", "policy.size_gamma=1.5"),
    "policy=marginal has no key policy.size_gamma; policy=ltd has": ("train-policy", *SQL, "policy.size_gamma=0.5"),
    "pool.scheduler=planner needs a drafter; type drafter=NAME": (
        "generate",
        "prompt=a",
        "drafter=",
        "pool.scheduler=planner",
    ),
    "chooses trees of EAGLE-3 drafters, got retrieval; type drafter=sql": (
        "generate",
        "prompt=a",
        "drafter=retrieval",
        "pool.scheduler=planner",
    ),
    "measured trees up to 4 nodes": ("train-policy", *SQL, "grid.num_tokens=[1,2,4,99]", "grid.depths=[1,2]"),
    "traces record the scores of top_k=2, which the grid": ("train-policy", *SQL, "policy=ltd", "grid.top_ks=[1]"),
    "lacks drafter=sql, whose trees the policy chooses": ("train-policy", *SQL, "traces.drafters=[general]"),
    "policy.actor must list sizes >= 1, got [0]": ("train-policy", *SQL, "policy=resps", "policy.actor=[0]"),
    "name=router is reserved for the pool's router": ("train-policy", *SQL, "policy=planner", "name=router"),
    "too few to price": ("calibrate", *SQL, "latency.num_prompts=1", "overwrite=true"),
    "latency.path=nowhere.json: there is no such file": ("train-policy", *SQL, "latency.path=nowhere.json"),
    "seeds= is read by policies with a network only": ("train-policy", *SQL, "seeds=[1]"),
    "seeds=[1, 0] must differ from each other and from seed=0": ("train-policy", *SQL, "policy=ltd", "seeds=[1,0]"),
    "policy.parts must be one of": ("train-policy", *SQL, "policy=planner", "policy.parts=[colour]"),
    "grid.depths must be ascending": ("train-policy", *SQL, "grid.depths=[2,1]"),
    "no policy named 'planer'; did you mean": ("train-policy", *SQL, "policy=planer"),
    "but traces and profiles are stored by a drafter's name": ("train-policy", "drafter=runs/tiny/drafters/sql"),
    "type `drafterforge train-policy policy=marginal name=nothing target=hf": (
        "generate",
        "prompt=a",
        "drafter=sql",
        "pool.scheduler=nothing",
    ),
    "selector=router needs pool.router": ("generate", "prompt=a", "drafter=pool", "pool.selector=router"),
}


def test_a_grid_without_the_scored_trees_is_refused_before_anything_is_recorded(policies):
    shutil.rmtree(policies.artifact("traces"))
    line = policies("train-policy", *SQL, "policy=marginal", "name=new", "grid.top_ks=[1]").one_line()
    assert "which the grid" in line and "type traces.score_top_k=1 traces.name=OTHER" in line
    line = policies("train-policy", *SQL, "name=new", "grid.num_tokens=[1,2,4,99]").one_line()
    assert "measured trees up to 4 nodes" in line and not policies.artifact("traces").exists()


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_get_one_line_and_leave_nothing(policies, words):
    before = policies.finished()
    assert words in policies(*MISTAKES[words]).one_line()
    assert policies.finished() == before


def test_a_suggested_command_names_the_target_and_the_runs(policies, tmp_path):
    (tmp_path / "latency.json").write_text("{}")
    line = policies("train-policy", *SQL, f"latency.path={tmp_path / 'latency.json'}").one_line()
    assert "type `drafterforge calibrate drafter=NAME overwrite=true target=hf target.model=" in line
    assert f"runs_dir={policies.runs}` on its device" in line


def test_a_policy_serves_its_drafter_or_a_pool_that_names_it(policies):
    assert policies("train-drafter", "domain=sql", "experiment=smoke", "seed=1", "name=more").code == 0
    ask = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")
    line = policies(*ask, "drafter=more", "pool.scheduler=planner").one_line()
    assert "is a policy for drafter 'sql', not for 'more'; type drafter=sql" in line
    assert "or `drafterforge train-policy drafter=more name=more-planner target=hf" in line
    plain, pooled = policies(*ask, "drafter="), policies(*ask, "drafter=pool", "pool.scheduler=planner")
    assert pooled.code == 0 and pooled.out == plain.out
    assert "was trained for sql; it also chooses the trees of more\n" in pooled.err
    alone = policies(*ask, "drafter=sql", "pool.scheduler=planner")
    assert alone.code == 0 and "also chooses" not in alone.err


def test_a_profile_of_another_target_is_refused_before_anything_is_recorded(policies, tmp_path):
    profile = json.loads((policies.artifact("latency") / "latency.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(profile | {"target": "another"}))
    shutil.rmtree(policies.artifact("traces"))
    line = policies("train-policy", *SQL, f"latency.path={tmp_path / 'other.json'}", "name=new").one_line()
    assert "measured for target 'another', but this is 'tiny'" in line and "calibrate drafter=sql" in line
    assert not policies.artifact("traces").exists()


def test_a_profile_that_was_measured_otherwise_is_measured_again_on_demand(policies, monkeypatch):
    monkeypatch.setattr(calibration, "describe_device", lambda device: "another")
    typed = ("train-policy", *SQL, "policy=planner", "name=new", "live.num_prompts=0")
    line = policies(*typed).one_line()
    assert (
        'latency/sql was measured otherwise (device: "cpu' in line and "type overwrite=true to measure it again" in line
    )
    assert policies(*typed, "overwrite=true").code == 0
    assert read_profile(policies.artifact("latency")).device == "another"


@pytest.mark.parametrize(
    ("pipeline", "command"),
    [
        (train_policy, ("train-policy", *SQL, "policy=planner")),
        (train_drafter, ("train-drafter", "domain=sql", "experiment=smoke")),
    ],
)
def test_a_decoder_that_is_not_lossless_exits_with_1_after_its_report(policies, monkeypatch, pipeline, command):
    real = pipeline.decode_held_out

    def lossy(*inputs):
        rows, *more = real(*inputs)
        return [row | {"mismatches": 1} for row in rows], *more

    monkeypatch.setattr(pipeline, "decode_held_out", lossy)
    done = policies(*command)
    assert done.code == 1 and "not lossless: " in done.err and "next: drafterforge" in done.out


def test_a_policy_of_other_settings_is_refused_before_anything_is_recorded(policies):
    shutil.rmtree(policies.artifact("traces"))
    shutil.rmtree(policies.artifact("latency"))
    line = policies("train-policy", *SQL, "policy=planner", "policy.planner_rounds=3").one_line()
    assert "policies/planner was made with other settings (policy.planner_rounds: 2 there, 3 now)" in line
    assert "name=OTHER to keep it" in line
    assert not policies.artifact("traces").exists() and not policies.artifact("latency").exists()


def test_replay_results_are_printed_before_live_decoding(policies, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_policy, "decode_held_out", interrupted)
    done = policies("train-policy", *SQL, "policy=planner")
    assert "interrupted" in done.one_line(130)
    assert "replayed on held-out answers" in done.out and "perfect foresight" in done.out


def test_a_policy_trained_online_is_compared_with_one_trained_by_replay(policies, monkeypatch, tmp_path):
    script = import_script(Path(__file__).parents[2] / "scripts" / "check_replay_training.py", monkeypatch)
    hf = ("target=hf", f"target.model={policies.target}", "target.name=tiny", PLAIN, f"runs_dir={policies.runs}")
    script.main([*SQL, *hf, "policy.num_envs=1", "--quick", "--json", str(tmp_path / "check.json")])
    report = json.loads((tmp_path / "check.json").read_text())
    figures = report["figures"]
    assert figures["cycles_different"] == 0 and figures["seconds_ratio"] > 0
    assert 0 <= figures["agreement"] <= 1 and min(figures["live_online"], figures["live_replay"]) > 0
    assert set(report["rows"][0]["trees"]) == {"online", "replay", "replay, another seed"}


def test_settings_without_a_size_policy_do_not_change(policies):
    settings = open_artifact(policies.artifact("policies", "planner"), "policies").config["policy"]
    assert not [key for key in settings if key.startswith("size_")]


def test_seconds_of_another_device_price_the_trees_of_this_target(policies):
    done = policies("train-policy", *SQL, "policy=planner", "latency=h100-8b", "live.num_prompts=0", "name=priced")
    assert done.code == 0 and "from the latency profile of H100 with Llama-3.1-8B, as published" in done.out
    curves = json.loads((policies.artifact("reports", "policy-priced") / "report.json").read_text())["curves"]
    assert (curves["priced_by"], curves["profile"]) == ("h100-8b", "H100 with Llama-3.1-8B, as published")
    assert "latency.device=h100-8b" in curves["again"] and "recalibrate" not in curves  # not of this device


def test_policies_of_another_drafter_and_profiles_of_another_device_are_refused(policies, tmp_path):
    folder = policies.artifact("latency")
    profile = json.loads((folder / "latency.json").read_text()) | {"device": "another"}
    (tmp_path / "other.json").write_text(json.dumps(profile))
    done = policies("train-policy", *SQL, f"latency.path={tmp_path / 'other.json'}", "name=other")
    assert done.code == 0 and "from the latency profile of another" in done.out
    shutil.rmtree(folder)
    shutil.rmtree(policies.artifact("drafters"))
    assert policies("train-drafter", "domain=sql", "experiment=smoke", "seed=1", "overwrite=true").code == 0
    words = policies("generate", "prompt=a", "drafter=sql", "pool.scheduler=planner").one_line()
    assert "or has changed since" in words
