"""Times a cycle on a target of a real size, over autoregressive decoding and over the time of its memory traffic.

    python scripts/bench_steps.py [--size llama3.1-8b] [--mat 3] [--experts 8] [--context 512] [--json PATH]

Weights are random, see `random_models.py`: drafted tokens are accepted at the chosen rate, so that tokens/s at a given
MAT is measured.  `--size embedded` is the embedded target with the shipped drafters, whose rate is their own.  The
floor of a cycle is the bytes that it must read, the target's weights once and the drafter's once a level, over the copy
rate of this device.  On a GPU, cycles are timed with captured graphs and without.  Methods take turns, a prompt each.
Ratios are to the fastest autoregressive decoding of the same run.

Figures of each method, medians:
    draft_ms, refresh_ms, verify_ms, host_ms, select_ms  milliseconds of the steps of a cycle
    total_ms                                             milliseconds of the cycle
    floor_ms                                             milliseconds that its memory traffic takes at the copy rate
    over_floor                                           total_ms over floor_ms
    over_autoregressive                                  total_ms over that of the fastest autoregressive decoding
    mat                                                  tokens a cycle
    tokens_per_s, speedup                                and over the fastest autoregressive decoding
    peak_memory_gb                                       memory of the GPU at its peak while the method decodes
    mismatches                                           answers that the random target would not give
Figures of the run, of the fastest method of each kind:
    mat_asked, mat           tokens a cycle of the tree, as asked for and as reached
    plain_tokens_per_s       of autoregressive decoding
    plain_over_floor         milliseconds of a token over those of its memory traffic
    speedup                  tokens/s of the tree over autoregressive decoding
    host_share               share of the tree's cycle in which the device neither drafts nor verifies
    pool_over_one            cycle of the pool over that of one drafter, with the same tree
    pool_speedup             tokens/s of the pool over autoregressive decoding
    graphs_over_eager        cycle of the tree with captured graphs over without
    plain_graphs_over_eager  the same of autoregressive decoding
    mismatches               answers of all methods that the random target would not give
    peak_memory_gb           memory at its peak, models included: of the GPU, else of the process
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.assembly.pools import open_pool
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Cycle
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import DTYPES, choose_device, choose_dtype, describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

import torch
from bench_record import save_record
from random_models import (
    SIZES,
    continuation,
    draft_vocabulary,
    random_pool,
    random_prompt,
    random_target,
    rate_for,
)
from rich.console import Console
from rich.table import Table

EMBEDDED = "embedded"
STEPS = ("draft", "refresh", "verify", "host", "select")
WARM_UP = 3  # cycles of an answer that are not counted
PLAIN, CHAIN, TREE, POOL = "autoregressive", "chain", "tree", "pool"  # kinds of methods
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Method:
    """An engine, the bytes that a cycle of it must read, and its counted cycles."""

    kind: str
    name: str
    engine: Engine
    num_bytes: float
    cycles: list[Cycle] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)  # of each answer
    mismatches: int = 0
    peak_bytes: int = 0

    @property
    def total_ms(self) -> float:
        """Milliseconds of a cycle, median."""
        return 1e3 * statistics.median(sum(seconds_of(cycle).values()) for cycle in self.cycles)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=(EMBEDDED, *SIZES), default="llama3.1-8b", help="size of the target")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="dtype of the weights")
    parser.add_argument("--device", default="auto", help="auto | cpu | cuda")
    parser.add_argument("--vocab", type=int, default=32000, help="size of the draft vocabulary")
    parser.add_argument("--experts", type=int, default=8, help="LoRA experts in the pool, besides the generalist")
    parser.add_argument("--context", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--cycles", type=int, default=30, help="timed cycles of an answer, at least")
    parser.add_argument("--rounds", type=int, default=3, help="prompts that every method answers")
    rate_options = parser.add_mutually_exclusive_group()
    rate_options.add_argument("--accept", type=float, help="probability that a drafted token is accepted; default 0")
    rate_options.add_argument("--mat", type=float, help="tokens a cycle of the default tree; sets the probability")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    if options.size == EMBEDDED and (options.accept is not None or options.mat is not None):
        parser.error("--accept and --mat need random weights; leave them out, or choose another --size")
    depth = default_shape(device, dtype).depth
    rate = options.accept or 0.0
    if options.mat is not None:
        if not 1 <= options.mat <= depth + 1:
            parser.error(f"--mat must be 1 to {depth + 1}, because trees have {depth} levels here; got {options.mat}")
        rate = rate_for(options.mat, depth)
    torch.manual_seed(0)
    target, drafters, prompts = (
        embedded_models(options, device) if options.size == EMBEDDED else random_models(options, device, dtype, rate)
    )
    bytes_per_s = copy_rate(device)
    methods = methods_of(target, drafters)
    vocab = None if options.size == EMBEDDED else draft_vocabulary(target, options.vocab)
    for prompt in prompts:
        for method in methods:
            answer(method, prompt, options.cycles, vocab)
    rows = rows_of(methods, bytes_per_s)
    figures = figures_of(rows, device)
    if options.size != EMBEDDED:
        figures["mat_asked"] = sum(rate**level for level in range(depth + 1))
        figures["mismatches"] = sum(method.mismatches for method in methods)
    precision = str(target.dtype).removeprefix("torch.")
    weights = "real weights" if options.size == EMBEDDED else f"random, {rate:.0%} of drafted tokens accepted"
    title = f"{options.size}, {weights}, {precision}, on {describe_device(device)}; "
    show(rows, figures, title + f"copies at {bytes_per_s / 1e9:.0f} GB/s")
    if options.json:
        more = {
            "size": options.size,
            "context": len(prompts[0]),
            "accept_rate": None if options.size == EMBEDDED else rate,
            "copy_bytes_per_s": bytes_per_s,
        }
        save_record(options.json, "steps", device, precision, figures, rows, more)


def random_models(
    options: argparse.Namespace, device: torch.device, dtype: torch.dtype, rate: float
) -> tuple[Target, list[FusedDrafter], list[list[int]]]:
    """A random target, its drafters, and prompts."""
    target = random_target(options.size, device, dtype, options.vocab)
    vocab = draft_vocabulary(target, options.vocab)
    drafters = random_pool(target, vocab, 1 + options.experts, rate)
    return target, drafters, [random_prompt(vocab, options.context, 1 + index) for index in range(options.rounds)]


def embedded_models(
    options: argparse.Namespace, device: torch.device
) -> tuple[Target, list[FusedDrafter], list[list[int]]]:
    """The embedded target, its shipped EAGLE-3 drafters, the generalist first, and held-out prompts."""
    target = load_target(TargetConfig(dtype=options.dtype, device=str(device)))
    names = ["general", *POOL_DOMAINS][: 1 + options.experts]
    drafters = open_pool(SHIPPED, target, names)
    return target, list(drafters.values()), held_out_prompts(target, options.rounds, POOL_DOMAINS)


def methods_of(target: Target, drafters: list[FusedDrafter]) -> list[Method]:
    """Autoregressive decoding, chain, tree, and the pool; on a GPU with graphs and without."""
    size = torch.finfo(target.dtype).bits // 8
    generalist = drafters[0]
    target_bytes = size * num_weights_read(target)
    level_bytes = size * sum(linear.weight.numel() for linear in generalist.linears.values())
    tree = default_shape(target.device, target.dtype)
    shapes = {PLAIN: None, CHAIN: TreeShape(num_tokens=4, depth=3, top_k=1), TREE: tree}
    methods = []
    for graphs in (True, False) if target.device.type == "cuda" else (False,):
        suffix = ", graphs" if graphs else ""
        for kind, shape in shapes.items():
            drafter = None if shape is None else generalist
            label = kind if shape is None else f"{kind} {shape.num_tokens}/{shape.depth}/{shape.top_k}"
            engine = Engine(target, drafter, shape, max_batch=1, numerics="fast", graphs=graphs)
            levels = 0 if shape is None else shape.depth
            methods.append(Method(kind, label + suffix, engine, target_bytes + levels * level_bytes))
    # a selector that knows no best one plays the first: an expert, whose adapter also takes time
    members = {f"drafter{index}": drafter for index, drafter in enumerate([*drafters[1:], generalist])}
    engine = Engine(target, Pool(members, "normalhedge"), tree, max_batch=1, numerics="fast")
    adapters = [linear.low for expert in drafters[1:] for linear in expert.linears.values() if hasattr(linear, "low")]
    adapter_bytes = size * sum(low.down.numel() + low.up.numel() for low in adapters)
    label = f"normalhedge over {len(drafters)}" + (", graphs" if engine.graphs else "")
    pool_bytes = target_bytes + tree.depth * level_bytes + adapter_bytes
    return [*methods, Method(POOL, label, engine, pool_bytes)]


def num_weights_read(target: Target) -> int:
    """Weights that one pass reads: all projections and the head; of the embedding it reads only a row per token."""
    backbone = target.backbone
    layers = [getattr(layer, name) for layer in backbone.layers for name in ("qkv", "out", "gate_up", "down")]
    return sum(linear.weight.numel() for linear in [*layers, backbone.head])


def copy_rate(device: torch.device) -> float:
    """Bytes a second that the device reads and writes in a large copy."""
    length = (1 << 30 if device.type == "cuda" else 1 << 27) // 4
    source = torch.zeros(length, device=device)
    sink, seconds = torch.empty_like(source), []
    for _ in range(6):
        began = time.perf_counter()
        sink.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 8 * length / statistics.median(seconds[1:])


def answer(method: Method, prompt: list[int], count: int, vocab: int | None) -> None:
    """Decode `count` counted cycles or more.  vocab: of a random target, whose answer is then checked."""
    longest, device = 1 + method.engine.shape.depth, method.engine.target.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    generation = method.engine.generate([prompt], max_new_tokens=longest * (WARM_UP + count + 1) + 1)[0]
    if device.type == "cuda":
        method.peak_bytes = max(method.peak_bytes, torch.cuda.max_memory_allocated(device))
    if vocab is not None:
        method.mismatches += generation.tokens != continuation(prompt[-1], len(generation.tokens), vocab)
    cycles = generation.cycles[WARM_UP:-1] or generation.cycles  # the last one is cut at the end of the answer
    method.cycles += cycles
    seconds = sum(sum(seconds_of(cycle).values()) for cycle in cycles)
    method.tokens_per_s.append(sum(cycle.accept_length for cycle in cycles) / seconds)


def seconds_of(cycle: Cycle) -> dict[str, float]:
    """Seconds of the steps of a cycle."""
    return {
        "draft": cycle.draft_s - cycle.refresh_s,
        "refresh": cycle.refresh_s,
        "verify": cycle.verify_s,
        "host": cycle.host_s,
        "select": cycle.select_s,
    }


def rows_of(methods: Sequence[Method], bytes_per_s: float) -> list[dict[str, Any]]:
    """The figures of each method."""
    plain = [method for method in methods if method.kind == PLAIN]
    plain_ms = min(method.total_ms for method in plain)
    plain_speed = max(statistics.median(method.tokens_per_s) for method in plain)
    rows = []
    for method in methods:
        floor_ms, speed = 1e3 * method.num_bytes / bytes_per_s, statistics.median(method.tokens_per_s)
        steps = [seconds_of(cycle) for cycle in method.cycles]
        rows.append(
            {"method": method.name, "kind": method.kind, "graphs": method.engine.graphs}
            | {f"{step}_ms": 1e3 * statistics.median(seconds[step] for seconds in steps) for step in STEPS}
            | {"total_ms": method.total_ms, "floor_ms": floor_ms, "over_floor": method.total_ms / floor_ms}
            | {"over_autoregressive": method.total_ms / plain_ms, "num_cycles": len(method.cycles)}
            | {"mat": statistics.fmean(cycle.accept_length for cycle in method.cycles)}
            | {"tokens_per_s": speed, "speedup": speed / plain_speed, "mismatches": method.mismatches}
            | ({"peak_memory_gb": method.peak_bytes / 1e9} if method.peak_bytes else {})
        )
    return rows


def figures_of(rows: Sequence[dict[str, Any]], device: torch.device) -> dict[str, float]:
    """The figures of the run; those of graphs only where graphs were captured."""
    fastest = {
        kind: min((row for row in rows if row["kind"] == kind), key=lambda row: row["total_ms"])
        for kind in (PLAIN, TREE, POOL)
    }
    figures = {
        "mat": fastest[TREE]["mat"],
        "plain_tokens_per_s": fastest[PLAIN]["tokens_per_s"],
        "plain_over_floor": fastest[PLAIN]["over_floor"],
        "speedup": fastest[TREE]["speedup"],
        "host_share": fastest[TREE]["host_ms"] / fastest[TREE]["total_ms"],
        "pool_over_one": fastest[POOL]["total_ms"] / fastest[TREE]["total_ms"],
        "pool_speedup": fastest[POOL]["speedup"],
    }
    for name, kind in (("graphs_over_eager", TREE), ("plain_graphs_over_eager", PLAIN)):
        total_ms = {row["graphs"]: row["total_ms"] for row in rows if row["kind"] == kind}
        if len(total_ms) == 2:
            figures[name] = total_ms[True] / total_ms[False]
    peaks = [row["peak_memory_gb"] for row in rows if "peak_memory_gb" in row]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    figures["peak_memory_gb"] = max(peaks) if device.type == "cuda" else resident
    return figures


def show(rows: list[dict[str, Any]], figures: dict[str, float], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("ms", *STEPS, "cycle", "over AR", "over floor", "MAT", "speed-up"):
        table.add_column(heading, justify="left" if heading == "ms" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            *(f"{row[f'{step}_ms']:.2f}" for step in STEPS),
            f"{row['total_ms']:.2f}",
            f"{row['over_autoregressive']:.2f}x",
            f"{row['over_floor']:.2f}x",
            f"{row['mat']:.2f}",
            f"{row['speedup']:.2f}x",
        )
    console.print(table)
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)


if __name__ == "__main__":
    main()
