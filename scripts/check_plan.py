"""Compare `drafterforge plan` with what then happens: seconds, disk and memory of each stage of a small training.

python scripts/check_plan.py                                   # the embedded target, in a fresh runs folder
python scripts/check_plan.py data.num_train=400 domain=math    # other settings of train-drafter
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from drafterforge.artifacts.manifest import MANIFEST
from drafterforge.cli.overrides import read_config
from drafterforge.evaluation.planning import peak_disk
from drafterforge.evaluation.stage_trials import folder_bytes, private_bytes
from drafterforge.targets.device import choose_device, choose_dtype

from bench_record import save_record

SMALL = [
    *("domain=sql", "data.num_train=512", "data.num_val=32", "data.num_test=16", "data.max_new_tokens=96"),
    *("trainer.max_steps=60", "trainer.val_every=20", "eval.num_prompts=4", "eval.max_new_tokens=48"),
]
POLL_S = 0.2
ENDS = {"answers": "answers", "features": "features", "training": "drafters"}  # stage -> kind of artifact that ends it
TOLERANCE, BARS = 0.25, ("time in all", "disk", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="settings of train-drafter, after those of the small training")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures here")
    parser.add_argument("--estimate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.estimate:
        print(json.dumps(estimate(options.settings)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        typed = [*SMALL, *options.settings, f"runs_dir={folder}/runs"]
        print("drafterforge train-drafter", *typed, flush=True)
        command = [sys.executable, __file__, "--estimate", *typed]
        estimated = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        measured = measure(typed, Path(folder) / "runs")
    figures = compare(estimated, measured)
    if options.json:
        target = read_config("plan", ["train-drafter", *typed]).target
        device = choose_device(target.device)
        dtype = str(choose_dtype(target.dtype, device)).removeprefix("torch.")
        save_record(options.json, "plan", device, dtype, figures)
    return int(any(abs(figures[name] - 1) > TOLERANCE for name in BARS))


def estimate(typed: list[str]) -> dict:
    """The stages that `plan` prints, as numbers."""
    from drafterforge.evaluation.planned_devices import find_devices, free_room
    from drafterforge.pipelines.plan import make_plan
    from drafterforge.targets.shape import ModelShape, find_config

    planned = read_config("plan", ["train-drafter", *typed])
    shape, device = ModelShape.read(find_config(planned.target)), choose_device(planned.target.device)
    dtype = choose_dtype(planned.target.dtype, device)
    devices = find_devices(planned, device, free_room(planned, device))
    stages = make_plan(planned, shape, device, dtype, devices).estimate(planned.config, dtype.itemsize)
    seconds = {stage.name: stage.seconds for stage in stages}
    seconds["answers"] += seconds.pop("start")  # the answers begin when the target is loaded
    memory = max(stage.memory for stage in stages)
    totals = {"disk": peak_disk(stages), "disk that stays": sum(stage.lasting for stage in stages), "memory": memory}
    return {"seconds": seconds, **totals, "stages": [dataclasses.asdict(stage) for stage in stages]}


def measure(typed: list[str], runs: Path) -> dict:
    """The same of the command itself, whose process and folder are watched."""
    began, marks = time.perf_counter(), {}
    process = subprocess.Popen(
        [sys.executable, "-m", "drafterforge", "train-drafter", *typed],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    disk = memory = 0.0
    while process.poll() is None:
        memory = max(memory, private_bytes(Path(f"/proc/{process.pid}/status")))
        disk = max(disk, used_bytes(runs))
        for stage, kind in ENDS.items():
            if stage not in marks and next(runs.glob(f"*/{kind}/[!.]*/{MANIFEST}"), None):
                marks[stage] = time.perf_counter() - began
        time.sleep(POLL_S)
    marks["decoding"] = time.perf_counter() - began
    if process.returncode:
        sys.exit(f"train-drafter ended with {process.returncode}")
    names = sorted(marks, key=marks.get)
    seconds = {name: marks[name] - (marks[names[i - 1]] if i else 0.0) for i, name in enumerate(names)}
    return {"seconds": seconds, "disk": disk, "disk that stays": folder_bytes(runs), "memory": memory}


def used_bytes(folder: Path) -> float:
    """Bytes of the files in a folder, each once however many names it has."""
    files = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except OSError:  # deleted meanwhile
            continue
        if path.is_file():
            files[stat.st_ino] = stat.st_size
    return float(sum(files.values()))


def compare(estimated: dict, measured: dict) -> dict[str, float]:
    """Print estimate, measured value and ratio of each figure; return the ratios."""
    rows = [(name, estimated["seconds"].get(name, 0.0), s, "s") for name, s in measured["seconds"].items()]
    rows.append(("time in all", sum(estimated["seconds"].values()), sum(measured["seconds"].values()), "s"))
    rows += [(key, estimated[key] / 1e6, measured[key] / 1e6, "MB") for key in ("disk", "disk that stays", "memory")]
    print(f"{'':<18}{'estimate':>12}{'measured':>12}{'ratio':>8}")
    for name, left, right, unit in rows:
        print(f"{name:<18}{left:>10.1f} {unit:<2}{right:>9.1f} {unit:<2}{left / max(right, 1e-9):>7.2f}")
    return {name: left / max(right, 1e-9) for name, left, right, _ in rows}


if __name__ == "__main__":
    sys.exit(main())
