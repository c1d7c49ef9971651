"""Commands that are suggested find the target and the runs of the one before."""

from __future__ import annotations

import shlex

import pytest

from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.config.hints import target_flags


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
