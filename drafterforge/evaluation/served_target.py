"""A target whose weights a server loads; here only its tokenizer and its facts are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from drafterforge.config.commands import EvaluateConfig
from drafterforge.errors import ConfigError
from drafterforge.evaluation.vllm_server import is_cpu_build, option
from drafterforge.interop.layout import TargetFacts, read_target
from drafterforge.targets.device import DTYPES, KERNELS, choose_device, describe_device
from drafterforge.targets.load import load_tokenizer, locate_target, longest_sequence

ALIASES = {"half": "float16", "float": "float32"}  # vLLM's names of dtypes


@dataclass(frozen=True)
class ServedTarget:
    """What prompts, exports and reports need to know of a target."""

    facts: TargetFacts
    tokenizer: PreTrainedTokenizerBase
    revision: str | None
    device: torch.device
    dtype: torch.dtype
    max_positions: int  # the longest sequence that is decoded

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def fingerprint(self) -> str:
        return self.facts.fingerprint

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def describe_device(self, version: str) -> str:
        """The device and the release of vLLM, in one line."""
        return f"vLLM {version or 'of unknown version'}, {describe_device(self.device).removesuffix(KERNELS)}"


def open_served_target(cfg: EvaluateConfig, command: Path) -> ServedTarget:
    """The target of a configuration, as servers started with `command` decode it."""
    facts = read_target(cfg.target)
    device = torch.device("cpu") if is_cpu_build(command) else choose_device(cfg.target.device)
    longest = longest_sequence(facts.config)
    limit = option(cfg.suite.server_args, "--max-model-len") or ""
    return ServedTarget(
        facts,
        load_tokenizer(locate_target(cfg.target)[1]),
        cfg.target.revision,
        device,
        served_dtype(cfg, facts),
        min(longest, int(limit)) if limit.isdecimal() else longest,
    )


def served_dtype(cfg: EvaluateConfig, facts: TargetFacts) -> torch.dtype:
    """The dtype that servers compute in: that of `suite.server_args`, of the target's settings, or of its files."""
    name = option(cfg.suite.server_args, "--dtype") or cfg.target.dtype
    name = facts.dtype if name == "auto" else ALIASES.get(name, name)
    if name not in DTYPES:
        raise ConfigError(f"suite.server_args has --dtype {name}; wanted one of {', '.join(DTYPES)}")
    return DTYPES[name]
