"""Recorded config keys and values: renamed ones under their present names, without removed and uncompared keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

RENAMED = {
    "traces.told_top_k": "traces.score_top_k",
    "policy.every": "policy.hold_cycles",
    "policy.train_every": "policy.train_hold_cycles",
}
RENAMED_CHOICES = {"data=served": "data=recorded"}
RENAMED_VALUES = {("data.source", "served"): "recorded"}
UNCOMPARED = {"trainer": ("loggers", "log_every", "loss_chunk", "checkpoint_steps")}  # change no result, by section
ADDED = ("dtype",)  # keys of an artifact that those of earlier versions lack, which match any value


class RemovedKey(NamedTuple):
    """What became of a removed key."""

    value: Any  # the recorded value that means what happens now
    now: str  # what happens now


_READ_INTERVAL = RemovedKey(
    1, "all drafters read in every cycle if the selector evaluates them, else a drafter reads only when it drafts"
)
REMOVED = {"pool.every": _READ_INTERVAL, "pool.read_interval": _READ_INTERVAL}


def with_present_keys(settings: Mapping[str, Any], current: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Recorded settings, by section: renamed keys under their present names, without removed and uncompared keys.

    A removed key stays if its value meant something else than what happens now, so that the settings differ.
    current: settings to compare with; of these, recorded settings get the keys that earlier versions did not record.
    """
    current = current or {}
    added = {key: current[key] for key in ADDED if key in current}
    return added | {
        name: _present(name, value, current.get(name)) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }


def _present(section: str, settings: Mapping[str, Any], current: Any) -> dict[str, Any]:
    if section == "config":  # of an artifact, whose sections lie below it
        return with_present_keys(settings, current)
    present = {}
    for key, value in settings.items():
        name = f"{section}.{key}"
        if key in UNCOMPARED.get(section, ()) or (name in REMOVED and REMOVED[name].value == value):
            continue
        text = value if isinstance(value, str) else ""
        present[RENAMED.get(name, name).rpartition(".")[2]] = RENAMED_VALUES.get((name, text), value)
    return present
