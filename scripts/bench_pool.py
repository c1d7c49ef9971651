"""Times a pool: reading by eight drafters over reading by one, their memory, and selection in a cycle.

    python scripts/bench_pool.py [--json PATH] [--dtype float32] [--size llama3.1-8b] [drafters=NAME,NAME,...]

A forward pass of the target runs before each reading, so caches are cold as in decoding; pools take turns.  Without
named drafters, weights are random: times do not depend on them, but the share of selection does, because it is measured
in live decoding.  The target is the embedded one, or with --size a random one of that size.

Figures:
    lora8_over_one         time of reading by a generalist and 7 LoRA experts over that of one drafter
    full8_over_one         the same for 7 experts with full weights
    lora8_memory_over_one  memory of the generalist and its LoRA experts over that of one drafter
    normalhedge32_ms       milliseconds of one update of NormalHedge with 32 arms
    selection_share        share of a cycle that choosing, scoring and learning take
    pool_share             share of a cycle that a pool adds to decoding with one of its drafters
    cycle_ms               milliseconds of a cycle of the pool
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from drafterforge.assembly.pools import open_pool
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.drafter import LORA_TARGETS
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.stack import StackedGroup
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.drafters.judging import Truth
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.kernels.linear import FrozenLinear
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Drafter, Pool
from drafterforge.selectors import learner
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.load import Target, load_target

import numpy as np
import torch
from bench_record import save_record
from random_models import SIZES, draft_vocabulary, random_prompt, random_target
from rich.console import Console
from rich.table import Table

CHUNK, CONTEXT, TOP_K = 3, 128, 4  # committed tokens read at once, tokens before them, scored proposals
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pool", nargs="*", help="drafters=NAME,NAME,... to time, and runs_dir=FOLDER where they are, by default runs"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="few repeats, to test the script")
    parser.add_argument("--rank", type=int, default=16, help="rank of the LoRA experts with random weights")
    parser.add_argument("--dtype", default="auto", help="auto | float32 | bfloat16")
    parser.add_argument("--vocab", type=int, default=4096, help="size of the draft vocabulary with random weights")
    parser.add_argument("--size", choices=SIZES, help="a target of this size with random weights, not the embedded one")
    options = parser.parse_args()
    typed = dict(setting.split("=", 1) for setting in options.pool)
    repeats = 5 if options.quick else 60
    target = open_target(options.size, options.dtype, options.vocab)
    with torch.inference_mode():
        torch.manual_seed(0)
        lora, full = lora_pool(target, 8, options.vocab, options.rank), full_pool(target, 8, options.vocab)
        rows = [
            time_reading("generalist and 7 LoRA experts", target, lora, repeats),
            time_reading("generalist and 7 full experts", target, full, repeats),
        ]
    drafters = open_pool(typed.get("runs_dir", "runs"), target, typed["drafters"].split(",")) if typed else None
    prompts = selection_prompts(target, 2 if options.quick else 8, options.vocab)
    selection = time_selection(target, drafters or dict(zip("abcdefgh", lora, strict=True)), prompts, options.quick)
    figures = {
        "lora8_over_one": rows[0]["ratio"],
        "full8_over_one": rows[1]["ratio"],
        "lora8_memory_over_one": memory(lora) / memory(lora[:1]),
        "normalhedge32_ms": normalhedge_ms(32, 200 if options.quick else 5000),
        **selection,
    }
    dtype = str(target.dtype).removeprefix("torch.")
    console.print(f"{target.name}, {dtype} on {describe_device(target.device)}")
    show(rows, figures)
    if options.json:
        save_record(options.json, "pool", target.device, dtype, figures, rows, {"target": target.name})


def open_target(size: str | None, dtype: str, vocab: int) -> Target:
    """The embedded target, or a random one of that size."""
    if size is None:
        return load_target(TargetConfig(dtype=dtype))
    device = choose_device("auto")
    return random_target(size, device, choose_dtype(dtype, device), vocab)


def selection_prompts(target: Target, count: int, vocab: int) -> list[list[int]]:
    """Held-out prompts; for a random target, random ones."""
    if target.tokenizer is None:
        vocab = draft_vocabulary(target, vocab)
        return [random_prompt(vocab, CONTEXT, seed) for seed in range(count)]
    return held_out_prompts(target, count, POOL_DOMAINS)


def random_drafter(target: Target, vocab: int) -> Eagle3Drafter:
    """A drafter of the target's shape."""
    spec = DrafterSpec.for_target(target.config, target.backbone.taps, vocab)
    drafter = Eagle3Drafter(spec, target.backbone.embedding).to(target.device)
    scratch_init(drafter)
    vocab = spec.draft_vocab_size
    drafter.set_vocabulary(torch.randperm(spec.vocab_size)[:vocab].sort().values)
    return drafter


def full_pool(target: Target, count: int, vocab: int) -> list[FusedDrafter]:
    """Independent drafters."""
    return [FusedDrafter(random_drafter(target, vocab), target.backbone.embedding) for _ in range(count)]


def lora_pool(target: Target, count: int, vocab: int, rank: int) -> list[FusedDrafter]:
    """A generalist and its LoRA experts."""
    drafter = random_drafter(target, vocab)
    generalist = FusedDrafter(drafter, target.backbone.embedding)
    modules = {name: m for name, m in drafter.named_modules() if name.split(".")[-1] in LORA_TARGETS}

    def random(*shape: int) -> torch.Tensor:
        return 0.02 * torch.randn(*shape, device=target.device)

    def adapter() -> dict[str, LowRank]:
        return {name: LowRank(random(rank, m.in_features), random(m.out_features, rank)) for name, m in modules.items()}

    return [generalist, *(generalist.with_adapter(adapter()) for _ in range(count - 1))]


class Reader:
    """Repeats one reading of a pool: the same chunk after the same text."""

    def __init__(self, target: Target, members: Sequence[FusedDrafter], scored: bool) -> None:
        """scored: whether the drafters' proposals are judged."""
        torch.manual_seed(1)
        width, largest = target.config.hidden_size, min(4000, target.config.vocab_size)
        self.proposer, self.scored = StackedGroup(StackedDrafters(members)), scored
        text, features = torch.randint(0, largest, (CONTEXT + 1,)), torch.randn(CONTEXT, 3 * width)
        self.proposer.admit(text.to(target.device), features.to(target.device, target.compute_dtype))
        tokens, features = torch.randint(0, largest, (1, CHUNK)), torch.randn(1, CHUNK, 3 * width)
        self.tokens, self.features = tokens.to(target.device), features.to(target.device, target.compute_dtype)

    def __call__(self) -> None:
        stable, logits, last = list(self.proposer.stable), self.proposer.logits, self.proposer.last
        self.proposer.commit(self.tokens, self.features, [CHUNK])
        truth = Truth(self.tokens, None) if self.scored else None
        self.proposer.read(truth, [TOP_K] * len(self.proposer.drafters.members))
        self.proposer.stable, self.proposer.logits, self.proposer.last = stable, logits, last


def time_reading(name: str, target: Target, members: Sequence[FusedDrafter], repeats: int) -> dict:
    """Milliseconds of reading by all drafters, by the first, and by the first without scores."""
    readers = Reader(target, members, True), Reader(target, members[:1], True), Reader(target, members[:1], False)
    times = time_cold(target, readers, repeats)
    ratios = [pool_s / single_s for pool_s, single_s in zip(times[0], times[1], strict=True)]
    return {
        "pool": name,
        "all_ms": 1e3 * statistics.median(times[0]),
        "one_ms": 1e3 * statistics.median(times[1]),
        "one_unjudged_ms": 1e3 * statistics.median(times[2]),
        "ratio": statistics.median(ratios),
    }


def time_cold(target: Target, calls: Sequence[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Seconds of each call after a forward pass of the target; calls take turns."""
    cache, device = target.new_cache(1), target.device
    ids = torch.randint(0, min(4000, target.config.vocab_size), (1, 10)).to(device)
    positions = torch.arange(10, device=device)[None]
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 3):
        for call, seconds in zip(calls, times, strict=True):
            cache.set_slots(0, 10)
            target.logits(target.forward(ids, positions, cache)[0])
            wait(device)
            began = time.perf_counter()
            call()
            wait(device)
            if turn >= 3:
                seconds.append(time.perf_counter() - began)
    return times


def wait(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(members: Sequence[FusedDrafter]) -> int:
    """Bytes of a pool's weights with packed copies and stacked adapters, without the target's embedding."""
    stack = StackedDrafters(members)
    tensors = [gain for member in members for gain in member.gains.values()]
    for linear in stack.linears.values():
        for _, base, additions in linear.families:
            tensors += [base.weight, *([base.packed.to_dense()] if base.packing is not None else [])]
            tensors += [] if base.native is None else [base.native.packed]
            tensors += [] if additions is None else [additions.down, additions.up]
    for member in members:
        for linear in member.linears.values():
            if not isinstance(linear, FrozenLinear):
                tensors += [linear.low.down, linear.low.up]
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def normalhedge_ms(drafters: int, rounds: int) -> float:
    """Milliseconds of an update and of the distribution after it, median."""
    normalhedge, times = learner("normalhedge", drafters), []
    for loss in np.random.default_rng(0).random((rounds, drafters)):
        began = time.perf_counter()
        normalhedge.update(loss)
        normalhedge.probs  # noqa: B018 - computed on access
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def time_selection(
    target: Target, drafters: dict[str, Drafter], prompts: Sequence[list[int]], quick: bool
) -> dict[str, float]:
    """The share of a cycle that selection takes (choosing, scoring, learning), and the share that the pool adds."""
    first = next(iter(drafters))
    pool = Engine(target, Pool(drafters, "normalhedge"))
    alone = Engine(target, Pool({first: drafters[first]}, "static", drafter=first))
    cycles = {"pool": [], "alone": []}
    for prompt in prompts:
        for name, engine in (("pool", pool), ("alone", alone)):
            cycles[name] += engine.generate([prompt], 16 if quick else 64)[0].cycles
    cycle_s = statistics.median(c.draft_s + c.verify_s + c.host_s + c.select_s for c in cycles["pool"])
    drafting_s = {name: statistics.median(c.draft_s + c.select_s for c in cycles[name]) for name in cycles}
    return {
        "selection_share": statistics.median(c.select_s for c in cycles["pool"]) / cycle_s,
        "pool_share": (drafting_s["pool"] - drafting_s["alone"]) / cycle_s,
        "cycle_ms": 1e3 * cycle_s,
    }


def show(rows: list[dict], figures: dict[str, float]) -> None:
    table = Table(title=f"reading {CHUNK} tokens after {CONTEXT}, cold caches, ms", title_justify="left")
    for heading in ("pool", "all", "one, scored", "one, not scored", "all over one"):
        table.add_column(heading, justify="left" if heading == "pool" else "right")
    for row in rows:
        cells = [f"{row[key]:.2f}" for key in ("all_ms", "one_ms", "one_unjudged_ms")]
        table.add_row(row["pool"], *cells, f"{row['ratio']:.2f}x")
    console.print(table)
    table = Table()
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
