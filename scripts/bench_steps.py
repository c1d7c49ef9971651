"""What a cycle costs on a target of a real size, over its own autoregressive decoding and over the memory floor.

    python scripts/bench_steps.py [--size llama3.1-8b] [--vocab 32000] [--experts 7] [--context 512] [--json PATH]

Weights are random: what they draft is not accepted, but what a step costs does not depend on that; accept lengths come
from traces of trained drafters.  The floor of a cycle is the bytes that it must read, the target's weights once and the
drafter's once a level, over the rate at which this device copies.  With a GPU, cycles of captured graphs stand beside
the same ones without; speed-ups are over the fastest autoregressive decoding here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.config.drafter import LORA_TARGETS
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import DTYPES, choose_device, choose_dtype, describe_device, widens
from drafterforge.targets.load import Target, wrap_model
from drafterforge.tree.grow import TreeShape

SIZES = {  # of a target
    "llama3.1-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
STEPS = ("draft", "refresh", "verify", "host", "select")
WARM = 3  # cycles that are not counted
RANK = 16  # of LoRA experts
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Contestant:
    """An engine, and the bytes that one of its cycles has to read."""

    name: str
    engine: Engine
    num_bytes: float


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="llama3.1-8b")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vocab", type=int, default=32000, help="draft vocabulary")
    parser.add_argument("--experts", type=int, default=7, help="LoRA experts in the pool, beside its generalist")
    parser.add_argument("--context", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--cycles", type=int, default=30, help="counted, of every method")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    torch.manual_seed(0)
    target = random_target(options.size, device, choose_dtype(options.dtype, device))
    drafters = random_pool(target, min(options.vocab, target.config.vocab_size), 1 + options.experts)
    rate = copy_rate(device)
    rows = [measured(one, options.context, options.cycles, rate) for one in contestants(target, drafters)]
    alone = min(row["total_ms"] for row in rows if row["method"].startswith("autoregressive"))
    for row in rows:
        row["over_autoregressive"] = row["total_ms"] / alone
    precision = str(target.dtype).removeprefix("torch.")
    title = f"{options.size}, random, {precision}, on {describe_device(device)}; copies at {rate / 1e9:.0f} GB/s"
    show(rows, title)
    if options.json:
        report = {
            "bench": "steps",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": describe_device(device),
            "dtype": precision,
            "size": options.size,
            "context": options.context,
            "copy_bytes_per_s": rate,
            "rows": rows,
        }
        save_json_atomic(options.json, report)


def random_target(size: str, device: torch.device, dtype: torch.dtype) -> Target:
    """A Llama of that size; weights are made in place, in its dtype."""
    config = LlamaConfig(**SIZES[size], max_position_embeddings=8192, bos_token_id=None, eos_token_id=None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    if widens(dtype, device):
        model = model.float()
    return wrap_model(model, None, name=size, folder=Path("in memory"), dtype=dtype)


def random_pool(target: Target, vocab: int, count: int) -> list[FusedDrafter]:
    """A generalist of the target's shape and LoRA experts of it."""
    embedding = target.backbone.embedding
    drafter = Eagle3Drafter(DrafterSpec.for_target(target.config, target.backbone.taps, vocab), embedding)
    drafter = drafter.to(embedding.device)
    scratch_init(drafter)
    drafter.set_vocabulary(torch.arange(vocab))
    generalist = FusedDrafter(drafter, embedding)
    modules = {name: m for name, m in drafter.named_modules() if name.split(".")[-1] in LORA_TARGETS}

    def adapter() -> dict[str, LowRank]:
        made = {"device": embedding.device, "dtype": torch.float32}
        return {
            name: LowRank(
                0.02 * torch.randn(RANK, m.in_features, **made), 0.02 * torch.randn(m.out_features, RANK, **made)
            )
            for name, m in modules.items()
        }

    return [generalist, *(generalist.expert(adapter()) for _ in range(count - 1))]


def contestants(target: Target, drafters: list[FusedDrafter]) -> list[Contestant]:
    """Autoregressive decoding, chain, tree, and the pool; on a GPU with graphs and without."""
    size = torch.finfo(target.dtype).bits // 8
    generalist = drafters[0]
    whole = size * numbers_of_target(target)
    per_level = size * sum(linear.weight.numel() for linear in generalist.linears.values())
    tree = default_shape(target.device, target.dtype)
    shapes = {"autoregressive": None, "chain": TreeShape(num_tokens=4, depth=3, top_k=1), "tree": tree}
    found = []
    for graphs in (True, False) if target.device.type == "cuda" else (False,):
        how = ", graphs" if graphs else ""
        for name, shape in shapes.items():
            drafter = None if shape is None else generalist
            named = name if shape is None else f"{name} {shape.num_tokens}/{shape.depth}/{shape.top_k}"
            engine = Engine(target, drafter, shape, max_batch=1, numerics="fast", graphs=graphs)
            levels = 0 if shape is None else shape.depth
            found.append(Contestant(named + how, engine, whole + levels * per_level))
    members = {f"drafter{place}": one for place, one in enumerate(drafters)}
    engine = Engine(target, Pool(members, "normalhedge"), tree, max_batch=1, numerics="fast")
    own = sum(low.down.numel() + low.up.numel() for one in drafters[1:] for low in additions(one))
    pool = f"normalhedge over {len(drafters)}"
    return [*found, Contestant(pool, engine, whole + tree.depth * per_level + size * own)]


def additions(expert: FusedDrafter) -> list[LowRank]:
    """What an expert adds to its generalist."""
    return [linear.low for linear in expert.linears.values() if hasattr(linear, "low")]


def numbers_of_target(target: Target) -> int:
    """Weights that one pass reads: all projections and the head, but of the embedding a row a token."""
    backbone = target.backbone
    layers = [getattr(layer, name) for layer in backbone.layers for name in ("qkv", "out", "gate_up", "down")]
    return sum(linear.weight.numel() for linear in [*layers, backbone.head])


def copy_rate(device: torch.device) -> float:
    """Bytes that the device reads and writes a second in a large copy."""
    numbers = (1 << 30 if device.type == "cuda" else 1 << 27) // 4
    source = torch.zeros(numbers, device=device)
    sink, took = torch.empty_like(source), []
    for _ in range(6):
        began = time.perf_counter()
        sink.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - began)
    return 8 * numbers / statistics.median(took[1:])


def measured(one: Contestant, context: int, count: int, rate: float) -> dict[str, Any]:
    """Median milliseconds of a cycle and of its steps."""
    vocabulary = one.engine.target.config.vocab_size
    prompt = torch.randint(0, vocabulary, (context,), generator=torch.Generator().manual_seed(1)).tolist()
    largest = 1 + one.engine.shape.depth
    answer = one.engine.generate([prompt], max_new_tokens=largest * (WARM + count) + 1)[0]
    cycles = answer.cycles[WARM : WARM + count]
    spent = {
        "draft": [cycle.draft_s - cycle.refresh_s for cycle in cycles],
        "refresh": [cycle.refresh_s for cycle in cycles],
        "verify": [cycle.verify_s for cycle in cycles],
        "host": [cycle.host_s for cycle in cycles],
        "select": [cycle.select_s for cycle in cycles],
    }
    total = [sum(parts) for parts in zip(*spent.values(), strict=True)]
    median = {f"{step}_ms": 1e3 * statistics.median(spent[step]) for step in STEPS}
    total_ms = 1e3 * statistics.median(total)
    floor = 1e3 * one.num_bytes / rate
    return {"method": one.name, **median, "total_ms": total_ms, "floor_ms": floor, "over_floor": total_ms / floor}


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print the table."""
    table = Table(title=title, title_justify="left")
    for heading in ("ms", *STEPS, "cycle", "over AR", "floor", "over floor"):
        table.add_column(heading, justify="left" if heading == "ms" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            *(f"{row[f'{step}_ms']:.2f}" for step in STEPS),
            f"{row['total_ms']:.2f}",
            f"{row['over_autoregressive']:.2f}x",
            f"{row['floor_ms']:.2f}",
            f"{row['over_floor']:.2f}x",
        )
    console.print(table)


if __name__ == "__main__":
    main()
