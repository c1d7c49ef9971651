"""Let the target answer the prompts of a domain, and cache the features that a drafter is trained on."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.hints import shell_value, target_flags
from drafterforge.data.prompts import load_prompts
from drafterforge.data.stream import DONE
from drafterforge.errors import ConfigError
from drafterforge.interop.vllm.streaming import stream_answers, stream_folder
from drafterforge.training.inputs import answer_prompts, features_of, target_to_answer
from drafterforge.training.size import size_values

Config = PrepareDataConfig


def run(cfg: Config) -> Path:
    if cfg.data.stream:
        return write_stream(cfg)
    prompts = load_prompts(cfg.data, cfg.domain, cfg.seed)  # before the target loads, so that bad input fails at once
    target = target_to_answer(cfg)
    answers = answer_prompts(cfg, target, prompts)
    if cfg.data.features == "cached":
        features_of(cfg, target, answers)
    typed = f"domain={cfg.domain.name} answers={answers.path.name}{source_flags(cfg)}{target_flags(cfg)}"
    print(f"wrote {answers.path}; next: drafterforge train-drafter {typed}")
    return answers.path


def source_flags(cfg: Config) -> str:
    """The keys, each after a space, with which `train-drafter` reads the captured features, or captures none either."""
    if cfg.data.features == "cached" and cfg.data.source == "recorded":
        return f" data=recorded path={shell_value(cfg.data.path)}"
    default = size_values(cfg.target, "data").get("features", "cached")
    return "" if cfg.data.features == default else f" data.features={cfg.data.features}"


def write_stream(cfg: Config) -> Path:
    """Let vLLM answer into a folder, which has no name, and which a repeated command completes."""
    if cfg.name:
        raise ConfigError(f"name={cfg.name} is not read with data.stream=FOLDER; leave it out")
    if cfg.overwrite:
        raise ConfigError(f"overwrite=true is not read with data.stream=; delete {cfg.data.stream} to stream again")
    was_complete = (stream_folder(cfg) / DONE).exists()
    folder = stream_answers(cfg)
    typed = f"domain={cfg.domain.name} data.stream={folder}{target_flags(cfg)}"
    state = f"{folder} is complete already" if was_complete else f"wrote {folder}"
    print(f"{state}; its reader: drafterforge train-drafter {typed}")
    return folder
