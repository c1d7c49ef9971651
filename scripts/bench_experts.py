"""CPU seconds of four LoRA experts that are trained together, against four commands one after the other.

    python scripts/bench_experts.py [--cases studies-online,domains-cached] [--json PATH] [KEY=VALUE ...]

    studies-online    four settings of one domain; the target computes the features of a batch when it is read
    studies-cached    the same with features on disk, which the first of the four commands computes for all of them
    domains-online    experts of four domains, each with answers of its domain
    domains-cached    the same with features on disk

Counted are user and system seconds of all threads of the `drafterforge train-drafter` commands, once the answers exist:
start-up, opening the target, features, training, validation, and the measurement of each expert on held-out prompts.
A second run of the same command trains nothing, so it costs start-up and measurement; the difference is the training
with its features.  KEY=VALUE are settings of `drafterforge train-drafter`.  Commands run with one thread, unless
OMP_NUM_THREADS says otherwise: threads that wait for each other count as working.

Figures, of each case; - in its name is written as _:
    ratio_CASE                   seconds together, over those of the four commands
    ratio_training_CASE          the same without start-up and measurement
    accept_max_abs_diff_CASE     largest difference of the validation accept lengths of an expert
    weights_max_abs_diff_CASE    largest difference of a stored weight (bfloat16)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterforge.cli.overrides import read_config
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.device import choose_device, choose_dtype

from bench_record import save_record
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

COMMAND = [sys.executable, "-m", "drafterforge"]
DOMAINS = ("sql", "python", "math", "chat")
DATA = ("data.num_train=60", "data.num_val=8", "data.num_test=4", "data.max_new_tokens=96")
TRAINING = [
    "drafter=lora",
    "trainer.ttt_steps=2",
    "trainer.val_ttt_steps=4",
    "trainer.max_steps=60",
    "trainer.val_every=30",
    "trainer.lr=4e-3",
    "trainer.tokens_per_batch=512",
    "trainer.checkpoint_steps=false",
    "trainer.loss_chunk=256",
    "trainer.loggers=[csv]",
    "eval.chain=false",
    "eval.num_prompts=1",
    "eval.max_new_tokens=32",
]
STUDIES = {  # names, and the settings in which they differ
    "name": ("rank4", "rank16", "slow", "fast"),
    "drafter.lora.rank": ("4", "16", "16", "16"),
    "trainer.lr": ("4e-3", "4e-3", "1e-3", "8e-3"),
}
EXPERTS = {"domain": DOMAINS, "answers": tuple(f"[{domain}]" for domain in DOMAINS)}
CASES = {
    f"{kind}-{features}": (varied, [*fixed, f"data.features={features}"])
    for kind, varied, fixed in (("studies", STUDIES, ["domain=sql", "answers=sql"]), ("domains", EXPERTS, []))
    for features in ("online", "cached")
}
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def cpu_seconds(words: Sequence[str]) -> float:
    """User and system seconds of a command of ours and its threads."""
    before = os.times()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def commands_of(varied: dict[str, tuple[str, ...]], words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """A command for each expert, and one for all."""
    number = len(next(iter(varied.values())))
    single = [[*words, *(f"{key}={values[index]}" for key, values in varied.items())] for index in range(number)]
    return single, [*words, *(f"{key}=[{','.join(values)}]" for key, values in varied.items())]


def measure_case(case: str, folder: Path, typed: list[str]) -> dict[str, Any]:
    """Train four experts one after the other and together, each in a folder with the same answers."""
    varied, fixed = CASES[case]
    names = varied.get("name", varied.get("domain"))
    runs = {way: folder / case / way for way in ("apart", "together")}
    seconds: dict[str, float] = {}
    for way, runs_dir in runs.items():
        shutil.rmtree(runs_dir, ignore_errors=True)
        shutil.copytree(folder / "answers", runs_dir)
        single, joint = commands_of(varied, ["train-drafter", *fixed, *TRAINING, *typed, f"runs_dir={runs_dir}"])
        for suffix in ("", "_again"):  # the second time everything is trained
            commands = single if way == "apart" else [joint]
            seconds[way + suffix] = sum(cpu_seconds(words) for words in commands)
            console.print(f"{case}, {way}{suffix.replace('_', ' ')}: {seconds[way + suffix]:.1f} CPU s")
    accept, weights = differences(*(drafters_of(runs_dir, names) for runs_dir in runs.values()))
    trained = {way: seconds[way] - seconds[f"{way}_again"] for way in runs}
    return {
        "case": case,
        "apart_s": seconds["apart"],
        "together_s": seconds["together"],
        "ratio": seconds["together"] / seconds["apart"],
        "apart_training_s": trained["apart"],
        "together_training_s": trained["together"],
        "ratio_training": trained["together"] / trained["apart"],
        "accept_max_abs_diff": accept,
        "weights_max_abs_diff": weights,
    }


def drafters_of(runs_dir: Path, names: Sequence[str]) -> list[Path]:
    return [next(runs_dir.glob(f"*/drafters/{name}")) for name in names]


def differences(apart: list[Path], together: list[Path]) -> tuple[float, float]:
    """Largest differences of the accept lengths of the curves, and of the stored weights."""
    accept, weights = 0.0, 0.0
    for folders in zip(apart, together, strict=True):
        curves = [json.loads((folder / "curves.json").read_text()) for folder in folders]
        points = [[point["val/accept_length"] for point in curve] for curve in curves]
        accept = max(accept, *(abs(a - b) for a, b in zip(*points, strict=True)))
        tensors = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in folders]
        weights = max(weights, *((tensors[0][key].float() - tensors[1][key].float()).abs().max() for key in tensors[0]))
    return float(accept), float(weights)


def answer(folder: Path, typed: list[str]) -> None:
    """Let the target answer the prompts of all domains; what is there is kept."""
    flags = [word for word in typed if word.startswith("target")]
    for domain in DOMAINS:  # online: the measured commands capture features
        cpu_seconds(["prepare-data", f"domain={domain}", "data.features=online", *DATA, *flags, f"runs_dir={folder}"])


def main() -> None:
    """Measure, print and optionally write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="cases to measure (default: all)")
    parser.add_argument("--folder", type=Path, default=Path("runs/experts"), help="folder of answers and drafters")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options, typed = parser.parse_known_args()
    unknown = sorted(set(options.cases.split(",")) - CASES.keys())
    if unknown or [word for word in typed if "=" not in word]:
        parser.error(f"unknown: {', '.join([*unknown, *(word for word in typed if '=' not in word)])}")
    answer(options.folder / "answers", typed)
    rows = [measure_case(case, options.folder, typed) for case in options.cases.split(",")]
    columns = {
        "case": "case",
        "apart, CPU s": "apart_s",
        "together": "together_s",
        "ratio": "ratio",
        "training apart": "apart_training_s",
        "together ": "together_training_s",
        "ratio ": "ratio_training",
        "accept lengths differ by": "accept_max_abs_diff",
        "weights by": "weights_max_abs_diff",
    }
    table = Table(*columns)
    for row in rows:
        table.add_row(*(row[key] if key == "case" else f"{row[key]:.3g}" for key in columns.values()))
    console.print(table)
    if options.json:
        keys = ("ratio", "ratio_training", "accept_max_abs_diff", "weights_max_abs_diff")
        figures = {f"{key}_{row['case'].replace('-', '_')}": row[key] for row in rows for key in keys}
        target = read_config("train-drafter", ["domain=sql", *typed]).target
        device = choose_device(target.device)
        dtype = str(choose_dtype(target.dtype, device)).removeprefix("torch.")
        save_record(options.json, "experts", device, dtype, figures, rows)


if __name__ == "__main__":
    try:
        main()
    except DrafterforgeError as error:
        sys.exit(f"bench_experts: {error}")
