"""Lists that describe several drafters in one command: `domain=[sql,math]` and `trainer.lr=[1e-3,4e-3]`.

Every entry stands for a command with that entry alone, so each drafter is that of a run of its own.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

from drafterforge.config.catalogue import SHORTHANDS, command_groups, config_keys
from drafterforge.config.overrides import narrow_to_overrides
from drafterforge.errors import ConfigError

# what experts that are trained together may differ in; they step together, so not in the shape of a step
SEVERAL = (
    "domain",
    "name",
    "seed",
    "answers",
    "val_answers",
    "data.path",
    "data.dataset",
    "data.column",
    "drafter.init",
    "drafter.lora.rank",
    "drafter.lora.alpha",
    "drafter.lora.targets",
    "trainer.lr",
    "trainer.min_lr_ratio",
    "trainer.warmup_ratio",
    "trainer.betas",
    "trainer.weight_decay",
    "trainer.patience",
    "trainer.num_answers",
)
OPENING, CLOSING = "[{(", "]})"


def split_overrides(name: str, config_class: type, overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each drafter that a command describes; of a command without such lists, these alone."""
    keys = config_keys(narrow_to_overrides(name, config_class, overrides))
    lists: dict[str, list[str]] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        key = SHORTHANDS.get(key, key)
        lists.pop(key, None)  # the last one wins
        entries = _entries(text)
        if entries is None:
            continue
        if _holds_list(keys.get(key)):
            if not entries or not all(_entries(entry) is not None for entry in entries):
                continue  # the value of all drafters
            if key not in SEVERAL:
                raise ConfigError(f"{key} takes one list for all drafters of a run, got {text}")
        elif key not in SEVERAL:
            if key in command_groups(name) or (key in keys and keys[key] is not str):
                raise ConfigError(
                    f"{key} takes one value for all drafters of a run, got {text}; lists are read by "
                    f"{', '.join(SEVERAL)}"
                )
            continue
        if not all(entries):
            raise ConfigError(f"{key}={text} has an empty entry; type {key}=[A,B]")
        lists[key] = entries
    lengths = {key: len(entries) for key, entries in lists.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key}= {length}" for key, length in lengths.items())
        raise ConfigError(f"lists of several drafters need equally many entries, got {counts}")
    number = next(iter(lengths.values()), 1)
    return [[_entry(override, lists, index) for override in overrides] for index in range(number)]


def _entry(override: str, lists: dict[str, list[str]], index: int) -> str:
    key = override.partition("=")[0]
    entries = lists.get(SHORTHANDS.get(key, key))
    return override if entries is None else f"{key}={entries[index]}"


def _holds_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _entries(text: str) -> list[str] | None:
    """The entries of a list, split at commas outside of brackets and quotes; None for another text."""
    if not (len(text) >= 2 and text[0] == "[" and text[-1] == "]"):
        return None
    entries, depth, quote = [""], 0, ""
    for letter in text[1:-1]:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth == 0 and not quote:
            entries.append("")
        else:
            entries[-1] += letter
    return [entry.strip() for entry in entries]
