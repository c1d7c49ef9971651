"""What the user typed, sorted and checked key by key, with a suggestion for every mistake."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.config.catalogue import (
    SHORTHANDS,
    choices_for,
    command_groups,
    config_keys,
    did_you_mean,
    group_choices,
    narrowed,
    sections,
)
from drafterforge.config.variants import variants_of
from drafterforge.errors import ConfigError, quote, shorten

VERBATIM = {"prompt"}  # keys whose text is never unquoted
ONE_OR_MORE = {"answers", "val_answers"}  # lists whose only entry may be typed alone
OWN_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # name of a domain that has no prompt grammar
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def choices_typed(name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The choices of groups among overrides; others, and mistakes, are left out."""
    groups = command_groups(name)
    typed = [(group, choice) for group, _, choice in (override.partition("=") for override in overrides)]
    return {group: choice for group, choice in typed if group in groups and choice in group_choices(group)}


def narrowed_by(name: str, config_class: type, overrides: Sequence[str]) -> type:
    """The config class with the keys that what is typed reads."""
    return narrowed(name, config_class, choices_typed(name, overrides))


def read_overrides(
    name: str, config_class: type, overrides: Sequence[str]
) -> tuple[dict[str, str], dict[str, str | None], dict[str, Any]]:
    """Sort overrides into choices of groups, texts, and other values; the last one wins."""
    groups = command_groups(name)
    keys = config_keys(config_class)
    shorthands = SHORTHANDS if "data" in sections(config_class) else {}
    choices: dict[str, str] = {}
    texts: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    for override in overrides:
        typed_key, equals, text = override.partition("=")
        key = shorthands.get(typed_key, typed_key)
        hint = _hint(key, keys)
        if not equals:
            examples = {c: f"{g}={c}" for g in groups for c in group_choices(g)}
            examples |= {key: f"{key}=..." for key in (*groups, *keys)}
            raise ConfigError(f"{quote(override)} is not key=value{did_you_mean(override, examples)}")
        if key in groups:
            if text or groups[key]:
                own = key == "domain" and _brings_prompts(overrides)
                choices[key] = _own_domain(text) if own else _choice(key, text, groups[key])
        elif hint is None:
            raise ConfigError(
                _of_another_choice(name, config_class, key, overrides)
                or _unknown_key(name, typed_key, text, groups, keys, shorthands)
            )
        elif chooser := _chooser(config_class, key):
            if text != chooser:
                section = key.partition(".")[0]
                raise ConfigError(f"{key} is set by {section}=; type {section}={_choice(section, text, None)}")
        elif key in ONE_OR_MORE and text[:1] != "[":
            alone = _text(key, text, str)
            values[key] = [alone] if alone else []
        elif _plain(hint) is str:
            texts[key] = _text(key, text, hint)
        else:
            values[key] = _value(key, text, hint)
    return {g: c for g, c in choices.items() if c != "null"}, texts, values


def _hint(key: str, keys: Mapping[str, Any]) -> Any | None:
    """Type of a dotted key, also of an entry of a dict such as `domain.weights.sql`."""
    parent, _, entry = key.rpartition(".")
    if key not in keys and entry and typing.get_origin(keys.get(parent)) is dict:
        return typing.get_args(keys[parent])[1]
    return keys.get(key)


def _plain(hint: Any) -> Any:
    """The type without `| None`."""
    plain = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    return plain[0] if isinstance(hint, types.UnionType) else hint


def _brings_prompts(overrides: Sequence[str]) -> bool:
    """Whether prompts come from a file or a data set, so that a domain needs no grammar."""
    sources = [text for key, _, text in (o.partition("=") for o in overrides) if key in ("data", "data.source")]
    return sources[-1:] in (["jsonl"], ["hf"])


def _own_domain(name: str) -> str:
    if not OWN_DOMAIN.fullmatch(name):
        raise ConfigError(f"the name of a domain is made of letters, digits, - and _, got domain={name}")
    return name


def _choice(group: str, text: str, default: str | None) -> str:
    known = group_choices(group)
    if text in known or (text == "null" and default is None):
        return text
    spellings = {choice: f"{group}={choice}" for choice in known}
    own = "; a domain of your own is typed with data=jsonl path=FILE.jsonl or data=hf" if group == "domain" else ""
    raise ConfigError(f"no {group} named {quote(text)}{did_you_mean(text, spellings)} (have: {', '.join(known)}){own}")


def _chooser(config_class: type, key: str) -> str:
    """The variant that is chosen, where the key is the one that names it."""
    section, _, leaf = key.partition(".")
    variants = variants_of(config_class).get(section)
    if variants is None or leaf != variants.key:
        return ""
    return variants.chosen


def _of_another_choice(name: str, config_class: type, key: str, overrides: Sequence[str]) -> str:
    """What to say of a key that other choices of its group read; empty if none does."""
    section = key.partition(".")[0]
    variants = variants_of(config_class).get(section)
    if variants is None:
        return ""
    having = [n for n, c in variants.classes.items() if _hint(key, config_keys(c, f"{section}.")) is not None]
    choices = [choice for variant in having for choice in choices_for(section, variants, variant)[:1]]
    if not choices:
        return ""
    typed = choices_typed(name, overrides).get(section, command_groups(name).get(section))
    readers = ", ".join(f"{section}={choice}" for choice in choices)
    return f"{section}={typed} has no key {key}; {readers} {'has' if len(choices) == 1 else 'have'}"


def _unknown_key(
    name: str,
    key: str,
    text: str,
    groups: Mapping[str, Any],
    keys: Mapping[str, Any],
    shorthands: Mapping[str, str],
) -> str:
    bare = key.lstrip("+~-")
    section, _, leaf = bare.rpartition(".")
    inside = {k.rpartition(".")[2]: k for k in reversed(keys) if k.startswith(f"{section}.")}
    spellings = {k.rpartition(".")[2]: k for k in reversed(keys)}
    spellings |= {known: known for known in (*keys, *groups, *shorthands)}
    if bare != key and bare in (*keys, *groups, *shorthands):
        return f"no config key {quote(key)}; type {bare}={shorten(text)}"
    if section and inside and leaf in spellings:  # the right key, in the wrong section
        hint = f"; did you mean {spellings[leaf]}?"
    else:
        hint = did_you_mean(leaf, inside) if section and inside else did_you_mean(bare, spellings)
    if not hint and section and inside:
        hint = f"; {section} has: {', '.join(sorted(inside))}"
    elsewhere = f"; `drafterforge {name.replace('_', '-')} --help` lists them"
    return f"no config key {quote(key)}{hint or elsewhere}"


def _text(key: str, text: str, hint: Any) -> str | None:
    """Text is taken as typed, with spaces, commas and brackets; quotes around it are dropped."""
    if key in VERBATIM:
        return text
    if text == "null":
        if isinstance(hint, types.UnionType):
            return None
        raise ConfigError(f"{key} cannot be null; type {key}= for an empty text")
    if text == "???":
        raise ConfigError(f"{key} needs a value: type {key}=...")
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _value(key: str, text: str, hint: Any) -> Any:
    """The value as hydra's override grammar reads it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text == "???":
        raise ConfigError(f"{key} needs a value: type {key}=...")
    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}={shorten(text)} cannot be read: {shorten(reason)}") from error
    if override.is_sweep_override():
        raise ConfigError(f"{key} takes one value, got {quote(text)}; a list is typed as [a,b]")
    value = override.value()
    if value == "" or not _convertible(value, hint):
        raise ConfigError(f"{key} must be {_words(hint)}, got {quote(text)}")
    return value


def _convertible(value: Any, hint: Any) -> bool:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(value, str) and "${" in value:
        return True  # known once everything is composed
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    scalars = typing.get_args(_plain(hint))[-1:] != (Any,)  # a list or mapping in a list or mapping is for Any alone
    if scalars and any(isinstance(entry, list | dict) for entry in entries):
        return False
    probe = dataclasses.make_dataclass("Probe", [("value", hint)])
    if isinstance(value, bool) and _plain(hint) is not bool:
        return False
    try:
        OmegaConf.merge(OmegaConf.structured(probe), {"value": value})
    except OmegaConfBaseException:
        return False
    return True


def _words(hint: Any) -> str:
    plain = _plain(hint)
    if typing.get_origin(plain) is list:
        words = f"a list such as [a,b], of {WORDS[typing.get_args(plain)[0]].removeprefix('a ')}"
        words = words if words.endswith("text") else f"{words}s"
    elif typing.get_origin(plain) is dict:
        words = f"a mapping such as {'{a:b,c:d}' if typing.get_args(plain)[1] is str else '{a:1,b:2}'}"
    else:
        words = WORDS[plain]
    return f"{words}, or null" if isinstance(hint, types.UnionType) else words
