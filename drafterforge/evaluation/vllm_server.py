"""A `vllm serve` process: its command line and environment, its start, its health and its end; imports no torch."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.config.progress import duration, log
from drafterforge.errors import ConfigError, ServerError, shorten
from drafterforge.evaluation.process_groups import is_running
from drafterforge.openmp import NAME, SPIN_COUNT

HOST = "127.0.0.1"
POLL_S = 0.5  # between two looks at a server that starts
LINE_S = 30.0  # between two lines about it
TERMINATE_S = 20.0  # that a server has to end by itself
KILL_S, KILL_POLL_S = 10.0, 0.02  # that ended processes have to vanish; between two looks
PROBE_S = 10.0  # that a server may take for its health or its model
OUR_OPTIONS = ("--host", "--port", "--speculative-config", "--per-request-spec-decode-metrics")
ERROR = re.compile(r"\b\w*(?:Error|Exception): .+|\bValue error, .+")  # the latter under a heading of pydantic's
CONSEQUENCE = "initialization failed"  # of an error that only says that another one came before
REFUSAL = "drafterforge cannot draft in this vLLM"  # begins the plug-in's line
MISTAKE = "drafterforge: "  # begins its line about a wrong setting or a damaged file
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine's servers


def find_command(command: str) -> Path:
    """The program that `suite.vllm_command` names; ConfigError if there is none."""
    path = shutil.which(str(Path(command).expanduser()))
    if path is None:
        where = "at this path" if os.sep in command else "on the PATH"
        raise ConfigError(
            f"suite.vllm_command={command}: there is no such program {where}; type pip install "
            '".[vllm]" in the repository, or suite.vllm_command=FOLDER/bin/vllm'
        )
    return Path(path).absolute()


def option(arguments: Sequence[str], name: str) -> str | None:
    """The last value of an option, typed as `--name value` or `--name=value`; None if it is absent."""
    value = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        key, equals, text = word.partition("=")
        if key.replace("_", "-") == name:
            value = text if equals else following
    return value


def check_arguments(arguments: Sequence[str]) -> None:
    """ConfigError for options in `suite.server_args` that differ between the servers."""
    if names := [name for name in OUR_OPTIONS if option(arguments, name) is not None]:
        raise ConfigError(
            f"suite.server_args has {names[0]}, which this suite sets for each server; leave it out "
            "(suite.ports and suite.num_speculative_tokens set ports and drafted tokens)"
        )


def check_port(port: int, server: str) -> None:
    """ConfigError if another program listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"port {port}, for vLLM with {server}, cannot be used ({reason}); type suite.ports=OTHER"
            ) from None


def server_environment(command: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """This shell's variables, defaults for a CPU build where nothing is set, and the given ones."""
    environment = dict(os.environ)
    if environment.get(NAME) == SPIN_COUNT:  # ours, for this process
        del environment[NAME]
    defaults = {"VLLM_NO_USAGE_STATS": "1", **cpu_variables(command)}
    return {**defaults, **environment, **variables}


def cpu_variables(command: Path) -> dict[str, str]:
    """Variables for the CPU build of vLLM; none for another build.

    Its OpenMP must be preloaded to be fast.  Cores are not bound, because the servers share them.  The cache is small,
    because several servers share the memory.
    """
    if not is_cpu_build(command):
        return {}
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # GiB
    openmp = environment_of(command) / "lib" / "libiomp5.so"
    return variables | ({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {})


def is_cpu_build(command: Path) -> bool:
    """Whether a `vllm` program belongs to the CPU build."""
    return any(environment_of(command).glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))


def installed_version(command: Path) -> str:
    """The release of vLLM to which a program belongs; empty if its environment does not say."""
    folders = environment_of(command).glob("lib/python*/site-packages/vllm*.dist-info")
    matches = (re.fullmatch(r"vllm(?:_cpu)?-(.+)\.dist-info", folder.name) for folder in sorted(folders))
    return next((match[1] for match in matches if match), "")


def environment_of(command: Path) -> Path:
    """The Python environment of a program."""
    return command.resolve().parent.parent


@dataclass(eq=False)
class VllmServer:
    """A server of vLLM, which runs from `start` to `stop`."""

    name: str  # what it decodes with, in messages
    command: list[str]
    port: int
    log: Path
    environment: Mapping[str, str] = field(repr=False)
    hints: Mapping[str, str] = field(default_factory=dict)  # words of the log -> what to type if it ends with them
    process: subprocess.Popen | None = field(default=None, repr=False)
    model: str = ""  # the name under which it serves the target
    version: str = ""  # of vLLM
    is_warm: bool = False  # it has decoded something since its start
    _log_start: int = 0  # size of the log when it was started

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self, deadline_s: float) -> None:
        """Start the server and wait until it answers; ServerError if it ends or takes longer than `deadline_s`."""
        check_port(self.port, self.name)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log(f"starting vLLM with {self.name} on port {self.port}, log: {self.log}")
        with open(self.log, "ab") as output:
            self._log_start = output.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,  # a process group of its own, which `stop` ends
            )
        seconds = self._await_health(deadline_s)
        self.model = self.get("/v1/models")["data"][0]["id"]
        with contextlib.suppress(ServerError):  # older releases do not say
            self.version = str(self.get("/version")["version"])
        log(f"vLLM with {self.name} answers after {duration(seconds)}")

    def _await_health(self, deadline_s: float) -> float:
        """Seconds until the server answered."""
        began, next_line_s = time.monotonic(), LINE_S
        while not self.is_healthy():
            elapsed = time.monotonic() - began
            if self.process.poll() is not None:
                raise self.failure(f"ended with exit code {self.process.returncode} before it answered")
            if elapsed > deadline_s:
                raise self.failure(f"did not answer within {duration(deadline_s)} (suite.start_s sets how long)")
            if elapsed > next_line_s:
                log(f"waiting for vLLM with {self.name}: {duration(elapsed)} of at most {duration(deadline_s)}")
                next_line_s += LINE_S
            time.sleep(POLL_S)
        return time.monotonic() - began

    def is_healthy(self) -> bool:
        try:
            with DIRECT.open(f"{self.url}/health", timeout=PROBE_S):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        try:
            with DIRECT.open(f"{self.url}{path}", timeout=PROBE_S) as response:
                return json.load(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.failure(f"gives no {path} ({shorten(error)})") from error

    def failure(self, event: str) -> ServerError:
        """The error of a server to which something happened; it quotes the log."""
        reason = reason_in(self.log, self._log_start)
        advice = "".join(f"; {hint}" for words, hint in self.hints.items() if words in reason)
        return ServerError(f"vLLM with {self.name} {event}: {reason or 'its log is empty'}{advice}; see {self.log}")

    def terminate(self) -> None:
        """Ask the server to end."""
        if self.process is not None:
            signal_group(self.process, signal.SIGTERM)

    def stop(self) -> None:
        """End the server and every process that it has started, by force if it takes long."""
        process, self.process, self.is_warm = self.process, None, False
        if process is None:
            return
        try:
            signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_S)
        finally:  # also if Ctrl-C interrupts the waiting
            signal_group(process, signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + KILL_S
            while is_running(process.pid) and time.monotonic() < deadline:  # until their memory is free
                time.sleep(KILL_POLL_S)


def signal_group(process: subprocess.Popen, number: int) -> None:
    """Signal all processes of a group by its first one; none may be left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter for ended ones on macOS
        os.killpg(process.pid, number)


def reason_in(path: Path, start: int = 0) -> str:
    """The line of a log that says why its program ended: the plug-in's, the last error, or else the last line.

    start: position at which to begin.
    """
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    refusals = [line[line.index(REFUSAL) :] for line in lines if REFUSAL in line]
    refusals += [line for line in lines if line.startswith(MISTAKE)]
    errors = [match[0] for line in lines if CONSEQUENCE not in line and (match := ERROR.search(line))]
    return shorten((refusals or errors or lines or [""])[-1], 300)
