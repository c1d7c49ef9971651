"""Run a command; failures end in an exit code and one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import TextIOWrapper
from pkgutil import resolve_name
from types import FrameType
from typing import Any

from drafterforge import __version__
from drafterforge.cli.failures import drop_stdout, exit_code, message_line
from drafterforge.cli.help import HELP, command_help, overview
from drafterforge.cli.overrides import read_config, split_drafters
from drafterforge.cli.table import COMMANDS, Command, find_command
from drafterforge.config import catalogue, plan, serving
from drafterforge.config.hints import complete_commands, flags_for
from drafterforge.errors import ConfigError, RankLostError, Terminated, shorten
from drafterforge.training.launch import (
    RANK_LOST,
    end_with_launcher,
    exit_at_once,
    is_launched,
    launch,
    local_devices,
    placement,
)

BROKEN_PIPE = 141  # exit code of a program that SIGPIPE ended
SENT_AGAIN_S = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _mend_streams()
    with _signals_sent_again():
        code = _run(arguments)
    if arguments and arguments[0] in COMMANDS and COMMANDS[arguments[0]].trains and placement():
        exit_at_once(code)
    return code


def _run(arguments: list[str]) -> int:
    config, command = None, None
    try:
        _require_utf8(arguments)
        if len(arguments) > 1 and arguments[0] in HELP:
            arguments = [*arguments[1:], arguments[0]]
        if not arguments or arguments[0] in HELP:
            print(overview())
        elif arguments[0] in ("-V", "--version"):
            print(f"drafterforge {__version__}")
        else:
            command = find_command(arguments[0])
            if HELP & set(arguments[1:]):
                print(command_help(arguments[0], command, arguments[1:]))
            else:
                entries = split_drafters(command, arguments[1:])
                configs = [read_config(arguments[0], entry) for entry in entries]
                config = configs[0]
                for each in configs:
                    _check_inputs(each, command)
                configs = [_sized(each, command, entry) for each, entry in zip(configs, entries, strict=True)]
                config = configs[0]
                if command.loads:
                    _print_loading(config)
                several = len(configs) > 1
                if command.trains and not several and (number := _processes(config)) > 1:
                    return launch(arguments, number)
                end_with_launcher()
                with _sigterm_raises():
                    module = import_module(command.module)
                    module.run_together(configs) if several else module.run(config)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        drop_stdout()
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        writing = None if config is None else config.runs_dir
        if isinstance(error, RankLostError) and is_launched(rank=0):
            return RANK_LOST  # the process that ended first has the message
        resumes = command is not None and command.resumes
        line = message_line(error, writing, resumes, hasattr(config, "data"))
        if line is None:
            raise
        print(f"drafterforge: {complete_commands(line, _typed_flags(config))}", file=sys.stderr)
        return exit_code(error)


def _mend_streams() -> None:
    """Open standard streams that were closed, and print `?` for characters that the encoding of stdout lacks."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
        sys.stdout.reconfigure(errors="replace")


def _require_utf8(arguments: Sequence[str]) -> None:
    """ConfigError for bytes that are no text, which neither JSON files nor tokenizers take."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{shorten(ascii(argument))} is not UTF-8; type it in UTF-8") from None


@contextmanager
def _signals_sent_again() -> Iterator[None]:
    """A signal whose exception is raised in a finalizer, where Python ignores exceptions, is sent again."""
    timers = []

    def report(ignored: sys.UnraisableHookArgs) -> None:
        number = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}.get(ignored.exc_type)
        if number is None:
            previous(ignored)
        else:
            timers.append(threading.Timer(SENT_AGAIN_S, os.kill, (os.getpid(), number)))
            timers[-1].start()

    previous, sys.unraisablehook = sys.unraisablehook, report
    try:
        yield
    finally:
        sys.unraisablehook = previous
        for timer in timers:
            timer.cancel()


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
    if "size" in catalogue.command_groups(command.name):
        from drafterforge.training.size import apply_size  # not for --help

        config = apply_size(command.name, config, overrides)
    if trainer := getattr(config, "trainer", None):
        trainer.require_shares((trainer.devices or 1) * (trainer.num_nodes or 1))
    return config


def _processes(config: Any) -> int:
    return local_devices(config.trainer, config.target.device, config.target.device_map)


def _print_loading(config: serving.GenerateConfig) -> None:
    print(f"loading {config.bundle or config.target.folder_name}", file=sys.stderr, flush=True)


def _typed_flags(config: Any) -> str:
    """The keys of a suggested command; empty if the command's own keys are wrong."""
    return "" if config is None else flags_for(getattr(config, "target", None), config.runs_dir)
