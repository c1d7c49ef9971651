"""Measure decoding: ours autoregressive, chain, tree and retrieval beside HF `generate` and HF prompt lookup.

    python scripts/bench_decode.py drafter=runs/smollm2-135m/drafters/quickstart

One run on held-out prompts of the built-in grammars; the methods take turns prompt by prompt, so that drift hits all
alike.  Then a profile by step, the same forward passes timed alone, the cost of a verification by nodes, and
`numerics=invariant` beside `fast` in half precision.  FlashSpec joins where it is installed, OpenVINO GenAI with
--openvino.

    python scripts/bench_decode.py --busy [--setting GOMP_SPINCOUNT=300000]

Instead: plain and tree decoding on an idle machine, and beside as many busy processes as there are cores.  Each setting
of the environment decodes in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from bench_decode_busy import measure_busy, show_busy
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.assembly.runs import open_any
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.other_engines import (
    FLASHSPEC_TOKENS,
    FlashSpec,
    OpenVINO,
    OtherEngine,
    open_model,
    open_pipeline,
    require_openvino,
)
from drafterforge.evaluation.statistics import bootstrap_ratio
from drafterforge.kernels.attention import additive
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Drafter, Engine
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

AUTOREGRESSIVE, HF, HF_LOOKUP = "autoregressive", "HF generate", "HF prompt lookup (10)"
FLASHSPEC = f"FlashSpec, prompt lookup ({FLASHSPEC_TOKENS})"
RETRIEVAL, MERGED = "retrieval", "eagle3+retrieval"
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Result:
    """What one method gave for one prompt."""

    tokens: list[int]
    seconds: float
    answer: Generation | None = None


@dataclass
class Contestant:
    """A method under test."""

    name: str
    decode: Callable[[list[int], int], Result]
    results: list[Result] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all seconds, prefill included."""
        return sum(len(r.tokens) for r in self.results) / sum(r.seconds for r in self.results)


def ours(engine: Engine) -> Callable[[list[int], int], Result]:
    """The engine as a contestant."""

    def decode(prompt: list[int], count: int) -> Result:
        began = time.perf_counter()
        answer = engine.generate([prompt], count)[0]
        return Result(answer.tokens, time.perf_counter() - began, answer)

    return decode


def transformers_generate(target: Target, **options: Any) -> Callable[[list[int], int], Result]:
    """HF `generate` with the same weights, dtype and end tokens."""
    model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=target.dtype).to(target.device).eval()

    def decode(prompt: list[int], count: int) -> Result:
        ids = torch.tensor([prompt], device=target.device)
        began = time.perf_counter()
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0, **options
        )
        tokens = out[0, len(prompt) :].tolist()
        return Result(tokens, time.perf_counter() - began)

    return decode


def rival(method: OtherEngine) -> Callable[[list[int], int], Result]:
    """Another program as a contestant."""

    def decode(prompt: list[int], count: int) -> Result:
        answer = method.generate([prompt], count)[0]
        return Result(answer.tokens, answer.time_s["total"])

    return decode


def take_turns(contestants: Sequence[Contestant], prompts: Sequence[list[int]], count: int) -> None:
    """Every method on every prompt, in rotating order, after a warm-up."""
    for contestant in contestants:
        contestant.decode(prompts[0], min(count, 8))
    for index, prompt in enumerate(prompts):
        turn = index % len(contestants)
        for contestant in (*contestants[turn:], *contestants[:turn]):
            contestant.results.append(contestant.decode(prompt, count))
        console.print(f"  prompt {index + 1} of {len(prompts)}", end="\r")
    console.print(" " * 30, end="\r")


def ratio(one: Contestant, other: Contestant) -> tuple[float, tuple[float, float]]:
    """Tokens/s of one over the other, and its paired bootstrap interval over prompts."""
    pairs = [
        (len(a.tokens), a.seconds, len(b.tokens), b.seconds) for a, b in zip(one.results, other.results, strict=True)
    ]
    return one.tokens_per_s / other.tokens_per_s, bootstrap_ratio(pairs)


def mismatches(contestants: Sequence[Contestant]) -> int:
    """Prompts on which one of ours differs from ours autoregressive."""
    wanted = next(c for c in contestants if c.name == AUTOREGRESSIVE).results
    others = [c for c in contestants if c.results and c.results[0].answer is not None]
    return sum(a.tokens != b.tokens for c in others for a, b in zip(c.results, wanted, strict=True))


def contest(
    target: Target, drafter: FusedDrafter | None, tree: TreeShape, retrieval: TreeShape, numerics: str = "fast"
) -> list[Contestant]:
    """Our methods: autoregressive, chain, tree, tree with what retrieval proposes, and retrieval."""

    def method(name: str, drafter: Drafter | None, shape: TreeShape | None) -> Contestant:
        return Contestant(name, ours(Engine(target, drafter, shape, numerics=numerics)))

    found = [method(AUTOREGRESSIVE, None, None)]
    if drafter is not None:
        chain = TreeShape(tree.depth + 1, tree.depth, 1)
        found.append(method(f"chain {chain.num_tokens}/{chain.depth}/1", drafter, chain))
        found.append(method(f"tree {tree.num_tokens}/{tree.depth}/{tree.top_k}", drafter, tree))
        found.append(method(MERGED, HybridDrafter(drafter, Retrieval()), None))
    found.append(method(RETRIEVAL, Retrieval(), retrieval))
    return found


def show(contestants: Sequence[Contestant], title: str) -> list[dict[str, Any]]:
    """Print tokens/s and ratios; returns them."""
    table = Table(title=title, title_justify="left")
    for heading in ("method", "tokens/s", "median s/prompt", "MAT", "over autoregressive", "95 %", "same tokens"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    base = next(c for c in contestants if c.name == AUTOREGRESSIVE)
    rows = []
    for c in contestants:
        value, interval = ratio(c, base)
        cycles = [cycle for r in c.results if r.answer for cycle in r.answer.cycles]
        mat = sum(cycle.accept_length for cycle in cycles) / len(cycles) if cycles else None
        same = sum(a.tokens == b.tokens for a, b in zip(c.results, base.results, strict=True))
        median = statistics.median(r.seconds for r in c.results)
        rows.append(
            {"method": c.name, "tokens_per_s": c.tokens_per_s, "median_s": median, "mat": mat}
            | {"over_autoregressive": value, "ci95": interval, "same_tokens": same, "num_prompts": len(c.results)}
        )
        table.add_row(
            c.name,
            f"{c.tokens_per_s:.1f}",
            f"{median:.2f}",
            f"{mat:.2f}" if mat else "",
            f"{value:.2f}x",
            "" if c is base else f"{interval[0]:.2f}-{interval[1]:.2f}",
            f"{same}/{len(c.results)}",
        )
    console.print(table)
    return rows


def profile(contestants: Sequence[Contestant]) -> list[dict[str, Any]]:
    """Milliseconds of a cycle by step."""
    table = Table(title="a cycle by step, ms", title_justify="left")
    for heading in ("method", "draft", "verify", "host", "cycle", "host share"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    rows = []
    for c in contestants:
        cycles = [cycle for r in c.results if r.answer for cycle in r.answer.cycles]
        if not cycles:
            continue
        draft, verify, host = (1e3 * statistics.mean(getattr(x, f"{s}_s") for x in cycles) for s in STEPS)
        whole = draft + verify + host
        rows.append({"method": c.name, "draft_ms": draft, "verify_ms": verify, "host_ms": host})
        table.add_row(c.name, *(f"{ms:.1f}" for ms in (draft, verify, host, whole)), f"{host / whole:.1%}")
    console.print(table)
    return rows


STEPS = ("draft", "verify", "host")


class Recorder:
    """Notes the forward passes of an engine while it decodes, to run the very same ones again, alone."""

    def __init__(self, target: Target, drafter: FusedDrafter) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.recording, self.seconds = False, 0.0
        self.caches: list[Any] = []
        for owner, names in ((target, ("forward", "logits")), (drafter, ("layer", "logits", "fuse"))):
            for name in names:
                setattr(owner, name, self._noting(getattr(owner, name)))

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self.recording:
                states = [(cache, cache.start, cache.slots, cache.used) for cache in self.caches]

                def again() -> None:
                    for cache, *state in states:
                        cache.start, cache.slots, cache.used = state
                    function(*args, **kwargs)

                self.calls.append(again)
            began = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - began
            return result

        return noting


def forwards_alone(
    target: Target, drafter: FusedDrafter, shape: TreeShape, prompt: list[int], cycles: int
) -> dict[str, float]:
    """A cycle's time over that of its forward passes run alone, and the share of a cycle outside them; medians."""
    engine, recorder = Engine(target, drafter, shape, graphs=False), Recorder(target, drafter)
    ratios, shares = [], []
    with torch.inference_mode():
        for _ in range(5):
            batch = engine.open_batch()
            batch.admit(*engine.read(prompt, 4 * cycles * (shape.depth + 1)))
            recorder.caches = [batch.cache, batch.proposer.cache]
            batch.cycle(shape)
            recorder.calls, recorder.recording, recorder.seconds = [], True, 0.0
            began = time.perf_counter()
            for _ in range(cycles):
                if batch.rows:
                    batch.cycle(shape)
            whole = time.perf_counter() - began
            recorder.recording = False
            shares.append(1 - recorder.seconds / whole)
            began = time.perf_counter()
            for call in recorder.calls:
                call()
            ratios.append(whole / (time.perf_counter() - began))
    return {"host_share": statistics.median(shares), "cycle_over_forwards": statistics.median(ratios)}


def verification_costs(target: Target, context: int, repeats: int) -> dict[int, float]:
    """Milliseconds of a target pass with logits by number of nodes, behind `context` tokens."""
    cache = target.new_cache()
    tokens = torch.arange(context, device=target.device)[None] + 100
    counts = (1, 2, 4, 8, 16, 32, 64)
    spent: dict[int, list[float]] = {count: [] for count in counts}
    with torch.inference_mode():
        cache.place(0, context)
        target.forward(tokens, torch.arange(context, device=target.device)[None], cache)
        for _ in range(repeats):
            for count in counts:
                cache.place(context, count)
                mask = torch.ones(count, context + count, dtype=torch.bool, device=target.device).tril(context)
                positions = torch.arange(context, context + count, device=target.device)[None]
                began = time.perf_counter()
                states, _ = target.forward(
                    tokens[:, :count],
                    positions,
                    cache,
                    additive(mask, target.compute_dtype)[None] if count > 1 else None,
                )
                target.logits(states).argmax(dim=-1).tolist()
                spent[count].append(time.perf_counter() - began)
    return {count: 1e3 * statistics.median(times) for count, times in spent.items()}


def invariance(
    args: argparse.Namespace, drafter: Path | None, tree: TreeShape, retrieval: TreeShape
) -> dict[str, float]:
    """`invariant` beside `fast` in half precision: seconds for the same method, and mismatches."""
    target = load_target(TargetConfig(dtype="bfloat16"))
    head = None if drafter is None else open_any(drafter, target)
    prompts = held_out_prompts(target, args.invariant_prompts, POOL_DOMAINS)
    fast, exact = (contest(target, head, tree, retrieval, numerics) for numerics in ("fast", "invariant"))
    for contestant in exact:
        contestant.name += ", invariant"
    take_turns([c for pair in zip(fast, exact, strict=True) for c in pair], prompts, args.max_new_tokens)
    table = Table(title="bfloat16: invariant beside fast", title_justify="left")
    for heading in (
        "method",
        "fast, ms/cycle",
        "invariant, ms/cycle",
        "ratio",
        "mismatches",
        "mismatches, invariant",
    ):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    worst, wrong = 0.0, 0
    for a, b in zip(fast, exact, strict=True):
        # fast and invariant texts may differ, so the cost of a cycle is compared, not of a text
        cost = [
            statistics.median(
                cycle.draft_s + cycle.verify_s + cycle.host_s for r in c.results for cycle in r.answer.cycles
            )
            for c in (a, b)
        ]
        differ = [  # from autoregressive decoding in the same numerics
            sum(r.tokens != w.tokens for r, w in zip(c.results, base.results, strict=True))
            for c, base in ((a, fast[0]), (b, exact[0]))
        ]
        worst, wrong = max(worst, cost[1] / cost[0]), wrong + differ[1]
        table.add_row(a.name, *(f"{1e3 * s:.1f}" for s in cost), f"{cost[1] / cost[0]:.2f}x", *map(str, differ))
    console.print(table)
    return {"invariant_over_fast": worst, "mismatches_invariant": wrong}


def main() -> None:
    """Run all parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", nargs="?", help="drafter=FOLDER: an EAGLE-3 drafter; without: no chain, no tree")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--invariant-prompts", type=int, default=24, help="0 leaves that part out")
    parser.add_argument("--dtype", default="auto", help="auto | float32 | bfloat16")
    parser.add_argument("--openvino", default="", help="folder of the target exported to OpenVINO's IR")
    parser.add_argument(
        "--peers", default=True, action=argparse.BooleanOptionalAction, help="HF and FlashSpec beside ours"
    )
    parser.add_argument("--quick", action="store_true", help="a few short answers, to see that all runs")
    parser.add_argument("--busy", action="store_true", help="instead: speed beside one busy process for each core")
    parser.add_argument(
        "--setting", action="append", default=[], help="with --busy: NAME=VALUE,... of the environment, beside ours"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.prompts, args.max_new_tokens, args.invariant_prompts = 4, 12, min(args.invariant_prompts, 2)
    folder = None if args.drafter is None else Path(args.drafter.removeprefix("drafter="))
    if args.busy:
        report = measure_busy(folder, args.dtype, args.prompts, args.max_new_tokens, args.setting)
        show_busy(console, report)
        if args.json:
            created = datetime.now(UTC).isoformat(timespec="seconds")
            save_json_atomic(args.json, {"created": created, **report})
            console.print(f"wrote {args.json}")
        return
    target = load_target(TargetConfig(dtype=args.dtype))
    dtype = str(target.dtype).removeprefix("torch.")
    drafter = None if folder is None else open_any(folder, target)
    tree = default_shape(target.device, target.dtype)
    retrieval = default_shape(target.device, target.dtype, "retrieval")
    prompts = held_out_prompts(target, args.prompts, POOL_DOMAINS)
    contestants = contest(target, drafter, tree, retrieval)
    if args.peers:
        contestants.append(Contestant(HF, transformers_generate(target)))
        contestants.append(Contestant(HF_LOOKUP, transformers_generate(target, prompt_lookup_num_tokens=10)))
    if args.peers and find_spec("flashspec"):
        contestants.append(Contestant(FLASHSPEC, rival(FlashSpec(open_model(target), target))))
    if args.openvino:
        pipeline = open_pipeline(require_openvino(args.openvino), target)
        contestants.append(Contestant("OpenVINO GenAI", rival(OpenVINO(pipeline, target))))
    take_turns(contestants, prompts, args.max_new_tokens)
    device = describe_device(target.device)
    rows = show(contestants, f"{target.name} in {dtype} on {device}, {len(prompts)} prompts, greedy")
    steps = profile(contestants)
    named = {c.name: c for c in contestants}
    figures: dict[str, float] = {}
    if args.peers:
        mine = [c for c in contestants if c.results[0].answer is not None]
        best = max(mine, key=lambda c: c.tokens_per_s)
        figures["ar_over_hf_generate"] = ratio(named[AUTOREGRESSIVE], named[HF])[0]
        figures["best_over_hf_generate"] = ratio(best, named[HF])[0]
        figures["retrieval_over_prompt_lookup"] = ratio(named[RETRIEVAL], named[HF_LOOKUP])[0]
    if drafter is not None:
        again = load_target(replace(TargetConfig(), dtype=args.dtype))
        few = 2 if args.quick else 10
        figures |= forwards_alone(again, open_any(folder, again), tree, prompts[0], few)
    costs = verification_costs(target, 256, 3 if args.quick else 15)
    figures["verify16_over_one"] = costs[16] / costs[1]
    table = Table(title="one target pass by nodes, 256 tokens before", title_justify="left")
    for count in costs:
        table.add_column(str(count), justify="right")
    table.add_row(*(f"{ms:.1f} ms" for ms in costs.values()))
    table.add_row(*(f"{ms / costs[1]:.2f}x" for ms in costs.values()))
    console.print(table)
    if target.dtype == torch.float32:
        figures["mismatches_fp32"] = mismatches(contestants)
    else:
        exact = load_target(TargetConfig(dtype="float32"))
        head = None if folder is None else open_any(folder, exact)
        compared = contest(exact, head, tree, retrieval)
        take_turns(compared, prompts, args.max_new_tokens)
        figures["mismatches_fp32"] = mismatches(compared)
    if args.invariant_prompts:
        figures |= invariance(args, folder, tree, retrieval)
    table = Table(title="figures", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)
    if args.json:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        config = {key: getattr(args, key) for key in ("prompts", "max_new_tokens", "invariant_prompts")}
        body = {
            "bench": "decode",
            "config": config,
            "created": created,
            "device": device,
            "dtype": dtype,
            "figures": figures,
        }
        save_json_atomic(args.json, body | {"rows": rows, "steps": steps, "verify_ms": costs})
        console.print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
