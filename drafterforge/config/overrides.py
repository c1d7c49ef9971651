"""Read the user's `group=choice` and `key=value` arguments, with a suggestion for every mistake."""

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
    experiment_choices,
    group_choices,
    narrow_to_choices,
    sections,
)
from drafterforge.config.renamed import REMOVED, RENAMED, RENAMED_CHOICES
from drafterforge.config.variants import variants_of
from drafterforge.errors import ConfigError, quote, shorten

VERBATIM = {"prompt"}  # keys whose text keeps its quotes
ONE_OR_MORE = {"answers", "val_answers"}  # list keys that also take a single entry without brackets
CUSTOM_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # name of a domain without a prompt grammar
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a value"}


def typed_choices(name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The valid choices of groups among the overrides, and those of a typed experiment."""
    groups, overrides = command_groups(name), experiment_choices(name, overrides)
    pairs = [(group, choice) for group, _, choice in (override.partition("=") for override in overrides)]
    return {group: choice for group, choice in pairs if group in groups and choice in group_choices(group)}


def narrow_to_overrides(name: str, config_class: type, overrides: Sequence[str]) -> type:
    """The config class of a command, restricted to the keys that the typed choices of groups read."""
    return narrow_to_choices(name, config_class, typed_choices(name, overrides))


def read_overrides(
    name: str, config_class: type, overrides: Sequence[str]
) -> tuple[dict[str, str], dict[str, str | None], dict[str, Any]]:
    """The overrides as choices of groups, values of text keys, and values of other keys; the last one wins."""
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
            raise ConfigError(f"{quote(override)} is not key=value{_assignment_hint(override, groups, keys)}")
        if override in RENAMED_CHOICES:
            raise ConfigError(f"{override} is now {RENAMED_CHOICES[override]}; type {RENAMED_CHOICES[override]}")
        if key in RENAMED:
            raise ConfigError(f"{key} is now {RENAMED[key]}; type {RENAMED[key]}={shorten(text)}")
        if key in REMOVED:
            raise ConfigError(f"{key} is gone: {REMOVED[key].now}; leave it out")
        if key in groups:
            if text or groups[key]:
                is_custom = key == "domain" and _has_prompt_source(overrides)
                choices[key] = _custom_domain(text) if is_custom else _choice(key, text, groups[key])
        elif hint is None:
            raise ConfigError(
                _key_of_other_choices(name, config_class, key, overrides)
                or _unknown_key(name, typed_key, text, groups, keys, shorthands)
            )
        elif selected := _selected_variant(config_class, key):
            if text != selected:
                section = key.partition(".")[0]
                raise ConfigError(f"{key} is set by {section}=; type {section}={_choice(section, text, None)}")
        elif key in ONE_OR_MORE and text[:1] != "[":
            entry = _text(key, text, str)
            values[key] = [entry] if entry else []
        elif _plain(hint) is str:
            texts[key] = _text(key, text, hint)
        else:
            values[key] = _value(key, text, hint)
    return {g: c for g, c in choices.items() if c != "null"}, texts, values


def _assignment_hint(text: str, groups: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    """`; did you mean ...?` for a text without an equals sign: a key, a choice, or else a prompt."""
    examples = {choice: f"{group}={choice}" for group in groups for choice in group_choices(group)}
    examples |= {key: f"{key}=..." for key in (*groups, *keys)}
    hint = "" if " " in text else did_you_mean(text, examples)
    return hint or (f'; did you mean prompt="{shorten(text)}"?' if "prompt" in keys else "")


def _hint(key: str, keys: Mapping[str, Any]) -> Any | None:
    """The type of a dotted key, or of an entry of a dict such as `domain.weights.sql`; None if there is none."""
    parent, _, entry = key.rpartition(".")
    if key not in keys and entry and typing.get_origin(keys.get(parent)) is dict:
        return typing.get_args(keys[parent])[1]
    return keys.get(key)


def _plain(hint: Any) -> Any:
    """The type without `| None`."""
    plain = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    return plain[0] if isinstance(hint, types.UnionType) else hint


def _has_prompt_source(overrides: Sequence[str]) -> bool:
    """Whether prompts come from a file, a data set or answers made before, so that the domain needs no grammar.

    A source that does not exist counts, so that the error names the source and not the domain.
    """
    pairs = [(key, text) for key, _, text in (override.partition("=") for override in overrides)]
    sources = [text for key, text in pairs if key in ("data", "data.source")]
    answers = [text for key, text in pairs if key == "answers"]
    return bool(sources and sources[-1] != "grammar") or bool(answers and answers[-1].strip("[]"))


def _custom_domain(name: str) -> str:
    if not CUSTOM_DOMAIN.fullmatch(name):
        raise ConfigError(f"a domain's name may contain letters, digits, - and _ only, got domain={name}")
    return name


def _choice(group: str, text: str, default: str | None) -> str:
    choices = group_choices(group)
    if text in choices or (text == "null" and default is None):
        return text
    hint = did_you_mean(text, {choice: f"{group}={choice}" for choice in choices})
    custom = "; for a domain of your own, also type data=jsonl path=FILE.jsonl or data=hf" if group == "domain" else ""
    raise ConfigError(f"no {group} named {quote(text)}{hint} (have: {', '.join(choices)}){custom}")


def _selected_variant(config_class: type, key: str) -> str:
    """The variant that the typed choice selects if `key` is the key that names it; else empty."""
    section, _, leaf = key.partition(".")
    variants = variants_of(config_class).get(section)
    if variants is None or leaf != variants.key:
        return ""
    return variants.selected


def _key_of_other_choices(name: str, config_class: type, key: str, overrides: Sequence[str]) -> str:
    """The message for a key that only other choices of its group read; empty if none does."""
    section = key.partition(".")[0]
    variants = variants_of(config_class).get(section)
    if variants is None:
        return ""
    names = [n for n, c in variants.classes.items() if _hint(key, config_keys(c, f"{section}.")) is not None]
    choices = [choice for variant in names for choice in choices_for(section, variants, variant)[:1]]
    if not choices:
        return ""
    current = typed_choices(name, overrides).get(section, command_groups(name).get(section))
    readers = ", ".join(f"{section}={choice}" for choice in choices)
    return f"{section}={current} has no key {key}; {readers} {'has' if len(choices) == 1 else 'have'}"


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
    spellings |= {spelling: spelling for spelling in (*keys, *groups, *shorthands)}
    if bare != key and bare in (*keys, *groups, *shorthands):
        return f"no config key {quote(key)}; type {bare}={shorten(text)}"
    if section and (close := did_you_mean(leaf, inside, cutoff=0.9)):  # such as a singular for a plural
        hint = close
    elif section and inside and leaf in spellings:  # the right key, in the wrong section
        hint = f"; did you mean {spellings[leaf]}?"
    else:
        hint = did_you_mean(leaf, inside) if section and inside else did_you_mean(bare, spellings)
    if not hint and section and inside:
        hint = f"; {section} has: {', '.join(sorted(inside))}"
    elsewhere = f"; `drafterforge {name.replace('_', '-')} --help` lists them"
    return f"no config key {quote(key)}{hint or elsewhere}"


def _text(key: str, text: str, hint: Any) -> str | None:
    """The text as typed, including spaces, commas and brackets, without enclosing quotes."""
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
    """The value according to hydra's override grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text == "???":
        raise ConfigError(f"{key} needs a value: type {key}=...")
    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
    except HydraException as error:
        plain, quoted = _plain(hint), text.replace("'", "\\'")
        examples = {str: f"'{quoted}'", list[str]: f"['{quoted}']"}
        if plain not in examples or text.startswith(("[", "{")):
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{key}={shorten(text)} cannot be read: {shorten(reason)}") from error
        raise ConfigError(
            f"{key}={shorten(text)} cannot be read; a text with such characters is typed in quotes of both kinds: "
            f'"{key}={shorten(examples[plain])}"'
        ) from error
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
        return True  # resolved when the config is composed
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    # only entries of type Any may be lists or mappings
    scalars = Any not in (_plain(hint), *typing.get_args(_plain(hint))[-1:])
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
