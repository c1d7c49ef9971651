"""Sections whose keys depend on the choice of their group: `policy=ltd` has other keys than `policy=marginal`."""

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
    """The classes that a section may have; the value of one of its keys names the class."""

    key: str
    classes: Mapping[str, type]
    default: str
    selected: str = ""  # name of the class that `narrow` selected

    def keys_of(self, name: str) -> set[str]:
        """Names of the fields of a class."""
        return {entry.name for entry in fields(self.classes[name])}

    @property
    def keys(self) -> set[str]:
        """Names of the fields of all classes."""
        return set().union(*(self.keys_of(name) for name in self.classes))


def variant(classes: Mapping[str, type[Section]], default: str, *, key: str) -> Section:
    """A field whose class is one of `classes`, named by its own `key`; classes may be registered later."""
    metadata = {"help": "", METADATA: Variants(key, classes, default)}
    return cast("Section", field(default_factory=lambda: classes[default](**{key: default}), metadata=metadata))


def variants_of(config_class: type) -> dict[str, Variants]:
    """The sections of a config class that have variants."""
    return {entry.name: entry.metadata[METADATA] for entry in fields(config_class) if METADATA in entry.metadata}


def narrow(config_class: type, names: Mapping[str, str]) -> type:
    """A subclass of `config_class` with fixed classes of sections.  names: section -> name of its class."""
    variants = variants_of(config_class)
    narrowed: list[tuple[str, Any, Any]] = []
    for section, name in names.items():
        section_class = variants[section].classes[name]
        metadata = {"help": "", METADATA: dataclasses.replace(variants[section], selected=name)}
        make = partial(section_class, **{variants[section].key: name})
        narrowed.append((section, section_class, field(default_factory=make, metadata=metadata)))
    return make_dataclass(config_class.__name__, narrowed, bases=(config_class,), frozen=True)
