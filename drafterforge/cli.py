"""The command line: a table of commands, exit codes, and one-line errors."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import resolve_name
from types import FrameType
from typing import Any

from drafterforge import __version__
from drafterforge.config import bundle, catalogue, commands, learn, plan, serving
from drafterforge.config.compose import load_config
from drafterforge.config.hints import complete_commands, flags_for, plain_value
from drafterforge.config.overrides import typed_choices
from drafterforge.config.several import SEVERAL, split_overrides
from drafterforge.config.variants import variants_of
from drafterforge.errors import CheckFailedError, ConfigError, DrafterforgeError, RankLostError, Terminated
from drafterforge.training.launch import (
    RANK_LOST,
    end_with_launcher,
    exit_at_once,
    is_launched,
    launch,
    local_devices,
    placement,
)


@dataclass(frozen=True)
class Command:
    """A row of the table."""

    module: str  # has `run(cfg)`; imported when the command is typed
    config: type
    summary: str
    resumes: bool = False  # after an interruption, the same command continues the work
    reports: tuple[str, ...] = ()  # kinds of inputs that the command itself checks, with better error messages
    check: str = ""  # MODULE:FUNCTION that refuses mistakes in the config before torch is imported
    spreads: bool = False  # works with a target that is spread over devices, as it does not decode with drafters
    loads: bool = False  # prints what it loads, as it is silent until then
    trains: bool = False  # on several devices, with a process for each
    lists: bool = False  # lists describe several drafters, which `run_together` of its module trains
    yaml: str = ""  # name of its file in `configs/`; empty: the module's

    @property
    def name(self) -> str:
        """Name of its file in `configs/`."""
        return self.yaml or self.module.rpartition(".")[2]


COMMANDS = {
    "prepare-data": Command(
        "drafterforge.pipelines.prepare_data",
        commands.PrepareDataConfig,
        "let the target answer prompts of a domain",
        resumes=True,
        check="drafterforge.data.sources:check_rows",
        spreads=True,
    ),
    "train-drafter": Command(
        "drafterforge.pipelines.train_drafter",
        commands.TrainDrafterConfig,
        "distil a drafter from the answers, and measure it on held-out prompts",
        resumes=True,
        check="drafterforge.data.sources:check_rows",
        trains=True,
        lists=True,
        spreads=True,
    ),
    "train-policy": Command(
        "drafterforge.pipelines.train_policy",
        commands.TrainPolicyConfig,
        "train a tree scheduler on recorded traces, or a router, and measure it",
        resumes=True,
    ),
    "calibrate": Command(
        "drafterforge.pipelines.calibrate",
        commands.CalibrateConfig,
        "measure the latency of every step of a cycle on this device",
    ),
    "eval": Command(
        "drafterforge.pipelines.eval",
        commands.EvaluateConfig,
        "measure methods, drafters and selectors on a suite of prompts",
        resumes=True,
        check="drafterforge.evaluation.suite_checks:check_evaluation",
    ),
    "generate": Command(
        "drafterforge.pipelines.generate",
        serving.GenerateConfig,
        "answer one prompt, with or without a drafter",
        check="drafterforge.assembly.checks:check_generate",
        loads=True,
    ),
    "export": Command(
        "drafterforge.pipelines.export",
        bundle.ExportConfig,
        "pack drafters and policies into a bundle, or for SGLang and vLLM",
        check="drafterforge.assembly.checks:check_export",
    ),
    "serve": Command(
        "drafterforge.pipelines.serve",
        serving.ServeConfig,
        "serve an OpenAI-compatible HTTP API",
        check="drafterforge.assembly.checks:check_decoding",
    ),
    "learn": Command(
        "drafterforge.pipelines.learn",
        learn.LearnCommandConfig,
        "show or delete what `serve learn=on` has recorded",
    ),
    "import": Command(
        "drafterforge.pipelines.import_drafter",
        bundle.ImportConfig,
        "turn a published EAGLE-3 head into a drafter",
        yaml="import",  # a keyword, so the module has another name
    ),
    "quickstart": Command(
        "drafterforge.pipelines.quickstart",
        commands.QuickstartConfig,
        "show the speed of the shipped pool, tune its SQL expert, bundle the pool and measure it",
        resumes=True,
        reports=("drafters",),
    ),
    "plan": Command(
        "drafterforge.pipelines.plan",
        plan.PlanConfig,
        "estimate the time, disk and memory of a command before it is run, and say what does not fit",
        reports=("target",),
        spreads=True,
    ),
    "doctor": Command(
        "drafterforge.pipelines.doctor",
        commands.DoctorConfig,
        "show device, dtype, target and caches, and problems with them",
        reports=("target",),
    ),
    "inspect": Command(
        "drafterforge.pipelines.inspect",
        commands.InspectConfig,
        "show the contents of an artifact, and check its hashes",
        check="drafterforge.artifacts.locate:check_name",
    ),
}
HELP = {"-h", "--help", "help"}
CHECK_FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130  # exit code of a program that SIGINT ended
TERMINATED = 143  # the same for SIGTERM
BROKEN_PIPE = 141  # the same for SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code = _run(arguments)
    if arguments and arguments[0] in COMMANDS and COMMANDS[arguments[0]].trains and placement():
        exit_at_once(code)
    return code


def _run(arguments: list[str]) -> int:
    config, command = None, None
    try:
        if not arguments or arguments[0] in HELP:
            print(_help())
        elif arguments[0] in ("-V", "--version"):
            print(f"drafterforge {__version__}")
        else:
            command = _command(arguments[0])
            if HELP & set(arguments[1:]):
                print(_command_help(arguments[0], command, arguments[1:]))
            else:
                entries = _entries(command, arguments[1:])
                configs = [_config(arguments[0], command, entry) for entry in entries]
                config = configs[0]
                for each in configs:
                    _check_inputs(each, command)
                configs = [_sized(each, command, entry) for each, entry in zip(configs, entries, strict=True)]
                config = configs[0]
                if command.loads:
                    _print_loading(config)
                several = len(configs) > 1
                trains = command.trains and not several
                if (number := local_devices(config.trainer, config.target.device) if trains else 1) > 1:
                    return launch(arguments, number)
                end_with_launcher()
                with _sigterm_raises():
                    module = import_module(command.module)
                    module.run_together(configs) if several else module.run(config)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        writing = None if config is None else config.runs_dir
        if isinstance(error, RankLostError) and is_launched(rank=0):
            return RANK_LOST  # the process that ended first has the message
        line = _one_line(error, writing, command is not None and command.resumes)
        if line is None:
            raise
        print(f"drafterforge: {complete_commands(line, _typed_flags(config))}", file=sys.stderr)
        return _exit_code(error)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        handler = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread, which has the handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _command(name: str) -> Command:
    if name not in COMMANDS:
        spellings = {command: repr(command) for command in COMMANDS}
        hint = catalogue.did_you_mean(name, spellings) or f" (have: {', '.join(COMMANDS)})"
        raise ConfigError(f"no command {name!r}{hint}")
    return COMMANDS[name]


def _entries(command: Command, overrides: list[str]) -> list[list[str]]:
    """The overrides, or those of each of several drafters that the command describes by lists."""
    return split_overrides(command.name, command.config, overrides) if command.lists else [overrides]


def _config(name: str, command: Command, overrides: list[str]) -> Any:
    if name == "plan":
        return _planned(overrides)
    if name == "inspect":
        paths = [override for override in overrides if not override.startswith("runs_dir=")]
        if len(paths) > 1:
            raise ConfigError(f"inspect takes one folder, got {len(paths)}: {paths}")
        overrides = [o if o.startswith(("path=", "runs_dir=")) else f"path={o}" for o in overrides]
    if name == "learn":
        overrides = [o if "=" in o else f"action={o}" for o in overrides]
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
    device = load_config("plan", plan.PlanConfig, of_device).device
    return plan.PlannedCommand(name, typed, load_config(row.name, row.config, typed), device)


def _check_inputs(config: Any, command: Command) -> None:
    from drafterforge.artifacts.inputs import check_inputs  # not for --help

    target = getattr(config, "target", None)
    if target is not None and target.device_map and not command.spreads:
        raise ConfigError(
            "target.device_map=auto spreads the target over devices, but decoding stays on one; leave it out, or type "
            "it with prepare-data and train-drafter"
        )
    if isinstance(config, plan.PlannedCommand):
        row = COMMANDS[config.name]
        config, command = config.config, replace(row, reports=(*row.reports, *command.reports))
    check_inputs(config, command.reports, resolve_name(command.check) if command.check else None)


def _sized(config: Any, command: Command, overrides: list[str]) -> Any:
    if isinstance(config, plan.PlannedCommand):
        row = COMMANDS[config.name]
        return replace(config, config=_sized(config.config, row, list(config.overrides)))
    if "size" not in catalogue.command_groups(command.name):
        return config
    from drafterforge.training.size import apply_size  # not for --help

    return apply_size(command.name, config, overrides)


def _print_loading(config: serving.GenerateConfig) -> None:
    print(f"loading {config.bundle or config.target.folder_name}", file=sys.stderr, flush=True)


# Exceptions.


def _typed_flags(config: Any) -> str:
    """The keys of a suggested command; empty if the command's own keys are wrong."""
    return "" if config is None else flags_for(getattr(config, "target", None), config.runs_dir)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, RankLostError):
        return RANK_LOST
    if isinstance(error, DrafterforgeError):
        return CHECK_FAILED if isinstance(error, CheckFailedError) else USER_ERROR
    chain = list(_chain(error))
    if any(isinstance(e, Terminated) for e in chain):
        return TERMINATED
    return INTERRUPTED if any(isinstance(e, KeyboardInterrupt) for e in chain) else USER_ERROR


def _one_line(error: BaseException, writing: str | None, resumes: bool) -> str | None:
    """The message for the user; None for a bug, which is reported with its traceback."""
    if isinstance(error, DrafterforgeError):
        return _flatten(error)
    chain = list(_chain(error))
    if any(isinstance(e, KeyboardInterrupt) for e in chain):
        verb = "terminated" if any(isinstance(e, Terminated) for e in chain) else "interrupted"
        return verb + ("; finished work is kept; type the same command to continue" if resumes else "")
    full = [e for e in chain if _disk_is_full(e)]
    if full:
        _drop_stdout_if_full()
        filenames = [e.filename for e in full if getattr(e, "filename", None)]
        path = os.fsdecode(filenames[0]) if filenames else writing
        where = f"while writing {path}" if path else "while writing"
        return f"the disk is full {where}; free some space and type the same command again"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror}: {error.filename or writing}"
    # Libraries that call our code raise their own error `from` ours.
    return _one_line(error.__cause__, writing, resumes) if error.__cause__ else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _disk_is_full(error: BaseException) -> bool:
    # safetensors and arrow wrap the system's error in their own, so the message is searched too.
    code = getattr(error, "errno", None)
    words = ("No space left on device", "Disk quota exceeded", "os error 28")
    return code in (errno.ENOSPC, errno.EDQUOT) or any(w in str(error) for w in words)


def _flatten(error: BaseException) -> str:
    """The message in one line, without control characters, because it may quote files of unknown origin."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", re.sub(r"\s*[\r\n]+\s*", " ", str(error).strip()))


def _drop_stdout_if_full() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_stdout()


def _drop_stdout() -> None:
    """Replace stdout, so that the interpreter's flush at exit does not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until the process ends


# Help, from the config classes and the YAML files; imports nothing heavy.


def _help() -> str:
    rows = [f"  {name:<15}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "drafterforge COMMAND [group=choice ...] [key=value ...]",
            "",
            "Distil, schedule and serve domain-expert EAGLE-3 drafters.",
            "",
            *rows,
            "",
            "drafterforge COMMAND --help lists its groups and keys; drafterforge --version.",
        ]
    )


def _command_help(name: str, command: Command, overrides: Sequence[str]) -> str:
    usage = {"inspect": "PATH ", "plan": "COMMAND [its groups and keys ...] ", "learn": "ACTION "}.get(name, "")
    usage = usage.strip() if name == "inspect" else f"{usage}[group=choice ...] [key=value ...]"
    lines = [f"drafterforge {name} {usage}", "", f"{command.summary}.", ""]
    groups = catalogue.command_groups(command.name)
    if groups:
        lines.append("Groups, with their default:")
        for group, default in groups.items():
            default_text = {None: "", "???": "required"}.get(default, default)
            names = catalogue.group_choices(group)
            if group == "domain" and "data" in groups:
                names.append("any name with data=jsonl or data=hf")
            lines.append(f"  {group:<12}{default_text:<15}{' | '.join(names)}")
        lines.append("")
    lines.append("Keys, with their default:")
    choices = typed_choices(command.name, overrides)
    values, texts = _keys(command, choices)
    values |= {f"{group}.name": "" for group, default in groups.items() if default == "???" and group not in choices}
    lines += _rows(values, texts)
    for group, variants in variants_of(command.config).items():
        for variant in variants.classes if group not in choices else ():
            variant_choices = catalogue.choices_for(group, variants, variant)
            further_values, further = _keys(command, {group: variant_choices[0]})
            further = {key: text for key, text in further.items() if key not in texts}
            if further:
                lines += ["", f"Further keys of {group}={', '.join(variant_choices)}:"]
                lines += _rows(further_values, further)
    if command.lists:
        lines += [
            "",
            "Several LoRA experts at once, trained from one stream: domain=[sql,math] drafter=lora; studies of one:",
        ]
        lines += [
            "domain=sql answers=sql drafter=lora name=[low,high] drafter.lora.rank=[4,16].  Keys that take a list:"
        ]
        lines += [f"{', '.join(SEVERAL)}."]
    if "data.path" in values:
        lines += ["", "path=, dataset= and column= are short for data.path=, data.dataset= and data.column=."]
    return "\n".join(lines)


def _keys(command: Command, choices: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Default values and help texts of the keys that a command reads under these choices of groups."""
    config_class = catalogue.narrow_to_choices(command.name, command.config, choices)
    return catalogue.default_values(command.name, config_class, choices), catalogue.help_texts(config_class)


def _rows(values: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    return [f"  {f'{key}={plain_value(values[key])}':<38} {text}" for key, text in texts.items()]
