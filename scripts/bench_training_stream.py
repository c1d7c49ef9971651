"""Train a drafter from vLLM's stream and one in process, on the same prompts, and print what both reach on validation.

    scripts/clients_env vllm && python scripts/bench_training_stream.py

Both read every answer once, in float32, but in another order.  Further trainings in process, with other seeds, show
what order alone changes.  The stream's size on disk is measured while it runs.

Figures:
    streamed_val_accept_length    the best on validation
    in_process_val_accept_length  the same, mean over the seeds; in_process_least and in_process_most are its range
    difference                    of streamed and in process
    streamed_steps, in_process_steps    optimiser steps
    stream_limit_gb, stream_largest_gb  the stream's bound and its largest size on disk
    streamed_answers, streamed_tokens   what the stream has carried
    streamed_s                    seconds of both processes of the stream
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from drafterforge.data.stream import GB, StreamRecord, used_bytes

import torch
from bench_record import save_record

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=str(ROOT / ".venv-vllm"), help="environment with vLLM and drafterforge")
    parser.add_argument("--answers", type=int, default=420, help="training answers")
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps")
    parser.add_argument("--stream-gb", type=float, default=0.15, help="bound of the stream")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and training")
    parser.add_argument("--seeds", type=int, default=4, help="trainings in process, each in another order")
    parser.add_argument("--folder", default="", help="where to work; empty: a temporary folder")
    parser.add_argument("--json", default="", help="file for the figures")
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(typed.folder or temporary)
        figures = compare(typed, folder)
    for name, value in figures.items():
        print(f"{name:32} {value:.4f}")
    if typed.json:
        save_record(Path(typed.json), "training-stream", torch.device("cpu"), "float32", figures)


def compare(typed: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Figures of both trainings."""
    data = ["domain=sql", f"data.num_train={typed.answers}", "data.num_val=24", "data.num_test=8"]
    data += ["data.max_new_tokens=64", "target.dtype=float32", f"seed={typed.seed}"]
    training = [
        "drafter=eagle3",
        "trainer.tokens_per_batch=512",
        f"trainer.max_steps={typed.steps}",
        "trainer.val_every=25",
        "eval.num_prompts=4",
        "eval.max_new_tokens=8",
        "eval.chain=false",
    ]
    ring = folder / "ring"
    stream = [f"data.stream={ring}", f"data.stream_gb={typed.stream_gb}"]
    engine = "data.vllm={enforce_eager: true, max_model_len: 1024, max_num_seqs: 16}"
    began = time.perf_counter()
    writer = start(
        f"{typed.vllm}/bin/python", folder / "vllm.log", "prepare-data", *data, *stream, engine, vllm=typed.vllm
    )
    largest, ended = [0], threading.Event()
    watcher = threading.Thread(target=watch, args=(ring, largest, ended))
    watcher.start()
    runs = folder / "streamed"
    reader = start(
        sys.executable, folder / "stream.log", "train-drafter", *data, *stream, *training, f"runs_dir={runs}"
    )
    codes = reader.wait(), writer.wait()
    ended.set()
    watcher.join()
    if any(codes):
        raise SystemExit(f"exit codes {codes}; see {folder}/stream.log and {folder}/vllm.log")
    seconds, record = time.perf_counter() - began, StreamRecord.read(ring)
    direct = folder / "in_process"
    in_process = []
    for seed in range(typed.seed, typed.seed + typed.seeds):
        if seed == typed.seed:
            command = data
        else:  # the same answers in another order
            command = ["domain=sql", "answers=sql", f"name=sql-{seed}", "target.dtype=float32", f"seed={seed}"]
        log = folder / f"direct-{seed}.log"
        code = start(sys.executable, log, "train-drafter", *command, *training, f"runs_dir={direct}").wait()
        if code:
            raise SystemExit(f"exit code {code}; see {log}")
        in_process.append(metrics(direct, "sql" if seed == typed.seed else f"sql-{seed}"))
    streamed = metrics(runs, "sql")
    lengths = [trained["val_accept_length"] for trained in in_process]
    figures = {
        "streamed_val_accept_length": streamed["val_accept_length"],
        "in_process_val_accept_length": statistics.mean(lengths),
        "in_process_least": min(lengths),
        "in_process_most": max(lengths),
        "difference": streamed["val_accept_length"] - statistics.mean(lengths),
        "streamed_steps": streamed["steps"],
        "in_process_steps": in_process[0]["steps"],
        "stream_limit_gb": typed.stream_gb,
        "stream_largest_gb": largest[0] / GB,
        "streamed_answers": record.answers,
        "streamed_tokens": record.tokens,
        "streamed_s": seconds,
    }
    return figures


def start(python: str, log: Path, *arguments: str, vllm: str = "") -> subprocess.Popen:
    """A command of drafterforge."""
    variables = dict(os.environ)
    if vllm:
        variables |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        variables.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        variables["LD_PRELOAD"] = f"{vllm}/lib/libiomp5.so"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as output:
        return subprocess.Popen([python, "-m", "drafterforge", *arguments], stdout=output, stderr=output, env=variables)


def watch(ring: Path, largest: list[int], ended: threading.Event) -> None:
    """Measure the stream on disk until the end."""
    while not ended.wait(0.02):
        largest[0] = max(largest[0], used_bytes(ring))


def metrics(runs: Path, name: str) -> dict[str, float]:
    """What the training of a drafter recorded."""
    (path,) = runs.glob(f"*/drafters/{name}/manifest.json")
    return json.loads(path.read_text())["metrics"]


if __name__ == "__main__":
    main()
