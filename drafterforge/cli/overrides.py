"""What a user typed after a command, as its config."""

from __future__ import annotations

from typing import Any

from drafterforge.cli.table import COMMANDS, Command
from drafterforge.config import plan
from drafterforge.config.compose import load_config
from drafterforge.config.several import split_overrides
from drafterforge.errors import ConfigError


def split_drafters(command: Command, overrides: list[str]) -> list[list[str]]:
    """The overrides, or those of each of several drafters that the command describes by lists."""
    return split_overrides(command.name, command.config, overrides) if command.lists else [overrides]


def read_config(name: str, overrides: list[str]) -> Any:
    """The config of a command; `split_drafters` comes first where it takes several drafters."""
    command = COMMANDS[name]
    if name == "plan":
        return _planned(overrides)
    if name == "inspect":
        paths = [override for override in overrides if not override.startswith("runs_dir=")]
        if len(paths) > 1:
            raise ConfigError(f"inspect takes one folder, got {len(paths)}: {paths}")
        overrides = [o if o.startswith(("path=", "runs_dir=")) else f"path={o}" for o in overrides]
    if name == "learn":
        keys = iter(("action", "path"))
        overrides = [o if "=" in o else f"{next(keys, 'path')}={o}" for o in overrides]
    return load_config(command.name, command.config, overrides)


def _planned(overrides: list[str]) -> plan.PlannedCommand:
    """The command that `plan` is followed by, with its config; keys of `device` are those of `plan` itself."""
    name = overrides[0] if overrides else ""
    if name not in plan.PLANNED:
        raise ConfigError(
            f"plan needs a command, one of {', '.join(plan.PLANNED)}, got {name or 'none'}; "
            "type `drafterforge plan train-drafter domain=sql`"
        )
    row = COMMANDS[name]
    of_device = [override for override in overrides[1:] if override.partition("=")[0].split(".")[0] == "device"]
    typed = [override for override in overrides[1:] if override not in of_device]
    if (number := len(split_drafters(row, typed))) > 1:
        raise ConfigError(
            f"plan takes one drafter, got lists of {number}; type one entry of each list, as `drafterforge plan {name} "
            "domain=sql drafter=lora`: experts that are trained together take at most the sum of their times"
        )
    device = load_config("plan", plan.PlanConfig, of_device).device
    return plan.PlannedCommand(name, typed, load_config(row.name, row.config, typed), device)
