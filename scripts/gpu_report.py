#!/usr/bin/env python3
"""Measures this device, a GPU if there is one: tests, losslessness, decoding, pools, steps at 8B and 32B, training.

    python scripts/gpu_report.py [--out FOLDER] [--step NAME ...] [--device cuda|cpu] [--within SECONDS]
    python scripts/gpu_report.py --list                      # steps, their limits and commands
    python scripts/gpu_report.py --quick --device cpu        # rehearse everything at tiny sizes on a CPU
    python scripts/gpu_report.py --out FOLDER --publish      # copy results to docs/reports/NAME@DEVICE.json

Every step is a process of at most 9 minutes.  It leaves FOLDER/STEP.json and FOLDER/STEP.log; FOLDER/results.tar.gz
holds them all.  A second run skips steps that are done with the same code and torch on the same device, so that an
interrupted run continues; other results are measured again.  A failed step does not stop the run; the exit code is then
1.  Steps whose weights are not on this machine are skipped.  The package need not be installed.

--publish measures nothing.  It writes the results to docs/reports, the latency profiles to configs/latency, and
docs/results.md again.  It refuses results of other code than this, or of several versions of torch.

This is a Python file with an extension, as `results.py` is, so that tests can import it.  It imports neither torch nor
the package, but to publish: the GPU is left to the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from gpu_report_steps import ROOT, Report, Step, all_steps

LONGEST_S = 540  # limit of a step
SOURCES = ("drafterforge", "pipelines", "configs", "scripts", "tests")  # a change there is another code version
DESCRIBE = """
import json, drafterforge, torch
from drafterforge.targets.device import choose_device, describe_device
print(json.dumps([describe_device(choose_device("auto")), torch.__version__]))
"""
FETCH = """
from importlib.util import find_spec
from drafterforge.targets.smollm2 import ensure_smollm2, is_present, smollm2_dir
if not is_present(smollm2_dir()):
    if find_spec("gguf") is None:
        raise SystemExit("the library gguf, which converts them, is not installed")
    ensure_smollm2()
"""


@dataclass
class Run:
    """Where and with what the steps run."""

    folder: Path
    quick: bool
    version: str
    device: str
    torch: str
    environment: Mapping[str, str]
    deadline: float  # of the clock; no step may end later

    def identity(self) -> dict[str, Any]:
        """What a result must share to be reused."""
        return {"version": self.version, "device": self.device, "quick": self.quick, "torch": self.torch}


def run_step(step: Step, run: Run, lacks: Callable[[], str]) -> Report:
    """Run a step, or reuse its result; returns the record that is in its file.

    lacks: why the weights of the embedded target cannot be used; empty if they can.
    """
    path = run.folder / f"{step.name}.json"
    record = read_record(path)
    if record.get("state") == "done" and record | run.identity() == record:
        return record | {"reused": True}
    record = {"step": step.name, **run.identity(), "name": step.report}
    left_s = run.deadline - time.monotonic()
    if step.embedded and (reason := lacks()):
        record |= {"state": "skipped", "reason": reason}
    elif left_s < step.expected_s:
        reason = f"may take {step.expected_s} s, and --within leaves {left_s:.0f}"
        return record | {"state": "not run", "reason": reason}
    else:
        output = run.folder / f".{step.name}.output"
        output.unlink(missing_ok=True)
        text, limit_s = step.quick if run.quick else step.command, min(LONGEST_S, left_s)
        print(f"{step.name}: python {text.format(output='PATH')}", flush=True)
        began = time.monotonic()
        command = [sys.executable, *(part.format(output=output) for part in text.split())]
        code = execute(command, run, run.folder / f"{step.name}.log", limit_s)
        record["seconds"] = round(time.monotonic() - began, 1)
        record |= outcome(step, run, output, code, limit_s)
        output.unlink(missing_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def read_record(path: Path) -> Report:
    """The record in a file; empty if there is none or it is damaged."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def outcome(step: Step, run: Run, output: Path, code: int | None, limit_s: float) -> Report:
    """State, reason and report of a process that has ended.  code: its exit code; None: it ran out of time."""
    report: Report = {}
    with contextlib.suppress(OSError, ValueError, ParseError):
        report = {"device": run.device} | step.read(output)
    log = f"see {step.name}.log"
    if code is None:
        return {"state": "failed", "reason": f"stopped after {limit_s:.0f} s; {log}", "report": report}
    if not report:
        return {"state": "failed", "reason": f"exit code {code}, and no result; {log}"}
    if not step.passes(report, run.device, code):
        return {"state": "failed", "reason": f"exit code {code}; {log}", "report": report}
    return {"state": "done", "report": report}


def execute(command: Sequence[str], run: Run, log: Path, limit_s: float) -> int | None:
    """The exit code of a process whose output goes to a file; None: it was ended at its limit, with its children."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(run.environment), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def code_version() -> str:
    """A digest of the source files; a copy of the tree without git has it too."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".yaml") and path.is_file():
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def importable_package() -> Iterator[Path]:
    """A folder with the package as it is installed: `configs` and `pipelines` are inside, which they are not here."""
    with tempfile.TemporaryDirectory(prefix="drafterforge-") as folder:
        package = Path(folder) / "drafterforge"
        package.mkdir()
        outside = [ROOT / "configs", ROOT / "pipelines"]
        for path in {path.name: path for path in (*(ROOT / "drafterforge").iterdir(), *outside)}.values():
            (package / path.name).symlink_to(path)
        yield Path(folder)


def environment_of(device: str, package: Path) -> dict[str, str]:
    """The environment of the steps.  device: cpu hides the GPUs.  package: see `importable_package`."""
    path = os.pathsep.join(filter(None, [str(package), str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    return environment | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


def describe(environment: Mapping[str, str]) -> tuple[str, str]:
    """The device and the version of torch, found in another process, which frees the GPU when it ends."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", DESCRIBE], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise SystemExit(f"torch or drafterforge cannot be imported: {lines[-1]}")
    device, version = json.loads(done.stdout.strip().splitlines()[-1])
    return device, version


def embedded_obstacle(environment: Mapping[str, str]) -> str:
    """Why the embedded target cannot be used, in one line; empty if it can, fetched the first time."""
    command = [sys.executable, "-P", "-c", FETCH]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"the weights of the embedded target were not fetched in {LONGEST_S} s"
    if not done.returncode:
        return ""
    line = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"the weights of the embedded target are not here: {line[:160]}"


def device_name(device: str) -> str:
    """The device in names of reports: `h100` for NVIDIA H100 80GB HBM3, `cpu` for a CPU."""
    if not device.startswith("NVIDIA"):
        return re.split(r"\W", device.lower())[0]
    noise = r"NVIDIA|GeForce|Tesla|Quadro|GPU|\d+GB|HBM\w*|PCIe|SXM\d*|NVL"
    return "-".join(re.sub(rf"\b(?:{noise})\b", " ", device.replace("-", " ")).lower().split()) or "gpu"


def show(records: Sequence[Report], steps: Sequence[Step]) -> None:
    """Print steps, states and main figures."""
    figures_by_step = {step.name: step.figures for step in steps}
    width = max(len(record["step"]) for record in records)
    for record in records:
        state = record["state"] + (" before" if record.get("reused") else "")
        figures = record.get("report", {}).get("figures", {})
        cells = [f"{name} {form(figures[name])}" for name in figures_by_step[record["step"]] if name in figures]
        seconds = f"{record['seconds']:.0f} s" if "seconds" in record else ""
        text = ", ".join(filter(None, [record.get("reason", ""), *cells]))
        print(f"{record['step']:{width}}  {state:12} {seconds:>6}  {text}")


def form(value: float | int) -> str:
    """A number in a few digits."""
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def pack(folder: Path) -> None:
    """Put all results and logs into one small file."""
    with tarfile.open(folder / "results.tar.gz", "w:gz") as archive:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.log")]):
            archive.add(path, path.name)


def publish(folder: Path, root: Path) -> int:
    """Copy the results that are done to docs/reports and configs/latency; the exit code of `results.py`."""
    records = {path: read_record(path) for path in sorted(folder.glob("*.json"))}
    for path in list(records):
        if reason := publish_obstacle(records[path]):
            print(f"{path.name} is left out: {reason}")
            del records[path]
    if problem := other_origin({path.name: record for path, record in records.items()}):
        print(problem, file=sys.stderr)
        return 2
    sys.path.append(str(ROOT))  # of the package, which need not be installed
    import results

    num_published = 0
    for path, record in records.items():
        device, report = device_name(record["device"]), record["report"]
        if profile := report.pop("profile", None):
            target = root / "configs" / "latency" / f"{device}-{profile['target']}.json"
            target.write_text(json.dumps(profile, indent=2) + "\n")
            print(f"wrote {target.relative_to(root)}")
        file = folder / f".{path.stem}.report"
        file.write_text(json.dumps(report))
        code = results.main(["--root", str(root), "--keep", str(file), f"{record['name']}@{device}"])
        file.unlink()
        if code:
            return code
        num_published += 1
    print(f"wrote {num_published} reports" + (" and docs/results.md" if num_published else ""))
    return 0


def publish_obstacle(record: Report) -> str:
    """Why a record is not published; empty if it is."""
    if record.get("quick"):
        return "made with --quick"
    if record.get("state") == "done" and record.get("name"):
        return ""
    return record.get("state") or "no record of a step"


def other_origin(records: Mapping[str, Report]) -> str:
    """Why records may not be published together, in one line; empty if they may.  records: by file name."""
    code, first = code_version(), next(iter(records), "")
    for name, record in records.items():
        if record.get("version") != code:
            return f"{name} was measured by code {record.get('version')}, this is code {code}; measure it again"
        if record.get("torch") != records[first].get("torch"):
            return (
                f"{name} was measured with torch {record.get('torch')}, {first} with torch "
                f"{records[first].get('torch')}; measure one of them again"
            )
    return ""


def main(arguments: list[str] | None = None, steps: Sequence[Step] | None = None) -> int:
    """The exit code: 1 if a step failed, 2 for a user's mistake."""
    steps = list(steps or all_steps())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "gpu-report", metavar="FOLDER", help="of the results"
    )
    parser.add_argument(
        "--step", nargs="+", metavar="NAME", choices=[step.name for step in steps], help="only these steps"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses on a CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument(
        "--within",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin no step after which the run could last longer",
    )
    parser.add_argument("--list", action="store_true", help="show the steps")
    parser.add_argument("--publish", action="store_true", help="copy results to docs/reports instead of measuring")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="where --publish writes")
    options = parser.parse_args(arguments)
    if options.list:
        for step in steps:
            needs = ", needs the embedded target" if step.embedded else ""
            print(f"{step.name}: at most {LONGEST_S} s, about {step.expected_s} s{needs}")
            print(f"  python {step.command.format(output='PATH')}")
        return 0
    if options.publish:
        return publish(options.out, options.root)
    with importable_package() as package:
        return measure(options, steps, environment_of(options.device, package))


def measure(options: argparse.Namespace, steps: Sequence[Step], environment: Mapping[str, str]) -> int:
    """Run the steps; the exit code."""
    device, version = describe(environment)
    if options.device == "cuda" and device.startswith("cpu"):
        print("torch finds no GPU here; --quick --device cpu rehearses on this CPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.within
    run = Run(options.out, options.quick, code_version(), device, version, environment, deadline)
    obstacle: list[str] = []

    def lacks() -> str:
        if not obstacle:
            obstacle.append(embedded_obstacle(environment))
        return obstacle[0]

    print(f"{device}, torch {version}, code {run.version}; results in {options.out}", flush=True)
    records = []
    for step in steps:
        if options.step is None or step.name in options.step:
            records.append(run_step(step, run, lacks))
            pack(options.out)
    show(records, steps)
    return int(any(record["state"] == "failed" for record in records))


if __name__ == "__main__":
    sys.exit(main())
