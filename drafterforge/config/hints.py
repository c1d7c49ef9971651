"""Commands and keys as a user types them, for hints in messages.

An error names a command in backticks, without the target and the runs folder.  Code that raises it need not know what
the user typed: `complete_commands` adds these keys where the error is printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

from drafterforge.config.catalogue import group_choices, group_values
from drafterforge.config.data import DomainConfig
from drafterforge.config.evaluation import SuiteConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig

DEFAULT = "smollm2-135m"  # the target of every command that names none
RUNS_DIR = "runs"  # the folder of every command that names none
ROUTER = "router"  # name of a target's router, unless another one is typed
FIRST = ("model", "name")  # keys that come first in a hint, because they identify the target
COMMAND = re.compile(r"`(drafterforge (?!inspect\b)[a-z-]+[^`]*)`")  # in an error; `inspect` reads no target


class HasTarget(Protocol):
    """Config of a command that reads or writes artifacts of a target."""

    target: TargetConfig
    runs_dir: str


class HasAnswers(Protocol):
    """Config of a command that learns from answers."""

    domain: DomainConfig
    answers: list[str]


class HasEvaluation(Protocol):
    """Config of `eval`."""

    suite: SuiteConfig
    pool: PoolConfig
    runtime: RuntimeConfig
    bundle: str
    seed: int


def target_flags(cfg: HasTarget) -> str:
    """The keys that make another command use the same target and runs folder, each after a space.

    Empty if everything has its default.
    """
    return flags_for(cfg.target, cfg.runs_dir)


def flags_for(target: TargetConfig | None, runs_dir: Path | str) -> str:
    """As `target_flags`, for a target and a runs folder.  target: None for one that was not opened by a config."""
    flags = [] if target is None else _flags_of_target(target)
    if str(runs_dir) != RUNS_DIR:
        flags.append(f"runs_dir={shell_value(str(runs_dir))}")
    return "".join(f" {flag}" for flag in flags)


def complete_commands(message: str, flags: str) -> str:
    """The message with `flags` added to every command that it suggests in backticks.  flags: see `target_flags`."""
    return COMMAND.sub(lambda command: f"`{command[1]}{flags}`", message)


def _flags_of_target(target: TargetConfig) -> list[str]:
    defaults = {entry.name: getattr(TargetConfig(), entry.name) for entry in fields(TargetConfig)}
    differing = {
        choice: _differing(target, defaults | {"name": ""} | group_values("target", choice))
        for choice in group_choices("target")
    }
    choice = min(differing, key=lambda name: (len(differing[name]), name != DEFAULT, name))
    flags = [] if choice == DEFAULT else [f"target={choice}"]
    keys = sorted(differing[choice], key=lambda key: (key not in FIRST, key))
    return flags + [f"target.{key}={shell_value(differing[choice][key])}" for key in keys]


def _differing(target: TargetConfig, values: dict[str, Any]) -> dict[str, Any]:
    return {key: getattr(target, key) for key, value in values.items() if getattr(target, key) != value}


def typed_settings(cfg: HasEvaluation) -> str:
    """The suite, and the keys of suite, pool and runtime, the bundle and the seed, that differ from their defaults."""
    defaults = {
        "suite": asdict(SuiteConfig()) | group_values("suite", cfg.suite.name),
        "pool": asdict(PoolConfig()),
        "runtime": asdict(RuntimeConfig()),
    }
    typed = {
        f"{group}.{key}": value
        for group, values in defaults.items()
        for key, value in asdict(getattr(cfg, group)).items()
        if value != values[key] and key != "name" and (group != "suite" or cfg.suite.reads(key))
    }
    typed |= {key: getattr(cfg, key) for key in ("bundle", "seed") if getattr(cfg, key)}
    return " ".join([f"suite={cfg.suite.name}", *(f"{key}={shell_value(value)}" for key, value in typed.items())])


def settings_flags(group: str, config: Any, default: Any) -> str:
    """The keys of a group's config that differ from `default`, as typed in a shell, each after a space."""
    values = asdict(default)
    differing = {key: value for key, value in asdict(config).items() if value != values[key]}
    return "".join(f" {group}.{key}={shell_value(value)}" for key, value in differing.items())


def command_for(drafter: str, domain: str = "") -> str:
    """The command that makes a drafter of this name, such as `sql` or `sql-retrieval`.

    domain: of a drafter whose name does not begin with one; empty: one of its own.
    """
    first, _, kind = drafter.partition("-")
    if first not in group_choices("domain"):
        if not domain:
            return f"drafterforge train-drafter domain={Path(drafter).name} data=jsonl path=FILE"
        prompts = "" if domain in group_choices("domain") else " data=jsonl path=FILE"
        return f"drafterforge train-drafter domain={domain}{prompts} name={Path(drafter).name}"
    kinds = set(group_choices("drafter")) - {"eagle3", "auto"}
    return f"drafterforge train-drafter domain={first}" + (f" drafter={kind}" if kind in kinds else "")


def command_for_policy(policy: str) -> str:
    """The command that makes a policy of this name, such as `planner` or `house`."""
    name = Path(policy).name
    is_method = name in group_choices("policy")
    return f"drafterforge train-policy policy={name if is_method else 'marginal'}" + (
        "" if is_method else f" name={name}"
    )


def command_for_router(router: str) -> str:
    """The command that makes a router of this name."""
    name = Path(router).name
    return "drafterforge train-policy policy=router" + ("" if name == ROUTER else f" name={name}")


def command_for_answers(cfg: HasAnswers, name: str, key: str = "answers") -> str:
    """The command that makes answers of this name, or what to type instead.  key: the setting that names them."""
    if "," in name:
        return f"{key}=[{name}] for several artifacts"
    source = "" if [name] == cfg.answers[:1] else " data=jsonl path=FILE"  # other prompts than those of the first
    return f"drafterforge prepare-data domain={cfg.domain.name} name={name}{source}"


def shell_value(value: Any) -> str:
    """A value as it is typed in a shell."""
    return shlex.quote(plain_value(value))


def plain_value(value: Any) -> str:
    """A value as it is written after `key=`, without shell quotes."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(plain_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{plain_value(entry)}' for key, entry in value.items())}}}"
    return str(value)


def taps_flag(taps: Sequence[int]) -> str:
    """The key for a target whose features come from these layers."""
    return f"target.taps=[{','.join(map(str, taps))}]"
