"""Times linear layers of few rows on a CPU: our compiled kernels, oneDNN with packed weights, and torch.

    python scripts/bench_kernels.py [--rows 1,6,16,32] [--threads 2] [--json PATH]

Layers have the shapes of the default target.  Enough copies are read in turn to exceed the caches, as decoding reads
each layer from memory.  Layers are timed one by one; a pass is their sum.  The kernels read bfloat16 weights as
bfloat16 and others as float32.  Arithmetic is float32; with AVX512-BF16 or AMX the kernels can also round inputs to
bfloat16 and multiply in it.  Implementations take turns; figures are medians over rounds.

Rows of the layer `all` are a pass with a number of rows by one implementation (`way`):
    ms                  milliseconds
    gflops              billions of operations a second
    over_fewest_rows    time over that of the fewest rows
    speedup_over_torch  time of torch over that of this implementation
Figures, of a pass with N rows:
    bfloat16_over_torch_N, float32_over_torch_N  speed of the kernels over torch's, by the dtype of the weights
    products_over_float32_N                      speed of bfloat16 products over float32 ones, with bfloat16 weights
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drafterforge.kernels import native, native_linear
from drafterforge.targets.device import describe_device

import torch
import torch.nn.functional as F
from bench_record import save_record
from rich.console import Console
from rich.table import Table
from torch import Tensor

SHAPES = {"qkv": (960, 576), "out": (576, 576), "gate and up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
LAYERS = {"qkv": 30, "out": 30, "gate and up": 30, "down": 30, "head": 1}  # in one pass of the target
WORKING_SET = 1 << 28  # bytes of float32 weights of each implementation; the other three are read in between
HALF, PRODUCTS, FULL = "kernels, bfloat16 weights", "kernels, bfloat16 products", "kernels, float32 weights"
BYTES = "kernels, 8 bits"
WAYS = HALF, PRODUCTS, FULL, BYTES, "torch", "oneDNN, packed"  # some need AVX512-BF16, AVX512-VNNI or a build of torch
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(argv: list[str] | None = None) -> int:
    """The exit code: 2 without compiled kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,6,16,32", metavar="N,...", help="rows of the inputs")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of which figures are the median")
    parser.add_argument("--threads", type=int, help="number of threads; by default torch's")
    parser.add_argument("--working-set", type=int, default=WORKING_SET, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args(argv)
    try:
        row_counts = sorted({int(count) for count in options.rows.split(",")})
    except ValueError:
        parser.error(f"--rows {options.rows} must be whole numbers; type --rows 1,6,16,32")
    if min(*row_counts, options.rounds, 1 if options.threads is None else options.threads) < 1:
        parser.error("--rows, --rounds and --threads must be at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    if native.library() is None:
        print(f"no compiled kernels: {native.why_not()}; drafterforge doctor says what is needed", file=sys.stderr)
        return 2
    with torch.inference_mode():
        rows = measure(row_counts, options.rounds, options.working_set)
    passes, device = sum_passes(rows), torch.device("cpu")
    show(passes, f"one pass of the target's {sum(LAYERS.values())} linear layers, on {describe_device(device)}")
    if options.json:
        save_record(options.json, "kernels", device, "float32", figures_of(passes), [*rows, *passes])
    return 0


def measure(row_counts: list[int], rounds: int, working_set: int) -> list[dict[str, Any]]:
    """Milliseconds of every shape, implementation (`way`) and number of rows."""
    rows = []
    for name, (out, depth) in SHAPES.items():
        copies = max(1, working_set // (4 * out * depth))
        weights = [torch.randn(out, depth) for _ in range(copies)]
        ways = multipliers(weights)
        for count in row_counts:
            x = torch.randn(count, depth)
            seconds = {way: [] for way in ways}
            for turn in range(rounds + 1):  # the first warms up
                for way, layers in ways.items():
                    began = time.perf_counter()
                    for layer in layers:
                        layer(x)
                    if turn:
                        seconds[way].append((time.perf_counter() - began) / copies)
            for way in ways:
                median = statistics.median(seconds[way])
                gflops = 2e-9 * count * out * depth / median
                rows.append({"layer": name, "rows": count, "way": way, "ms": 1000 * median, "gflops": gflops})
    return rows


def multipliers(weights: list[Tensor]) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    """For each way of this machine, functions that multiply with each of the weights."""
    representable = [weight.bfloat16().float() for weight in weights]  # exactly, in bfloat16
    ways = {
        HALF: [native_linear.PackedLinear(weight, None) for weight in representable],
        FULL: [native_linear.PackedLinear(weight, None) for weight in weights],
        "torch": [lambda x, w=weight: F.linear(x, w) for weight in weights],
    }
    if native.multiplies_bfloat16():
        ways[PRODUCTS] = [native_linear.PackedLinear(weight, None, rounds=True) for weight in representable]
    if native.multiplies_bytes():
        ways[BYTES] = [native_linear.PackedLinear(weight, None, int8=True) for weight in representable]
    if hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]
        multiply = torch.ops.mkldnn._linear_pointwise
        ways["oneDNN, packed"] = [lambda x, w=weight: multiply(x, w, None, "none", [], "") for weight in packed]
    return ways


def sum_passes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds of one pass of all the target's linear layers."""
    num_weights = sum(LAYERS[name] * out * depth for name, (out, depth) in SHAPES.items())
    times: dict[tuple[int, str], float] = {}
    for row in rows:
        key = row["rows"], row["way"]
        times[key] = times.get(key, 0.0) + LAYERS[row["layer"]] * row["ms"]
    fewest = min(count for count, _ in times)
    return [
        {"layer": "all", "rows": count, "way": way, "ms": times[count, way]}
        | {"gflops": 2e-6 * count * num_weights / times[count, way]}
        | {"over_fewest_rows": times[count, way] / times[fewest, way]}
        | {"speedup_over_torch": times[count, "torch"] / times[count, way]}
        for count, way in sorted(times, key=lambda key: (key[0], WAYS.index(key[1])))
    ]


def figures_of(passes: list[dict[str, Any]]) -> dict[str, float]:
    """Speeds of the kernels over torch, and of bfloat16 products over float32 ones, by number of rows."""
    ms = {(row["way"], row["rows"]): row["ms"] for row in passes}
    figures = {}
    for count in sorted({row["rows"] for row in passes}):
        figures[f"bfloat16_over_torch_{count}"] = ms["torch", count] / ms[HALF, count]
        figures[f"float32_over_torch_{count}"] = ms["torch", count] / ms[FULL, count]
        if (PRODUCTS, count) in ms:
            figures[f"products_over_float32_{count}"] = ms[HALF, count] / ms[PRODUCTS, count]
    return figures


def show(passes: list[dict[str, Any]], title: str) -> None:
    """Print the time of a pass."""
    table = Table(title=title)
    for heading in ("rows", "way", "ms", "GFLOP/s", "over torch", "over fewest rows"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in passes:
        cells = [f"{row['ms']:.1f}", f"{row['gflops']:.0f}", f"{row['speedup_over_torch']:.2f}x"]
        table.add_row(str(row["rows"]), row["way"], *cells, f"{row['over_fewest_rows']:.2f}x")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
