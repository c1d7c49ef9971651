"""What drafter.init=auto chooses: a LoRA expert of a trained generalist where one fits, else new weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.runs import GENERAL, RunsFolder, is_generalist
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.drafter import FeatureDrafterConfig
from drafterforge.config.hints import target_flags
from drafterforge.config.progress import say
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.errors import ConfigError
from drafterforge.targets.load import Target
from drafterforge.training.size import (
    existing_start,
    generalists,
    has_expert_settings,
    trains_expert,
    typed_shape_key,
)

COPIED = (  # by drafter.init=warm, of the target's last layer
    *(
        f"{part}_proj.weight"
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    ),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
SWISH = ("silu", "swish")  # activations of a SwiGLU MLP, as a drafter's is
EXPECTED = (
    "expect 1.2 to 1.5 tokens per cycle unless you train on thousands of prompts for thousands of steps "
    "(SmolLM2-135M: 1.2 from 60 prompts, 1.3 from thousands in 120 steps, 2.5 in several thousand steps)"
)
EXPECTED_GAIN = (
    "an expert pays from some 50 prompts on if the generalist has not learned from its domain "
    "(SmolLM2-135M, Python: 8 % more tokens per cycle from 50, 11 % from 400)"
)


def choose_init(cfg: TrainDrafterConfig, target: Target) -> TrainDrafterConfig:
    """The configuration with `drafter.init` decided; prints what was chosen, why, and how to choose otherwise."""
    if not cfg.drafter.undecided:
        require_start(cfg, target)
        return cfg
    missing = missing_tensor(target)
    new_weights = replace(cfg, drafter=replace(cfg.drafter, init="scratch" if missing else "warm"))
    if existing_start(cfg) == new_weights.drafter.init:  # trained before a generalist was
        return new_weights
    generalist = generalist_for(cfg, target)
    if reason := reason_for_new_weights(cfg, generalist):
        random = f"; they are random, because the target's last layer has no {missing}" if missing else ""
        say(f"drafter: {cfg.drafter_name} gets new weights, because {reason}{random}")
        if has_expert_settings(cfg):
            say("settings: a size picked those of a LoRA expert; drafter=eagle3 picks those of new weights")
        return new_weights
    return expert_of(cfg, generalist)


def choose_init_by_manifests(cfg: TrainDrafterConfig) -> TrainDrafterConfig:
    """As `choose_init`, as far as it can be known without the target: drafter.init=auto stays for new weights."""
    return expert_of(cfg, first_of(generalists(cfg))) if cfg.drafter.undecided and trains_expert(cfg) else cfg


def expert_of(cfg: TrainDrafterConfig, generalist: str) -> TrainDrafterConfig:
    """The configuration of a LoRA expert of this generalist; says that it is chosen, and why."""
    say(
        f"drafter: {cfg.drafter_name} adds a LoRA to {generalist}, a trained generalist of {cfg.target.folder_name}, "
        f"because new weights need thousands of prompts; {EXPECTED_GAIN}; drafter=eagle3 trains new weights"
    )
    return replace(cfg, drafter=replace(cfg.drafter, init=generalist, tuning="lora"))


def reason_for_new_weights(cfg: TrainDrafterConfig, generalist: str) -> str:
    """Why no expert of the generalist is trained; empty if one is.  generalist: empty if there is none."""
    from_generalist = f"; drafter.init={generalist} starts from {generalist}"
    if not cfg.domain.answers_domain:
        return "a mixture of domains makes a generalist" + (from_generalist if generalist else f"; {EXPECTED}")
    if not generalist:
        first = f"drafterforge train-drafter domain=general{target_flags(cfg)}"
        return f"no trained generalist fits the target; {EXPECTED}; `{first}` makes a generalist to start from"
    typed = typed_shape_key(cfg)
    return f"drafter.{typed} describes them{from_generalist}" if typed else ""


def require_start(cfg: TrainDrafterConfig, target: Target) -> None:
    """ConfigError if drafter.init=warm cannot copy the target's last layer."""
    if not isinstance(cfg.drafter, FeatureDrafterConfig) or cfg.drafter.init != "warm":
        return
    if missing := missing_tensor(target):
        raise ConfigError(
            f"drafter.init=warm copies the last layer of {target.name}, which has no {missing}; "
            "type drafter.init=scratch"
        )


def missing_tensor(target: Target) -> str:
    """What drafter.init=warm copies and the target's last layer lacks, such as a tensor; empty if there is nothing."""
    config = target.config
    if getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu") not in SWISH:  # as Gemma
        return "SwiGLU MLP"
    weights = TargetWeights(target.folder)
    prefix = f"model.layers.{target.config.num_hidden_layers - 1}."
    return next((name for name in COPIED if prefix + name not in weights), "") if weights.paths else ""


def generalist_for(cfg: TrainDrafterConfig, target: Target) -> str:
    """The name of an EAGLE-3 drafter of all domains that a LoRA can be added to; empty if there is none."""
    runs = RunsFolder(cfg.runs_dir, target)
    return first_of([name for name in runs.names() if name != cfg.drafter_name and fits(runs, name)])


def first_of(names: Sequence[str]) -> str:
    """The generalist that an expert adds to by default, of these; empty if there is none."""
    return GENERAL if GENERAL in names else next(iter(names), "")


def fits(runs: RunsFolder, name: str) -> bool:
    """Whether a drafter is a generalist with weights of its own that reads the target as it is tapped."""
    folder, target = runs.find(name), runs.target
    if not is_generalist(folder) or Manifest.read(folder).target_fingerprint != target.fingerprint:
        return False
    config = folder / "config.json"
    return DrafterSpec.from_config(read_json(config), str(config)).tap_layers == tuple(target.backbone.taps)
