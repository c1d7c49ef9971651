"""Commands that are suggested find the target and the runs of the one before."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafterforge.cli import COMMANDS, main
from drafterforge.config.commands import CalibrateConfig, EvaluateConfig, TrainDrafterConfig, TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.hints import (
    command_for,
    command_for_policy,
    command_for_router,
    complete_commands,
    target_flags,
    typed_settings,
)
from drafterforge.errors import ArtifactError
from drafterforge.pipelines import calibrate, plan, train_policy

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "runs_dir=elsewhere",
        "target=hf target.model=org/model",
        "target=hf target.model=./m target.name=mine target.dtype=float32 runs_dir=r",
        "target=qwen3-8b",
        "target=qwen3-8b target.device=cpu",
        "target.taps=[1,2,3]",
        "target=hf 'target.model=./my model'",
    ],
)
def test_what_was_typed_of_the_target_and_the_runs_is_typed_again(typed):
    words = ["domain=sql", *shlex.split(typed)]
    config = load_config("train_drafter", TrainDrafterConfig, words)
    suggested = target_flags(config)
    again = load_config("train_drafter", TrainDrafterConfig, ["domain=sql", *shlex.split(suggested)])
    assert again == config and len(shlex.split(suggested)) == len(shlex.split(typed))


def test_nothing_is_suggested_for_the_defaults():
    assert target_flags(load_config("train_drafter", TrainDrafterConfig, ["domain=sql"])) == ""


@pytest.mark.parametrize(
    ("message", "completed"),
    [
        ("type `drafterforge calibrate drafter=NAME`", "type `drafterforge calibrate drafter=NAME runs_dir=r`"),
        (
            "`drafterforge train-policy` or `drafterforge export`",
            "`drafterforge train-policy runs_dir=r` or `drafterforge export runs_dir=r`",
        ),
        ("type `drafterforge inspect PATH`", "type `drafterforge inspect PATH`"),
        ("type `pip install drafterforge`, or drafter=NAME", "type `pip install drafterforge`, or drafter=NAME"),
    ],
)
def test_every_command_in_backticks_gets_the_keys(message, completed):
    assert complete_commands(message, " runs_dir=r") == completed


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (command_for("sql-retrieval"), "train-drafter domain=sql drafter=retrieval"),
        (command_for("mine"), "train-drafter domain=mine data=jsonl path=FILE"),
        (command_for("mine", "chat"), "train-drafter domain=chat name=mine"),
        (command_for("mine", "own"), "train-drafter domain=own data=jsonl path=FILE name=mine"),
        (command_for_policy("planner"), "train-policy policy=planner"),
        (command_for_policy("runs/house"), "train-policy policy=marginal name=house"),
        (command_for_router("router"), "train-policy policy=router"),
        (command_for_router("house"), "train-policy policy=router name=house"),
    ],
)
def test_the_command_for_an_artifact_gives_it_its_name(command, words):
    assert command == f"drafterforge {words}"


def test_the_command_line_completes_the_hint_of_an_error_raised_without_the_config(monkeypatch, capsys):
    def refuse(config):
        raise ArtifactError("no latency profile; type `drafterforge calibrate drafter=NAME`")

    monkeypatch.setattr(plan, "run", refuse)
    assert (
        main(
            [
                "plan",
                "train-drafter",
                "domain=sql",
                "size=135m",
                "target=hf",
                "target.model=org/model",
                "runs_dir=my runs",
            ]
        )
        == 2
    )
    hint = "`drafterforge calibrate drafter=NAME target=hf target.model=org/model runs_dir='my runs'`"
    assert hint in capsys.readouterr().err


def test_errors_suggest_commands_in_backticks_and_leave_the_target_out():
    command = re.compile(rf"(?<!`)drafterforge ({'|'.join(COMMANDS)})\b")
    for path in [*ROOT.glob("drafterforge/**/*.py"), *ROOT.glob("pipelines/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc:
                source = ast.unparse(node.exc)
                assert not command.search(source) and "flags(" not in source, f"{path.name}:{node.lineno}"


def test_the_settings_that_an_evaluation_is_typed_with_again():
    typed = ["suite=papers", "suite.questions=Q", "pool.drafters=[general,sql]", "runtime.depth=4", "seed=3"]
    cfg = load_config("eval", EvaluateConfig, typed)
    assert shlex.split(typed_settings(cfg)) == typed
    assert typed_settings(load_config("eval", EvaluateConfig, [])) == "suite=quick"


POLICY = "policy=resps-text grid=small grid.depths=[1,2] traces.temperature=1 latency.path=tests seed=3 name=house"


@pytest.mark.parametrize("typed", ["", POLICY, "policy=ltd policy.name=own latency.device=h100-8b seeds=[1,2]"])
def test_what_was_typed_of_a_policy_is_typed_again(typed):
    cfg = load_config("train_policy", TrainPolicyConfig, typed.split())
    again = shlex.split(train_policy.typed_flags(cfg))
    assert load_config("train_policy", TrainPolicyConfig, again) == cfg
    assert len(again) == max(len(typed.split()), 1)


CALIBRATE = "drafter=sql name=quiet grid=small grid.depths=[1,2] latency.num_prompts=99 seed=3 domains=[sql]"


@pytest.mark.parametrize("typed", ["", CALIBRATE, "grid.num_tokens=[1,2] runtime.numerics=fast"])
def test_what_was_typed_of_a_calibration_is_typed_again(typed):
    cfg = load_config("calibrate", CalibrateConfig, typed.split())
    again = [f"drafter={cfg.drafter}", *shlex.split(calibrate.typed_flags(cfg))]
    assert load_config("calibrate", CalibrateConfig, again) == cfg
    assert len(again) == max(len(typed.split()), 1) + ("drafter" not in typed and bool(typed))


@pytest.mark.parametrize(("is_new", "words"), [(True, "wrote quiet/"), (False, "measured earlier: quiet/")])
def test_the_next_step_uses_the_profile_that_was_measured(monkeypatch, capsys, is_new, words):
    for name in ("load_target", "warn_if_busy", "require_cycles_to_calibrate", "print_profile"):
        monkeypatch.setattr(calibrate, name, lambda *_: None)
    monkeypatch.setattr(calibrate, "calibrate", lambda *_: (Path("quiet"), is_new))
    monkeypatch.setattr(calibrate, "read_profile", lambda _: SimpleNamespace(errors={"total": 0.5}))
    calibrate.run(CalibrateConfig(name="quiet"))
    noisy, line = capsys.readouterr().out.splitlines()
    assert noisy.endswith("type: drafterforge calibrate drafter=general name=quiet overwrite=true")
    assert line.startswith(words) and line.endswith("drafterforge train-policy drafter=general latency.path=quiet")
    calibrate.run(CalibrateConfig())
    assert capsys.readouterr().out.endswith("train-policy drafter=general\n")
