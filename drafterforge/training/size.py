"""Settings by the size of the target: `size=auto` picks a file of configs/size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from drafterforge.config.catalogue import flat
from drafterforge.config.compose import load_config, to_dict
from drafterforge.config.hints import plain_value
from drafterforge.config.overrides import typed_choices
from drafterforge.config.progress import say
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.shape import ModelShape, find_config
from drafterforge.training.launch import is_launched

Config = TypeVar("Config")

GROUP, AUTO, SMALLEST = "size", "auto", "135m"
LIMITS = {SMALLEST: 0.6, "1b": 4.0, "8b": 16.0, "32b": 45.0}  # billions of weights below which a size is picked
LARGEST = "70b"


def size_of(num_weights: int) -> str:
    """The choice of the group `size` for a target of so many weights."""
    return next((size for size, limit in LIMITS.items() if num_weights < 1e9 * limit), LARGEST)


def apply_size(name: str, config: Config, overrides: Sequence[str]) -> Config:
    """The config of a command with the settings of its target's size, except typed ones; prints what they are.

    name: of the command's file in `configs/`.  overrides: what the user typed.
    """
    if typed_choices(name, overrides).get(GROUP, AUTO) != AUTO:
        return config
    if config.target.source == "wheel":  # the smallest target, whose settings are the defaults
        return config
    try:
        num_weights = ModelShape.read(find_config(config.target)).num_weights
    except DrafterforgeError:
        return config  # `load_target` says what is wrong, or knows more kinds of models
    size = size_of(num_weights)
    if size == SMALLEST:
        return config
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
