"""Config keys of earlier versions under their present names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "pool.every": "pool.read_interval",
    "traces.told_top_k": "traces.score_top_k",
    "policy.every": "policy.hold_cycles",
    "policy.train_every": "policy.train_hold_cycles",
}


def with_present_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings, by section, with renamed keys under their present names."""
    return {name: _present(name, value) if isinstance(value, Mapping) else value for name, value in settings.items()}


def _present(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: RENAMED.get(f"{section}.{key}", f"{section}.{key}").rpartition(".")[2] for key in settings}
    return {names[key]: value for key, value in settings.items()}
