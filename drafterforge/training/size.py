"""Settings by the size of the target: `size=auto` picks a file of configs/size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from drafterforge.artifacts.locate import artifact_dir, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.runs import find_drafter, is_generalist
from drafterforge.config.catalogue import flat, group_choices, group_values
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.compose import load_config, to_dict
from drafterforge.config.drafter import Eagle3DrafterConfig
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
SHAPE_KEYS = ("draft_vocab_size", "head", "fc_norm", "norm_output")  # that only new weights have
NEW_WEIGHTS = ("warm", "scratch")  # values of drafter.init


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
    """Whether a command trains, or answers for, a LoRA of a generalist, as far as manifests show.

    Whether a generalist fits the target's weights is known once these are loaded, see `choose_init`.
    """
    if not isinstance(config, PrepareDataConfig):
        return False
    if isinstance(config, TrainDrafterConfig):
        if not config.drafter.undecided:
            return config.drafter.is_adapter
        if typed_shape_key(config) or existing_start(config) in NEW_WEIGHTS:
            return False
    return bool(config.domain.answers_domain and generalists(config))


def generalists(config: PrepareDataConfig) -> list[str]:
    """Names of the target's drafters that a LoRA can be added to, by their manifests."""
    runs_dir, target, name = config.runs_dir, config.target.folder_name, getattr(config, "drafter_name", "")
    names = [drafter for drafter in list_artifacts(runs_dir, target, "drafters") if drafter != name]
    return [drafter for drafter in names if is_generalist(find_drafter(runs_dir, target, drafter))]


def typed_shape_key(cfg: TrainDrafterConfig) -> str:
    """The first key of new weights with neither its default nor the value of the target's size; empty if none."""
    default = Eagle3DrafterConfig()
    keys = [key for key in SHAPE_KEYS if getattr(cfg.drafter, key) != getattr(default, key)]
    sized = size_values(cfg.target, "drafter") if keys else {}
    return next((key for key in keys if key not in sized or getattr(cfg.drafter, key) != sized[key]), "")


def existing_start(cfg: TrainDrafterConfig) -> str:
    """The drafter.init of the drafter that exists by this name, unless it is an adapter; empty if none is kept."""
    folder = artifact_dir(cfg.runs_dir, cfg.target.folder_name, "drafters", cfg.drafter_name)
    if cfg.overwrite or not (folder / MANIFEST).is_file():
        return ""
    drafter = Manifest.read(folder).config.get("drafter", {})
    return drafter.get("init", "") if drafter.get("tuning") == "full" else ""


def has_expert_settings(cfg: TrainDrafterConfig) -> bool:
    """Whether the steps of training are those of an expert's file in configs/size."""
    files = [group_values(GROUP, size)["trainer"] for size in group_choices(GROUP) if size.endswith(EXPERT)]
    return any(all(getattr(cfg.trainer, key) == file[key] for key in ("max_steps", "val_every")) for file in files)


def size_values(target: TargetConfig, section: str) -> dict[str, Any]:
    """The values that `size=auto` gives keys of a section for this target."""
    return group_values(GROUP, size_of(count_weights(target))).get(section, {})


def apply_size(name: str, config: Config, overrides: Sequence[str]) -> Config:
    """The config of a command with the settings of its target's size, except typed ones; prints what they are.

    A typed size becomes that of experts where a LoRA is trained.
    name: of the command's file in `configs/`.  overrides: what the user typed.
    """
    typed = typed_choices(name, overrides).get(GROUP, AUTO)
    if typed == SMALLEST or typed.endswith(EXPERT):
        return config
    num_weights = count_weights(config.target) if typed == AUTO else 0
    size = size_of(num_weights) if typed == AUTO else typed
    is_expert = size != SMALLEST and trains_expert(config)
    if size == SMALLEST or (size == typed and not is_expert):
        return config
    reason = f"{config.target.folder_name} has {num_weights / 1e9:.1f} billion weights"
    if size == typed:
        reason = "a LoRA expert takes fewer steps at a higher rate"
    size += EXPERT if is_expert else ""
    features = ["data.features=cached"] if config.data.stream else []  # a stream has features of its own
    sized = load_config(name, type(config), [*overrides, *features, f"{GROUP}={size}"])
    before, after = (flat(to_dict(settings), "", {}) for settings in (config, sized))
    changed = [f"{key}={plain_value(value)}" for key, value in after.items() if value != before.get(key)]
    if changed and not is_launched():  # `launch` has said it
        say(
            f"settings: size={size}, because {reason}: {' '.join(changed)}; what you type wins, size={SMALLEST} leaves "
            "them out"
        )
    return sized
