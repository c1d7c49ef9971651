"""How long a stream waits for its next token while the prompt of another request is read, and what a first use costs.

    python scripts/bench_stream.py [--prompts 2000,7900] [--json PATH]

A stream decodes with the shipped default of the target, on the server's worker.  Then a long prompt joins the batch:
once read in the chunks of the server, once in one piece.  The table shows, for each, the stream's longest wait for a
token over the median of its waits, the seconds until the long prompt's first token, and those that the prompt takes
with nothing beside it.

Figures, for a long prompt of N tokens:
    longest_over_median_N_chunks    longest wait over the median, when the prompt is read in chunks
    longest_over_median_N_one       the same when it is read in one piece
    read_chunks_over_one_piece_N    seconds of reading in chunks over those in one piece, with nothing beside

Figures of `drafter=auto` on a device, beyond loading the target and its drafters:
    first_use_s    seconds of measuring what passes of the target cost, at the first use
    later_use_s    seconds of reading these costs, at every later one
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import unittest.mock
from itertools import pairwise
from pathlib import Path
from typing import Any

import drafterforge
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.prefill import Prefill
from drafterforge.runtime.sampling import GREEDY
from drafterforge.runtime.stopping import StopRule
from drafterforge.runtime.verify_costs import verify_costs
from drafterforge.server.metrics import Metrics
from drafterforge.server.worker import Job, Worker

import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table

STREAM = "Write a long story about a river that forgets its name."
BEFORE = 30  # cycles of the stream before the prompt comes
LIMIT_S = 500.0
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


class Stream:
    """An answer's moments of delivery."""

    def __init__(self, engine: Engine, prompt: list[int], max_new_tokens: int) -> None:
        rule = StopRule(frozenset(), max_new_tokens, "length")
        self.moments: list[float] = []
        self.ended = threading.Event()
        self.job = Job(prompt, rule, GREEDY, self.deliver)

    def deliver(self, update: Any) -> None:
        """Note the moment; called in the worker's thread."""
        self.moments.append(time.perf_counter())
        if update.stop_reason or update.failure:
            self.ended.set()


def alone_s(engine: Engine, prompt: list[int], chunk: int | None) -> float:
    """Seconds that the target takes to read a prompt with nothing beside it.  chunk: tokens; None: the engine's."""
    with torch.inference_mode():
        cache = engine.target.new_cache()
        prefill = Prefill(engine.target, prompt, chunk or engine.open_batch().prefill_chunk, None)
        began = time.perf_counter()
        while not prefill.is_read:
            prefill.read(cache)
        return time.perf_counter() - began


def waits(engine: Engine, prompt: list[int], chunk: int | None) -> tuple[list[float], float]:
    """A stream's waits from the arrival of a prompt until a while after its first token, and the seconds until that.

    chunk: tokens of the prompt between two cycles; None: the engine's.
    """
    worker = Worker(engine, Metrics("bench"), max_waiting=4)
    worker.thread.start()
    stream = Stream(engine, engine.read(STREAM, 1)[0], engine.target.max_positions - 64)
    worker.submit([stream.job])
    wait_until(lambda: len(stream.moments) >= BEFORE)
    if chunk is not None:
        worker.batch.prefill_chunk = chunk
    late = Stream(engine, prompt, 2)
    arrived = time.perf_counter()
    worker.submit([late.job])
    wait_until(lambda: late.moments)
    first = late.moments[0]
    count = len(stream.moments)
    wait_until(lambda: len(stream.moments) >= count + BEFORE)
    worker.drop([stream.job])
    worker.close(0.0)
    worker.thread.join()
    moments = [moment for moment in stream.moments if moment >= arrived]
    return [later - sooner for sooner, later in pairwise(moments)], first - arrived


def use_s(engine: Engine) -> tuple[float, float]:
    """Seconds until the costs of the target's passes are known: at the first use on a device, and later."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, DRAFTERFORGE_CACHE=folder):
        for _ in range(2):
            began = time.perf_counter()
            verify_costs(engine.target, engine.numerics == "invariant")
            seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1]


def wait_until(condition: Any) -> None:
    """Sleep until the condition holds."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the worker has stopped")
        time.sleep(0.002)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prompts", default="2000,7900", metavar="N,...", help="lengths of the long prompts, in tokens"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args()
    engine = drafterforge.load("smollm2-135m").runtime
    table = Table("prompt", "read in", "longest wait", "median wait", "ratio", "first token after", "alone")
    figures, rows = dict(zip(("first_use_s", "later_use_s"), use_s(engine), strict=True)), []
    for length in map(int, options.prompts.split(",")):
        prompt = torch.randint(0, 40_000, (length,), generator=torch.Generator().manual_seed(0)).tolist()
        for label, chunk in (("chunks", None), ("one piece", length)):
            alone = alone_s(engine, prompt, chunk)
            gaps, first_s = waits(engine, prompt, chunk)
            longest, median = max(gaps), statistics.median(gaps)
            row = {"prompt": length, "chunk": label, "longest_s": longest, "median_s": median}
            rows.append(row | {"ratio": longest / median, "first_token_s": first_s, "alone_s": alone})
            seconds = [f"{longest:.2f} s", f"{median:.3f} s", f"{longest / median:.1f}x", f"{first_s:.1f} s"]
            table.add_row(f"{length} tokens", label, *seconds, f"{alone:.1f} s")
            figures[f"longest_over_median_{length}_{label.split()[0]}"] = longest / median
        figures[f"read_chunks_over_one_piece_{length}"] = rows[-2]["alone_s"] / rows[-1]["alone_s"]
    console.print(table)
    console.print(f"first use: {figures['first_use_s']:.1f} s; later: {figures['later_use_s']:.3f} s")
    if options.json:
        dtype = str(engine.target.dtype).removeprefix("torch.")
        save_record(options.json, "stream", engine.target.device, dtype, figures, rows)
        console.print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
