"""prompts -> the target's own answers -> features: what a drafter of a domain learns from."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.hints import typed_target
from drafterforge.data.prompts import load_prompts
from drafterforge.targets.load import load_target
from drafterforge.training.inputs import answer_prompts, features_of

Config = PrepareDataConfig


def run(cfg: Config) -> Path:
    """Answer prompts of a domain; cache features unless data.features=online."""
    prompts = load_prompts(cfg.data, cfg.domain, cfg.seed)  # first: bad input should not wait for the target
    target = load_target(cfg.target)
    answers = answer_prompts(cfg, target, prompts)
    if cfg.data.features == "cached":
        features_of(cfg, target, answers)
    found = f"domain={cfg.domain.name} answers={answers.path.name}"
    print(f"wrote {answers.path}; next: drafterforge train-drafter {found}{typed_target(cfg)}")
    return answers.path
