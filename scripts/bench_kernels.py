"""What a linear layer of few rows costs by the compiled kernels, by oneDNN with packed weights, and by torch, on a CPU.

    python scripts/bench_kernels.py [--rows 1,6,16] [--threads 2] [--json PATH]

Layers have the shapes of the default target's; as many copies are read in turn as do not fit into caches, since in
decoding each comes from memory.  A pass is the sum of all its layers, timed apart.  Weights that are bfloat16 numbers
are read as such by the kernels, others as float32; arithmetic is float32 everywhere.  Ways take turns; the figure of
each is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.kernels import native
from drafterforge.targets.device import describe_device

SHAPES = {"qkv": (960, 576), "out": (576, 576), "gate and up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
LAYERS = {"qkv": 30, "out": 30, "gate and up": 30, "down": 30, "head": 1}  # of each in one pass of the target
WORKING_SET = 1 << 28  # bytes of weights, as float32; ways take turns, so that four times as much is read in between
WAYS = ("kernels, bfloat16 weights", "kernels, float32 weights", "torch", "oneDNN, packed")  # the last if torch has it
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the figures; 2 without compiled kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,6,16", metavar="N,...", help="inputs that are multiplied at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="by default torch's")
    parser.add_argument("--working-set", type=int, default=WORKING_SET, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    try:
        rows = sorted({int(one) for one in options.rows.split(",")})
    except ValueError:
        parser.error(f"--rows {options.rows} are no numbers; type --rows 1,6,16")
    if min(*rows, options.rounds, 1 if options.threads is None else options.threads) < 1:
        parser.error("--rows, --rounds and --threads are 1 or more")
    if options.threads:
        torch.set_num_threads(options.threads)
    if native.library() is None:
        print(f"no compiled kernels: {native.why_not()}; drafterforge doctor says what is needed", file=sys.stderr)
        return 2
    with torch.inference_mode():
        found = measured(rows, options.rounds, options.working_set)
    device = describe_device(torch.device("cpu"))
    show(found, f"one pass of the target's {sum(LAYERS.values())} linear layers, on {device}")
    if options.json:
        report = {"bench": "kernels", "created": datetime.now(UTC).isoformat(timespec="seconds"), "device": device}
        save_json_atomic(options.json, report | {"dtype": "float32", "figures": passes(found), "rows": found})
    return 0


def measured(rows: list[int], rounds: int, working_set: int) -> list[dict[str, Any]]:
    """Milliseconds of every shape, way and number of rows."""
    found = []
    for name, (out, depth) in SHAPES.items():
        copies = max(1, working_set // (4 * out * depth))
        weights = [torch.randn(out, depth) for _ in range(copies)]
        ways = dict(zip(WAYS, multipliers(weights), strict=False))
        for count in rows:
            x = torch.randn(count, depth)
            took = {way: [] for way in ways}
            for turn in range(rounds + 1):  # the first warms up
                for way, layers in ways.items():
                    began = time.perf_counter()
                    for layer in layers:
                        layer(x)
                    if turn:
                        took[way].append((time.perf_counter() - began) / copies)
            for way, seconds in took.items():
                middle = statistics.median(seconds)
                gflops = 2e-9 * count * out * depth / middle
                found.append({"layer": name, "rows": count, "way": way, "ms": 1000 * middle, "gflops": gflops})
    return found


def multipliers(weights: list[Tensor]) -> list[list[Callable[[Tensor], Tensor]]]:
    """Of each way, what multiplies with each of the weights."""
    found = [
        [native.PackedLinear(weight.bfloat16().float(), None) for weight in weights],
        [native.PackedLinear(weight, None) for weight in weights],
        [lambda x, w=weight: F.linear(x, w) for weight in weights],
    ]
    if hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]
        multiply = torch.ops.mkldnn._linear_pointwise
        found.append([lambda x, w=one: multiply(x, w, None, "none", [], "") for one in packed])
    return found


def passes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one pass of all the target's linear layers takes."""
    figures = []
    for count in dict.fromkeys(row["rows"] for row in found):
        for way in dict.fromkeys(row["way"] for row in found):
            of = [row for row in found if (row["rows"], row["way"]) == (count, way)]
            took = sum(LAYERS[row["layer"]] * row["ms"] for row in of)
            work = sum(LAYERS[name] * out * depth for name, (out, depth) in SHAPES.items())
            figures.append({"rows": count, "way": way, "ms": took, "gflops": 2e-6 * count * work / took})
    for figure in figures:
        first, torch_s = (
            next(one["ms"] for one in figures if (one["rows"], one["way"]) == key)
            for key in ((figures[0]["rows"], figure["way"]), (figure["rows"], "torch"))
        )
        figure |= {"over_fewest_rows": figure["ms"] / first, "speedup_over_torch": torch_s / figure["ms"]}
    return figures


def show(found: list[dict[str, Any]], title: str) -> None:
    """Print what a pass takes."""
    table = Table(title=title)
    for heading in ("rows", "way", "ms", "GFLOP/s", "over torch", "over fewest rows"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for figure in passes(found):
        cells = [f"{figure['ms']:.1f}", f"{figure['gflops']:.0f}", f"{figure['speedup_over_torch']:.2f}x"]
        table.add_row(str(figure["rows"]), figure["way"], *cells, f"{figure['over_fewest_rows']:.2f}x")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
