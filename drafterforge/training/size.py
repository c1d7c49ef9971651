"""Settings by the size of the target: `size=auto` picks a file of configs/size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from drafterforge.artifacts.locate import list_artifacts
from drafterforge.assembly.runs import GENERAL
from drafterforge.config.catalogue import flat, group_values
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.compose import load_config, to_dict
from drafterforge.config.hints import plain_value
from drafterforge.config.overrides import typed_choices
from drafterforge.config.progress import say
from drafterforge.config.target import TargetConfig
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.shape import ModelShape, find_config
from drafterforge.training.launch import is_launched

Config = TypeVar("Config")

GROUP, AUTO, SMALLEST, EXPERT = "size", "auto", "135m", "-expert"
LIMITS = {SMALLEST: 0.6, "1b": 4.0, "8b": 16.0, "32b": 45.0}  # billions of weights below which a size is picked
LARGEST = "70b"


def size_of(num_weights: int) -> str:
    """The choice of the group `size` for a target of so many weights."""
    return next((size for size, limit in LIMITS.items() if num_weights < 1e9 * limit), LARGEST)


def count_weights(target: TargetConfig) -> int:
    """Weights of a target by its config.json; 0 for the embedded one, and if there is no config of a known kind."""
    if target.source == "wheel":  # the smallest target, whose settings are the defaults
        return 0
    try:
        return ModelShape.read(find_config(target)).num_weights
    except DrafterforgeError:
        return 0  # `load_target` says what is wrong, or knows more kinds of models


def trains_expert(config: object) -> bool:
    """Whether a command trains or answers for a LoRA of a generalist, or leaves that open and there is one."""
    if isinstance(config, TrainDrafterConfig) and not config.drafter.undecided:
        return config.drafter.is_adapter
    if not isinstance(config, PrepareDataConfig) or not config.domain.answers_domain:
        return False
    return GENERAL in list_artifacts(config.runs_dir, config.target.folder_name, "drafters")


def size_values(target: TargetConfig, section: str) -> dict[str, Any]:
    """The values that `size=auto` gives keys of a section for this target."""
    return group_values(GROUP, size_of(count_weights(target))).get(section, {})


def apply_size(name: str, config: Config, overrides: Sequence[str]) -> Config:
    """The config of a command with the settings of its target's size, except typed ones; prints what they are.

    name: of the command's file in `configs/`.  overrides: what the user typed.
    """
    if typed_choices(name, overrides).get(GROUP, AUTO) != AUTO:
        return config
    num_weights = count_weights(config.target)
    size = size_of(num_weights)
    if size == SMALLEST:
        return config
    size += EXPERT if trains_expert(config) else ""
    features = ["data.features=cached"] if config.data.stream else []  # a stream has features of its own
    sized = load_config(name, type(config), [*overrides, *features, f"{GROUP}={size}"])
    before, after = (flat(to_dict(settings), "", {}) for settings in (config, sized))
    changed = [f"{key}={plain_value(value)}" for key, value in after.items() if value != before.get(key)]
    if changed and not is_launched():  # `launch` has said it
        say(
            f"settings: size={size}, because {config.target.folder_name} has {num_weights / 1e9:.1f} billion weights: "
            f"{' '.join(changed)}; what you type wins, size={SMALLEST} leaves them out"
        )
    return sized
