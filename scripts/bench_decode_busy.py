"""Times decoding beside busy processes, for `bench_decode.py --busy`; run as a program, it is the decoding child."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.assembly.runs import open_for_decoding
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.target import TargetConfig
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.machine_load import MachineLoad
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import load_target

from rich.console import Console
from rich.table import Table

OUR_SETTING = "drafterforge"  # the environment that the package sets by itself
PLAIN, TREE = "plain", "tree"
SETTLE_S = 0.2  # until busy processes have started
SHIPPED_DRAFTER = SHIPPED / "smollm2-135m" / "drafters" / "general"
COLUMNS = ("idle_tokens_per_s", "busy_tokens_per_s", "busy_over_idle", "idle_over_first", "busy_over_first")


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen]]:
    """Start processes that each keep a core busy, at normal priority."""
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            processes.append(process := subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield processes


def answer_lines(folder: Path, dtype: str, count: int) -> None:
    """Decode for each line of stdin, `METHOD PROMPT_NUMBER`; print tokens, seconds and CPU seconds as JSON."""
    target = load_target(TargetConfig(dtype=dtype))
    shape = default_shape(target.device, target.dtype)
    engines = {PLAIN: Engine(target, None), TREE: Engine(target, open_for_decoding(folder, target), shape)}
    prompts = held_out_prompts(target, len(POOL_DOMAINS), POOL_DOMAINS)
    for engine in engines.values():
        engine.generate([prompts[0]], 8)
    dtype = str(target.dtype).removeprefix("torch.")
    print(json.dumps({"device": describe_device(target.device), "dtype": dtype}), flush=True)
    for line in sys.stdin:
        method, number = line.split()
        began, cpu_s = time.perf_counter(), time.process_time()
        answer = engines[method].generate([prompts[int(number) % len(prompts)]], count)[0]
        seconds = time.perf_counter() - began
        print(json.dumps([answer.tokens, seconds, time.process_time() - cpu_s]), flush=True)


@dataclass(frozen=True)
class Answer:
    """A child's answer to one prompt, and the cores that other programs used meanwhile."""

    tokens: list[int]
    seconds: float
    other_cores: float | None


@dataclass
class DecodingProcess:
    """A child process that decodes on request, with one setting of the environment."""

    setting: str
    process: subprocess.Popen

    @staticmethod
    def start(setting: str, arguments: Sequence[str]) -> DecodingProcess:
        """Start the child; of OpenMP's variables, its environment has only this setting."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        if setting != OUR_SETTING:
            environ |= dict(pair.split("=", 1) for pair in setting.split(","))
        command = [sys.executable, __file__, *arguments]
        pipe = subprocess.PIPE
        return DecodingProcess(setting, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ))

    def wait_until_ready(self) -> dict[str, str]:
        """Device and dtype of the child, once its model is loaded."""
        return json.loads(self.process.stdout.readline())

    def decode(self, method: str, number: int) -> Answer:
        load, began = MachineLoad(), time.perf_counter()
        self.process.stdin.write(f"{method} {number}\n")
        self.process.stdin.flush()
        tokens, seconds, cpu_s = json.loads(self.process.stdout.readline())
        cores, elapsed = load.other_cores(), time.perf_counter() - began
        return Answer(tokens, seconds, None if cores is None else max(0.0, cores - cpu_s / elapsed))

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Result:
    """Tokens/s of one setting and method in each round, idle and beside busy processes."""

    setting: str
    method: str
    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def row(self, baseline: Result) -> dict[str, Any]:
        """Medians; ratios are medians of the ratios of each round."""
        return {
            "setting": self.setting,
            "method": self.method,
            "idle_tokens_per_s": statistics.median(self.idle),
            "busy_tokens_per_s": statistics.median(self.busy),
            "busy_over_idle": median_ratio(self.busy, self.idle),
            "idle_over_first": median_ratio(self.idle, baseline.idle),
            "busy_over_first": median_ratio(self.busy, baseline.busy),
            "rounds": len(self.idle),
        }


def median_ratio(numbers: Sequence[float], bases: Sequence[float]) -> float:
    """Median of the ratios within each round."""
    return statistics.median(number / base for number, base in zip(numbers, bases, strict=True))


def measure_busy(
    drafter: Path | None, dtype: str, rounds: int, max_new_tokens: int, settings: Sequence[str]
) -> dict[str, Any]:
    """The report of --busy; in each round, settings take turns idle and then beside busy processes."""
    cores = os.cpu_count() or 1
    arguments = [str(drafter or SHIPPED_DRAFTER), dtype, str(max_new_tokens)]
    results: dict[tuple[str, str], Result] = {}
    answers: dict[int, list[int]] = {}
    mismatches, other_cores = 0, []
    with ExitStack() as stack:
        children = []
        for setting in (OUR_SETTING, *settings):
            children.append(child := DecodingProcess.start(setting, arguments))
            stack.callback(child.stop)
        about = [child.wait_until_ready() for child in children]
        for number in range(rounds):
            turn = number % len(children)
            for busy in (False, True):
                with busy_processes(cores if busy else 0):
                    time.sleep(SETTLE_S)
                    for child in (*children[turn:], *children[:turn]):
                        for method in (PLAIN, TREE):
                            answer = child.decode(method, number)
                            result = results.setdefault((child.setting, method), Result(child.setting, method))
                            (result.busy if busy else result.idle).append(len(answer.tokens) / answer.seconds)
                            mismatches += answer.tokens != answers.setdefault(number, answer.tokens)
                            other_cores += [] if busy or answer.other_cores is None else [answer.other_cores]
    rows = [result.row(results[OUR_SETTING, result.method]) for result in results.values()]
    ours = [row for row in rows if row["setting"] == OUR_SETTING]
    figures = {f"{row['method']}_{name}": row[name] for row in ours for name in COLUMNS[:3]}
    figures |= {"busy_processes": cores, "mismatches": mismatches}
    figures |= {"other_cores_idle": statistics.median(other_cores)} if other_cores else {}
    return {**about[0], "figures": figures, "rows": rows}


def show_busy(console: Console, report: dict[str, Any]) -> None:
    figures = report["figures"]
    title = f"tokens/s, idle and beside {figures['busy_processes']} busy processes, {report['device']}"
    table = Table(title=title, title_justify="left")
    for heading in ("setting", "method", *(column.replace("_", " ") for column in COLUMNS)):
        left = heading in ("setting", "method")
        table.add_column(heading, justify="left" if left else "right", no_wrap=left, overflow="fold")
    for row in report["rows"]:
        table.add_row(row["setting"], row["method"], *(f"{row[column]:.2f}" for column in COLUMNS))
    console.print(table)
    console.print(f"answers that differ: {figures['mismatches']}")
    if "other_cores_idle" in figures:
        console.print(f"while idle, other programs used {figures['other_cores_idle']:.2f} cores (median)")


if __name__ == "__main__":
    answer_lines(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
