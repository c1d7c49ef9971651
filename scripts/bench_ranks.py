"""Whether several devices train the drafter that one trains: losses, weights, and runs that are killed and resumed.

    python scripts/bench_ranks.py [--kills 10] [--folder runs/ranks] [--json PATH] [KEY=VALUE ...]

The same drafter is trained by one process, and by several with DDP and with FSDP, with the same batch of each step.
With `--kills`, SIGKILL ends trainings of several devices at a random moment: the command, or one of its processes.
Each is then resumed with one device, or with several, and must reach the curve of the run that nothing ended.
KEY=VALUE are settings of `drafterforge train-drafter`, such as those of another target.  On a machine without enough
GPUs the devices are processes of the CPU.

Figures, `ddp` and `fsdp` against one process, and `resumed_1` and `resumed_N` of the killed runs against the same:
    loss_max_abs_diff_ddp          largest difference of the training losses of a step
    loss_max_abs_diff_fsdp         the same
    weights_max_rel_diff_ddp       largest difference of the final weights, as norms, of one tensor: |a - b| / |b|
    weights_max_rel_diff_fsdp      the same
    accept_max_abs_diff_ddp        largest difference of the accept lengths of a validation
    accept_max_abs_diff_fsdp       the same
    kills                          runs that were killed
    loss_max_abs_diff_resumed      largest difference of the training losses of a step of the killed and resumed runs
    accept_max_abs_diff_resumed    the same of accept lengths
    half_artifacts                 damaged or incomplete folders that a kill left under a final name
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterforge.artifacts.folder import open_artifact
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.errors import DrafterforgeError
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.load import load_target
from drafterforge.training import ranks
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import find_answers
from drafterforge.training.launch import exit_at_once
from drafterforge.training.strategies import gathered

import torch
from bench_record import save_record
from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

COMMAND = [sys.executable, "-m", "drafterforge"]
DATA = ("data.num_train=64", "data.num_val=8", "data.num_test=2", "data.max_new_tokens=48")
WEIGHTS = "weights.safetensors"
STRATEGIES = ("ddp", "fsdp")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


class SaveWeights(Callback):
    """Writes the drafter's weights after the last step, in the dtype that they were trained in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Gather the weights of all ranks; the first one writes."""
        state = gathered(module.drafter.state_dict())
        if trainer.is_global_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: value.cpu().contiguous() for name, value in state.items()}, self.path)


class Runs:
    """Trainings of the same drafter under different names."""

    def __init__(self, folder: Path, steps: int, devices: int, overrides: Sequence[str]) -> None:
        self.folder, self.steps, self.devices = folder.resolve(), steps, devices
        self.settings = [
            "domain=sql",
            "trainer.ttt_steps=3",
            "trainer.tokens_per_batch=512",
            f"trainer.max_steps={steps}",
            f"trainer.val_every={max(1, steps // 5)}",
            "trainer.log_every=1",
            "trainer.loggers=[csv]",
            "trainer.precision=32-true",
            f"trainer.accumulate={2 * devices}",
            "drafter.draft_vocab_size=2048",
            "eval.num_prompts=1",
            "eval.max_new_tokens=8",
            *overrides,
            f"runs_dir={self.folder}",
        ]

    def arguments(self, name: str, devices: int, strategy: str = "auto") -> list[str]:
        """The settings of a training."""
        shared = [f"trainer.devices={devices}", f"trainer.strategy={strategy}", f"name={name}", "answers=[sql]"]
        return [*self.settings, *shared]

    def artifact(self, name: str) -> Path:
        """The folder of a finished drafter."""
        (path,) = self.folder.glob(f"*/drafters/{name}")
        return path

    def steps_logged(self, name: str) -> list[dict[str, str]]:
        """The rows of the log of an unfinished training."""
        files = list(self.folder.glob(f"*/drafters/.{name}.partial/logs/csv/metrics.csv"))
        return read_rows(files[0]) if files else []

    def train(self, name: str, devices: int, strategy: str = "auto") -> None:
        """Train a drafter and save its weights; torchrun starts several processes."""
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"] if devices > 1 else []
        arguments = [sys.executable, *start, __file__, "--worker", *self.arguments(name, devices, strategy)]
        subprocess.run(arguments, check=True, env=os.environ | {"OMP_NUM_THREADS": str(threads_of(devices))})

    def kill(self, name: str, chance: random.Random, startup_s: float) -> str:
        """Start a training of several devices and kill it at a random moment; returns what was killed when."""
        step = chance.randrange(self.steps)
        arguments = [*COMMAND, "train-drafter", *self.arguments(name, self.devices)]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(self.steps_logged(name)) < step:
                time.sleep(0.02)
            time.sleep(chance.uniform(0, startup_s if step == 0 else 0.5))
            number = chance.randrange(self.devices + 1)
            pids = [process.pid, *children_of(process.pid)]
            victim = pids[min(number, len(pids) - 1)]
            os.kill(victim, signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + 60
            while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
                time.sleep(0.05)
        what = "the command" if victim == process.pid else f"process {pids.index(victim) - 1}"
        return f"{what} after step {len(self.steps_logged(name))}"

    def resume(self, name: str, devices: int) -> None:
        """Type the same command again."""
        subprocess.run(
            [*COMMAND, "train-drafter", *self.arguments(name, devices)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def half_artifacts(self) -> int:
        """Folders with a final name that do not open."""
        return sum(not opens(path) for path in self.folder.glob("*/*/[!.]*"))


def threads_of(devices: int) -> int:
    """Threads of each process."""
    return max(1, (os.cpu_count() or 1) // devices)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def opens(path: Path) -> bool:
    """Whether a folder is a complete artifact."""
    try:
        open_artifact(path, path.parent.name)
    except DrafterforgeError:
        return False
    return True


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a log."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(runs: Runs, name: str, key: str) -> list[float]:
    """The logged values of a figure of a finished training."""
    rows = read_rows(runs.artifact(name) / "logs" / "csv" / "metrics.csv")
    return [float(row[key]) for row in rows if row.get(key)]


def largest_difference(runs: Runs, name: str, reference: str, key: str) -> float:
    """Between the logged values of a figure of two trainings, which must be equally many."""
    return max(abs(a - b) for a, b in zip(column(runs, name, key), column(runs, reference, key), strict=True))


def weights_difference(path: Path, reference: Path) -> float:
    """|a - b| / |b| of the tensor where it is largest."""
    state, expected = load_file(path), load_file(reference)
    pairs = [(state[name], value) for name, value in expected.items() if value.is_floating_point()]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def work(overrides: list[str]) -> None:
    """One process of a training that ends with its weights."""
    config = load_config("train_drafter", TrainDrafterConfig, overrides)
    with ranks.joined(config.trainer, config.target.device):
        target = load_target(config.target)
        config = choose_init(config, target)
        with ranks.first_rank_first():
            answers = find_answers(config, target)
        train(config, target, answers, [SaveWeights(Path(config.runs_dir) / config.name / WEIGHTS)])
    exit_at_once(0)


def compare(runs: Runs) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Train by one process and by several, and compare."""
    for name, devices, strategy in (("one", 1, "auto"), *((each, runs.devices, each) for each in STRATEGIES)):
        runs.train(name, devices, strategy)
    figures, table = {}, Table("strategy", "losses differ by", "accept lengths by", "final weights by, relative")
    for name in STRATEGIES:
        loss = largest_difference(runs, name, "one", "train/loss")
        accept = largest_difference(runs, name, "one", "val/accept_length")
        weights = weights_difference(runs.folder / name / WEIGHTS, runs.folder / "one" / WEIGHTS)
        figures |= {f"loss_max_abs_diff_{name}": loss, f"accept_max_abs_diff_{name}": accept}
        figures |= {f"weights_max_rel_diff_{name}": weights}
        table.add_row(f"{name}, {runs.devices} devices", f"{loss:.1e}", f"{accept:.1e}", f"{weights:.1e}")
    console.print(f"against one process, {runs.steps} steps")
    console.print(table)
    return figures, []


def kill_and_resume(runs: Runs, kills: int, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Kill trainings at random moments, and resume each with one device or with several."""
    chance, rows, half = random.Random(seed), [], 0
    table = Table("killed", "resumed with", "losses differ by", "accept lengths by")
    started = time.perf_counter()
    runs.resume("startup", runs.devices)
    startup_s = time.perf_counter() - started
    for number in range(kills):
        for devices in (1, runs.devices):
            name = f"killed{number}-{devices}"
            killed = runs.kill(name, chance, startup_s / 2)
            half += runs.half_artifacts()
            runs.resume(name, devices)
            half += runs.half_artifacts()
            loss = largest_difference(runs, name, "one", "train/loss")
            accept = largest_difference(runs, name, "one", "val/accept_length")
            rows.append({"killed": killed, "devices": devices, "loss": loss, "accept_length": accept})
            table.add_row(killed, f"{devices} devices" if devices > 1 else "1 device", f"{loss:.1e}", f"{accept:.1e}")
            print(f"{name}: {killed}, {loss:.1e}", file=sys.stderr, flush=True)
    console.print(table)
    console.print(f"{len(rows)} kills left {half} half artifacts")
    figures = {
        "kills": len(rows),
        "loss_max_abs_diff_resumed": max(row["loss"] for row in rows),
        "accept_max_abs_diff_resumed": max(row["accept_length"] for row in rows),
        "half_artifacts": half,
    }
    return figures, rows


def main() -> None:
    """Run the comparison and, if there are any, the kills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, metavar="N", help="devices that train together")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="optimiser steps of each training")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kills, resumed with 1 device, and with N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments of the kills")
    parser.add_argument("--folder", type=Path, default=Path("runs/ranks"), metavar="PATH", help="emptied, then used")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of `drafterforge train-drafter`")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    runs = Runs(options.folder, options.steps, options.devices, options.settings)
    subprocess.run([*COMMAND, "prepare-data", *DATA, *prepared(runs.settings)], check=True)
    figures, rows = compare(runs)
    if options.kills:
        further, rows = kill_and_resume(runs, options.kills, options.seed)
        figures |= further
    if options.json:
        device = torch.device("cuda" if torch.cuda.device_count() >= options.devices else "cpu")
        save_record(options.json, "ranks", device, "float32", figures, rows)


def prepared(settings: Sequence[str]) -> list[str]:
    """The settings that `prepare-data` reads too."""
    return [setting for setting in settings if setting.partition(".")[0] not in ("trainer", "drafter", "eval")]


if __name__ == "__main__":
    work(sys.argv[2:]) if sys.argv[1:2] == ["--worker"] else main()
