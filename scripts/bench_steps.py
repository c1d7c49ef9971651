"""Times a cycle on a target of a real size, over autoregressive decoding and over the time of its memory traffic.

    python scripts/bench_steps.py [--size llama3.1-8b] [--vocab 32000] [--experts 7] [--context 512] [--json PATH]

Weights are random: no drafted token is accepted, but the cost of a step does not depend on that.  The floor of a cycle
is the bytes that it must read, the target's weights once and the drafter's once a level, over the copy rate of
this device.  On a GPU, cycles are timed with captured graphs and without.  Ratios are to the fastest autoregressive
decoding of the same run.

Figures of each method, medians:
    draft_ms, refresh_ms, verify_ms, host_ms, select_ms  milliseconds of the steps of a cycle
    total_ms                                             milliseconds of the cycle
    floor_ms                                             milliseconds that its memory traffic takes at the copy rate
    over_floor                                           total_ms over floor_ms
    over_autoregressive                                  total_ms over that of the fastest autoregressive decoding
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

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
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
WARM_UP = 3  # cycles that are not counted
RANK = 16  # of LoRA experts
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Method:
    """An engine, and the bytes that a cycle of it must read."""

    name: str
    engine: Engine
    num_bytes: float


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="llama3.1-8b", help="size of the target")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="dtype of the weights")
    parser.add_argument("--device", default="auto", help="auto | cpu | cuda")
    parser.add_argument("--vocab", type=int, default=32000, help="size of the draft vocabulary")
    parser.add_argument("--experts", type=int, default=7, help="LoRA experts in the pool, besides the generalist")
    parser.add_argument("--context", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--cycles", type=int, default=30, help="timed cycles of every method")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    torch.manual_seed(0)
    target = random_target(options.size, device, choose_dtype(options.dtype, device))
    drafters = random_pool(target, min(options.vocab, target.config.vocab_size), 1 + options.experts)
    rate = copy_rate(device)
    rows = [measure(method, options.context, options.cycles, rate) for method in methods_of(target, drafters)]
    autoregressive_ms = min(row["total_ms"] for row in rows if row["method"].startswith("autoregressive"))
    for row in rows:
        row["over_autoregressive"] = row["total_ms"] / autoregressive_ms
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
    """A Llama of that size; weights are created on the device in its dtype."""
    config = LlamaConfig(**SIZES[size], max_position_embeddings=8192, bos_token_id=None, eos_token_id=None)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default_dtype)
    if widens(dtype, device):
        model = model.float()
    return wrap_model(model, None, name=size, folder=Path("in memory"), dtype=dtype)


def random_pool(target: Target, vocab: int, count: int) -> list[FusedDrafter]:
    """A generalist of the target's shape and its LoRA experts."""
    embedding = target.backbone.embedding
    drafter = Eagle3Drafter(DrafterSpec.for_target(target.config, target.backbone.taps, vocab), embedding)
    drafter = drafter.to(embedding.device)
    scratch_init(drafter)
    drafter.set_vocabulary(torch.arange(vocab))
    generalist = FusedDrafter(drafter, embedding)
    modules = {name: m for name, m in drafter.named_modules() if name.split(".")[-1] in LORA_TARGETS}

    def adapter() -> dict[str, LowRank]:
        def random(*shape: int) -> torch.Tensor:
            return 0.02 * torch.randn(*shape, device=embedding.device)

        return {name: LowRank(random(RANK, m.in_features), random(m.out_features, RANK)) for name, m in modules.items()}

    return [generalist, *(generalist.with_adapter(adapter()) for _ in range(count - 1))]


def methods_of(target: Target, drafters: list[FusedDrafter]) -> list[Method]:
    """Autoregressive decoding, chain, tree, and the pool; on a GPU with graphs and without."""
    size = torch.finfo(target.dtype).bits // 8
    generalist = drafters[0]
    target_bytes = size * num_weights_read(target)
    level_bytes = size * sum(linear.weight.numel() for linear in generalist.linears.values())
    tree = default_shape(target.device, target.dtype)
    shapes = {"autoregressive": None, "chain": TreeShape(num_tokens=4, depth=3, top_k=1), "tree": tree}
    methods = []
    for graphs in (True, False) if target.device.type == "cuda" else (False,):
        suffix = ", graphs" if graphs else ""
        for name, shape in shapes.items():
            drafter = None if shape is None else generalist
            label = name if shape is None else f"{name} {shape.num_tokens}/{shape.depth}/{shape.top_k}"
            engine = Engine(target, drafter, shape, max_batch=1, numerics="fast", graphs=graphs)
            levels = 0 if shape is None else shape.depth
            methods.append(Method(label + suffix, engine, target_bytes + levels * level_bytes))
    members = {f"drafter{index}": drafter for index, drafter in enumerate(drafters)}
    engine = Engine(target, Pool(members, "normalhedge"), tree, max_batch=1, numerics="fast")
    adapters = [linear.low for expert in drafters[1:] for linear in expert.linears.values() if hasattr(linear, "low")]
    adapter_bytes = size * sum(low.down.numel() + low.up.numel() for low in adapters)
    pool_bytes = target_bytes + tree.depth * level_bytes + adapter_bytes
    return [*methods, Method(f"normalhedge over {len(drafters)}", engine, pool_bytes)]


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


def measure(method: Method, context: int, count: int, rate: float) -> dict[str, Any]:
    """Median milliseconds of a cycle and of its steps."""
    vocabulary = method.engine.target.config.vocab_size
    prompt = torch.randint(0, vocabulary, (context,), generator=torch.Generator().manual_seed(1)).tolist()
    longest = 1 + method.engine.shape.depth
    answer = method.engine.generate([prompt], max_new_tokens=longest * (WARM_UP + count) + 1)[0]
    cycles = answer.cycles[WARM_UP : WARM_UP + count]
    seconds = {
        "draft": [cycle.draft_s - cycle.refresh_s for cycle in cycles],
        "refresh": [cycle.refresh_s for cycle in cycles],
        "verify": [cycle.verify_s for cycle in cycles],
        "host": [cycle.host_s for cycle in cycles],
        "select": [cycle.select_s for cycle in cycles],
    }
    total = [sum(parts) for parts in zip(*seconds.values(), strict=True)]
    median = {f"{step}_ms": 1e3 * statistics.median(seconds[step]) for step in STEPS}
    total_ms = 1e3 * statistics.median(total)
    floor = 1e3 * method.num_bytes / rate
    return {"method": method.name, **median, "total_ms": total_ms, "floor_ms": floor, "over_floor": total_ms / floor}


def show(rows: list[dict[str, Any]], title: str) -> None:
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
