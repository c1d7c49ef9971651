"""Sections whose keys depend on their group's choice: `policy=ltd` has other keys than `policy=marginal`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any, TypeVar, cast

Section = TypeVar("Section")
METADATA = "variants"  # entry of a field's metadata


@dataclass(frozen=True)
class Variants:
    """The classes that a section may have, by the value of one of its keys."""

    key: str
    classes: Mapping[str, type]
    default: str
    chosen: str = ""  # where a command's keys are narrowed to those of a choice

    def keys_of(self, name: str) -> set[str]:
        """Keys of the class of this name, without the sections in it."""
        return {entry.name for entry in fields(self.classes[name])}

    @property
    def keys(self) -> set[str]:
        """Keys that any of the classes has."""
        return set().union(*(self.keys_of(name) for name in self.classes))


def variant(classes: Mapping[str, type[Section]], default: str, *, key: str) -> Section:
    """A section of one of `classes`, which may grow later; the section's own `key` says which."""
    metadata = {"help": "", METADATA: Variants(key, classes, default)}
    return cast("Section", field(default_factory=lambda: classes[default](**{key: default}), metadata=metadata))


def variants_of(config_class: type) -> dict[str, Variants]:
    """The sections of a config class that have variants."""
    return {entry.name: entry.metadata[METADATA] for entry in fields(config_class) if METADATA in entry.metadata}


def narrow(config_class: type, chosen: Mapping[str, str]) -> type:
    """The config class with the class that is chosen for each of these sections."""
    known = variants_of(config_class)
    narrowed: list[tuple[str, Any, Any]] = []
    for section, name in chosen.items():
        section_class = known[section].classes[name]
        metadata = {"help": "", METADATA: dataclasses.replace(known[section], chosen=name)}
        make = partial(section_class, **{known[section].key: name})
        narrowed.append((section, section_class, field(default_factory=make, metadata=metadata)))
    return make_dataclass(config_class.__name__, narrowed, bases=(config_class,), frozen=True)
