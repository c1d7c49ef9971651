"""The groups of a command, their choices, and its keys with defaults and help texts; imports nothing heavy."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any

import yaml

from drafterforge.config.variants import Variants, narrow, variants_of

GLOBAL = ("experiment", "size")  # groups whose files set keys of other groups
CHOICES = "choices"  # of groups, in the file of an experiment
SHORTHANDS = {"path": "data.path", "dataset": "data.dataset", "column": "data.column"}
REGISTERED: dict[str, dict[str, dict[str, Any]]] = {}  # group -> choice -> values, for choices without a YAML file


def add_choice(group: str, choice: str, values: Mapping[str, Any]) -> None:
    """Register `group=choice`, which sets these keys of the group; a YAML file of that name has precedence."""
    if choice not in _files(group):
        REGISTERED.setdefault(group, {})[choice] = dict(values)


def group_choices(group: str) -> list[str]:
    """The choices that a user can type after `group=`."""
    return sorted({*_files(group), *REGISTERED.get(group, {})})


def group_values(group: str, choice: str) -> dict[str, Any]:
    """The values of the group's keys that a choice sets."""
    return REGISTERED.get(group, {}).get(choice) or _yaml(f"{group}/{choice}.yaml")


def experiment_choices(name: str, overrides: Sequence[str]) -> list[str]:
    """The overrides after the choices of groups that a typed experiment makes; what is typed wins."""
    typed = [choice for group, _, choice in (text.partition("=") for text in overrides) if group == "experiment"]
    experiment = typed[-1] if typed and typed[-1] in group_choices("experiment") else None
    choices = group_values("experiment", experiment).get(CHOICES, {}) if experiment else {}
    groups = command_groups(name)
    return [*(f"{group}={choice}" for group, choice in choices.items() if group in groups), *overrides]


def choices_for(group: str, variants: Variants, name: str) -> list[str]:
    """The choices of a group that select the variant `name`; the choice of the same name comes first."""
    choices = [choice for choice in group_choices(group) if variant_name(group, variants, choice) == name]
    return sorted(choices, key=lambda choice: (choice != name, choice))


def variant_name(group: str, variants: Variants, choice: str) -> str:
    """The variant of its section that a choice selects."""
    return group_values(group, choice).get(variants.key, variants.default)


def narrow_to_choices(name: str, config_class: type, choices: Mapping[str, str]) -> type:
    """The config class of a command, restricted to the keys that these choices of groups read."""
    defaults = command_groups(name)
    names: dict[str, str] = {}
    for section, variants in variants_of(config_class).items():
        choice = choices.get(section) or defaults.get(section)
        exists = choice in group_choices(section)
        names[section] = variant_name(section, variants, choice) if exists else variants.default
    return narrow(config_class, names)


def command_groups(name: str) -> dict[str, str | None]:
    """Groups of a command with their default choice; "???": the user must choose."""
    entries = [entry for entry in _yaml(f"{name}.yaml")["defaults"] if isinstance(entry, dict)]
    return {group: choice for entry in entries for group, choice in entry.items()}


def config_keys(config_class: type, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of a config class with its type, in the order of its fields."""
    keys: dict[str, Any] = {}
    for name, hint in field_types(config_class).items():
        nested = dataclasses.is_dataclass(hint)
        keys |= config_keys(hint, f"{prefix}{name}.") if nested else {prefix + name: hint}
    return keys


def default_values(name: str, config_class: type, choices: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The default of every key under these choices of groups: from its class, overridden by the YAML files."""
    values = _class_defaults(config_class)
    for group, default in command_groups(name).items():
        choice = choices.get(group, default)
        if choice not in (None, "???"):
            values |= flat(group_values(group, choice), "" if group in GLOBAL else f"{group}.", values)
    command_values = {key: value for key, value in _yaml(f"{name}.yaml").items() if key != "defaults"}
    values |= flat(command_values, "", values)
    return {key: values.get(value[2:-1], value) if _refers(value) else value for key, value in values.items()}


def help_texts(config_class: type, prefix: str = "") -> dict[str, str]:
    """The help text of every dotted key, in the order of the fields."""
    hints = field_types(config_class)
    texts: dict[str, str] = {}
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        nested = dataclasses.is_dataclass(hint)
        texts |= help_texts(hint, f"{prefix}{field.name}.") if nested else {prefix + field.name: field.metadata["help"]}
    return texts


def did_you_mean(word: str, spellings: Mapping[str, str] | Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean ...?` with the closest spelling; empty if none is close.

    spellings: valid words, or a mapping from them to what the message suggests.  cutoff: least similarity, 1 for equal.
    """
    suggestions = spellings if isinstance(spellings, Mapping) else {spelling: spelling for spelling in spellings}
    close = difflib.get_close_matches(word, suggestions, n=1, cutoff=cutoff)
    return f"; did you mean {suggestions[close[0]]}?" if close else ""


def field_types(config_class: type) -> dict[str, Any]:
    """Resolved type of every field of a config class."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_class)}


def sections(config_class: type) -> set[str]:
    """Names of the fields that are config classes; each has a folder of choices in `configs/`."""
    return {name for name, hint in field_types(config_class).items() if dataclasses.is_dataclass(hint)}


def _refers(value: Any) -> bool:
    """Whether a value refers to another key, as in `${domain.name}`."""
    return isinstance(value, str) and value.startswith("${")


def _files(group: str) -> list[str]:
    folder = resources.files("drafterforge.configs") / group
    files = folder.iterdir() if folder.is_dir() else ()
    return [file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")]


def _yaml(path: str) -> dict[str, Any]:
    text = (resources.files("drafterforge.configs") / path).read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}


def _class_defaults(config_class: type, prefix: str = "") -> dict[str, Any]:
    hints = field_types(config_class)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(hints[field.name]):
            values |= _class_defaults(hints[field.name], f"{prefix}{field.name}.")
        elif field.default is not dataclasses.MISSING:
            values[prefix + field.name] = field.default
        else:
            values[prefix + field.name] = field.default_factory()
    return values


def flat(tree: Mapping[str, Any], prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping flattened to dotted keys; mappings at keys of `leaves` are values and stay."""
    flattened: dict[str, Any] = {}
    for name, value in tree.items():
        key = prefix + name
        nested = isinstance(value, dict) and key not in leaves
        flattened |= flat(value, f"{key}.", leaves) if nested else {key: value}
    return flattened
