"""Compose the YAML files of a command and the user's overrides into a checked value of its config class."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import yaml

from drafterforge.config.catalogue import (
    CHOICES,
    REGISTERED,
    command_groups,
    config_keys,
    did_you_mean,
    experiment_choices,
    field_types,
    flat,
    group_choices,
    sections,
)
from drafterforge.config.overrides import narrow_to_overrides, read_overrides
from drafterforge.config.variants import variants_of
from drafterforge.errors import ConfigError
from drafterforge.prompts.domains import domains

Config = TypeVar("Config")
CUSTOM_DOMAIN = "own"  # hydra's name for a domain without a YAML file
TRAFFIC = "traffic"  # the domain of data=traffic, which need not be typed


def load_config(name: str, config_class: type[Config], overrides: Sequence[str]) -> Config:
    """Compose `configs/<name>.yaml` and the user's overrides into a checked `config_class`."""
    overrides = experiment_choices(name, overrides)
    narrowed = narrow_to_overrides(name, config_class, overrides)
    choices, texts, values = read_overrides(name, narrowed, overrides)
    if choices.get("data") == TRAFFIC:
        choices.setdefault("domain", TRAFFIC)
    tree = _tree(narrowed, _compose(name, narrowed, choices), texts, values)
    if "runs_dir" in tree:  # no shell expands the ~ of runs_dir=~/runs
        tree["runs_dir"] = os.path.expanduser(tree["runs_dir"])
    config = _build(narrowed, tree, config_class)
    if hasattr(config, "require_read"):
        config.require_read([*texts, *values])
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars."""
    return dataclasses.asdict(config)


def to_yaml(config: Any) -> str:
    """The configuration as YAML, in the order of its fields."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def _compose(name: str, config_class: type, choices: Mapping[str, str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    for group, registered in REGISTERED.items():
        for choice, values in registered.items():
            ConfigStore.instance().store(name=choice, node=values, group=group)
    domain = choices.get("domain")
    if domain is not None and domain not in group_choices("domain"):  # the user's own domain
        ConfigStore.instance().store(name=CUSTOM_DOMAIN, node={"name": domain, "grammar": False}, group="domain")
        choices = {**choices, "domain": CUSTOM_DOMAIN}
    try:
        with initialize_config_module("drafterforge.configs", version_base="1.3"):
            composed = compose(name, [f"{group}={choice}" for group, choice in choices.items()])
    except HydraException as error:
        for group, default in command_groups(name).items():
            if default == "???" and group not in choices:
                options = group_choices(group)
                example = "sql" if "sql" in options else options[0]
                raise ConfigError(
                    f"{name.replace('_', '-')} needs a {group}: type {group}={example} (have: {', '.join(options)})"
                ) from error
        raise ConfigError(str(error).splitlines()[0]) from error
    tree = OmegaConf.to_container(composed)
    tree.pop(CHOICES, None)
    if tree.get("domain", {}).get("weights") == "equal":
        tree["domain"]["weights"] = dict.fromkeys(domains(), 1.0)
    # An experiment sets keys of several commands and choices; drop those that this command does not have.
    for section, variants in variants_of(config_class).items():
        foreign = variants.keys - field_types(field_types(config_class)[section]).keys()
        tree[section] = {key: value for key, value in tree.get(section, {}).items() if key not in foreign}
    foreign = {key for key in tree if group_choices(key) and key not in sections(config_class)}
    return {k: v for k, v in tree.items() if k not in foreign or not isinstance(v, dict)}


def _tree(
    config_class: type,
    composed: Mapping[str, Any],
    texts: Mapping[str, str | None],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    keys = config_keys(config_class)
    for key in flat(composed, "", keys):
        if key not in keys:
            raise ConfigError(f"a YAML file sets {key!r}, which is no config key{did_you_mean(key, list(keys))}")
    try:
        config = OmegaConf.structured(config_class)
        for section in {key.rpartition(".")[0] for key in keys}:  # omegaconf makes frozen classes read-only
            OmegaConf.set_readonly(OmegaConf.select(config, section) if section else config, False)
        config = OmegaConf.merge(config, composed, *(_nested(key, value) for key, value in values.items()))
        tree = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if getattr(error, "full_key", None) else ""
        raise ConfigError(f"{where}{str(error).splitlines()[0]}") from error
    for key, text in texts.items():
        *sections, leaf = key.split(".")
        branch = tree
        for section in sections:
            branch = branch[section]
        branch[leaf] = text
    return tree


def _nested(key: str, value: Any) -> Any:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _build(narrowed: type, tree: Mapping[str, Any], config_class: type[Config]) -> Config:
    """An instance of `config_class` whose sections have the classes of `narrowed`, its narrowed subclass."""
    hints = field_types(narrowed)
    return config_class(
        **{
            name: _build(hint, tree[name], hint) if dataclasses.is_dataclass(hint) else tree[name]
            for name, hint in hints.items()
        }
    )
