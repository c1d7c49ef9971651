"""Times our decoding methods (plain, chain, tree, retrieval) beside HF `generate` and HF prompt lookup.

    python scripts/bench_decode.py drafter=runs/smollm2-135m/drafters/quickstart

Prompts are held-out ones of the built-in grammars; methods take turns prompt by prompt, so drift affects all equally.
Then it prints the time of a cycle by step, the same forward passes run alone, the cost of verification by nodes, and
`numerics=invariant` beside `fast` in half precision.  FlashSpec is included if it is installed, OpenVINO GenAI with
--openvino.

    python scripts/bench_decode.py --busy [--setting GOMP_SPINCOUNT=300000]

This times plain and tree decoding on an idle machine, and beside one busy process for each core.  Each environment
setting decodes in its own process.

Figures:
    ar_over_hf_generate           tokens/s, plain decoding over HF `generate`
    best_over_hf_generate         tokens/s, our fastest method over HF `generate`
    retrieval_over_prompt_lookup  tokens/s, our retrieval over HF prompt lookup
    host_share                    share of a cycle outside its forward passes
    cycle_over_forwards           seconds of a cycle over those of its forward passes run alone
    verify16_over_one             milliseconds of a target pass with 16 nodes over one with 1
    mismatches_fp32               answers in float32 that differ from plain decoding
    invariant_over_fast           seconds with numerics=invariant over fast, of the worst method
    mismatches_invariant          answers with numerics=invariant that differ from plain decoding
With --busy, for METHOD plain and tree, medians:
    METHOD_idle_tokens_per_s      on an idle machine
    METHOD_busy_tokens_per_s      beside busy processes
    METHOD_busy_over_idle         ratio of these
    busy_processes, mismatches    number of busy processes, and of answers that differ
    other_cores_idle              cores that other programs used while the machine was to be idle
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drafterforge.assembly.runs import open_for_decoding
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.other_engines import (
    FLASHSPEC_TOKENS,
    LOOKUP_TOKENS,
    FlashSpec,
    OpenVINO,
    OtherEngine,
    Transformers,
    open_model,
    open_pipeline,
    require_openvino,
)
from drafterforge.evaluation.statistics import bootstrap_ratio
from drafterforge.runtime.engine import Drafter, Engine
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

import torch
from bench_decode_busy import measure_busy, show_busy
from bench_decode_steps import time_forward_passes, time_verification
from bench_record import save_record
from rich.console import Console
from rich.table import Table

AUTOREGRESSIVE, HF, HF_LOOKUP = "autoregressive", "HF generate", f"HF prompt lookup ({LOOKUP_TOKENS})"
FLASHSPEC = f"FlashSpec, prompt lookup ({FLASHSPEC_TOKENS})"
RETRIEVAL, HYBRID = "retrieval", "eagle3+retrieval"
STEPS = ("draft", "verify", "host")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Result:
    """The answer of a method to one prompt."""

    tokens: list[int]
    seconds: float
    answer: Generation | None = None  # None: of another program


Decode = Callable[[list[int], int], Result]  # of a prompt and a number of tokens


@dataclass
class Method:
    """A way to decode, and its results."""

    name: str
    decode: Decode
    results: list[Result] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over all seconds, prefill included."""
        return sum(len(r.tokens) for r in self.results) / sum(r.seconds for r in self.results)


def decode_by_engine(engine: Engine) -> Decode:
    """Decode with our engine."""

    def decode(prompt: list[int], count: int) -> Result:
        began = time.perf_counter()
        answer = engine.generate([prompt], count)[0]
        return Result(answer.tokens, time.perf_counter() - began, answer)

    return decode


def decode_by_other(engine: OtherEngine) -> Decode:
    """Decode with another program."""

    def decode(prompt: list[int], count: int) -> Result:
        answer = engine.generate([prompt], count)[0]
        return Result(answer.tokens, answer.time_s["total"])

    return decode


def take_turns(methods: Sequence[Method], prompts: Sequence[list[int]], count: int) -> None:
    """Run every method on every prompt, in rotating order, after a warm-up."""
    for method in methods:
        method.decode(prompts[0], min(count, 8))
    for index, prompt in enumerate(prompts):
        turn = index % len(methods)
        for method in (*methods[turn:], *methods[:turn]):
            method.results.append(method.decode(prompt, count))
        console.print(f"  prompt {index + 1} of {len(prompts)}", end="\r")
    console.print(" " * 30, end="\r")


def speed_ratio(method: Method, base: Method) -> tuple[float, tuple[float, float]]:
    """Tokens/s over those of the base, and the paired bootstrap interval over prompts."""
    pairs = [
        (len(a.tokens), a.seconds, len(b.tokens), b.seconds) for a, b in zip(method.results, base.results, strict=True)
    ]
    return method.tokens_per_s / base.tokens_per_s, bootstrap_ratio(pairs)


def count_mismatches(methods: Sequence[Method]) -> int:
    """Answers of our methods that differ from our autoregressive decoding."""
    expected = next(method for method in methods if method.name == AUTOREGRESSIVE).results
    ours = [method for method in methods if method.results and method.results[0].answer is not None]
    return sum(a.tokens != b.tokens for method in ours for a, b in zip(method.results, expected, strict=True))


def our_methods(
    target: Target, drafter: FusedDrafter | None, tree: TreeShape, retrieval: TreeShape, numerics: str = "fast"
) -> list[Method]:
    """Autoregressive decoding, chain, tree, tree with retrieval, and retrieval."""

    def method(name: str, drafter: Drafter | None, shape: TreeShape | None) -> Method:
        return Method(name, decode_by_engine(Engine(target, drafter, shape, numerics=numerics)))

    methods = [method(AUTOREGRESSIVE, None, None)]
    if drafter is not None:
        chain = TreeShape(tree.depth + 1, tree.depth, 1)
        methods.append(method(f"chain {chain.num_tokens}/{chain.depth}/1", drafter, chain))
        methods.append(method(f"tree {tree.num_tokens}/{tree.depth}/{tree.top_k}", drafter, tree))
        methods.append(method(HYBRID, HybridDrafter(drafter, Retrieval()), None))
    methods.append(method(RETRIEVAL, Retrieval(), retrieval))
    return methods


def show_speed(methods: Sequence[Method], title: str) -> list[dict[str, Any]]:
    """Print and return tokens/s and ratios."""
    table = Table(title=title, title_justify="left")
    for heading in ("method", "tokens/s", "median s/prompt", "MAT", "over autoregressive", "95 %", "same tokens"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    base = next(method for method in methods if method.name == AUTOREGRESSIVE)
    rows = []
    for method in methods:
        speedup, interval = speed_ratio(method, base)
        cycles = [cycle for r in method.results if r.answer for cycle in r.answer.cycles]
        mat = sum(cycle.accept_length for cycle in cycles) / len(cycles) if cycles else None
        equal = sum(a.tokens == b.tokens for a, b in zip(method.results, base.results, strict=True))
        median = statistics.median(r.seconds for r in method.results)
        num_prompts = len(method.results)
        rows.append(
            {"method": method.name, "tokens_per_s": method.tokens_per_s, "median_s": median, "mat": mat}
            | {"over_autoregressive": speedup, "ci95": interval, "same_tokens": equal, "num_prompts": num_prompts}
        )
        table.add_row(
            method.name,
            f"{method.tokens_per_s:.1f}",
            f"{median:.2f}",
            f"{mat:.2f}" if mat else "",
            f"{speedup:.2f}x",
            "" if method is base else f"{interval[0]:.2f}-{interval[1]:.2f}",
            f"{equal}/{num_prompts}",
        )
    console.print(table)
    return rows


def show_steps(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Print and return the milliseconds of a cycle by step."""
    table = Table(title="time of a cycle by step, ms", title_justify="left")
    for heading in ("method", "draft", "verify", "host", "cycle", "host share"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    rows = []
    for method in methods:
        cycles = [cycle for r in method.results if r.answer for cycle in r.answer.cycles]
        if not cycles:
            continue
        draft, verify, host = (1e3 * statistics.mean(getattr(c, f"{step}_s") for c in cycles) for step in STEPS)
        total = draft + verify + host
        rows.append({"method": method.name, "draft_ms": draft, "verify_ms": verify, "host_ms": host})
        table.add_row(method.name, *(f"{ms:.1f}" for ms in (draft, verify, host, total)), f"{host / total:.1%}")
    console.print(table)
    return rows


def compare_numerics(
    args: argparse.Namespace, folder: Path | None, tree: TreeShape, retrieval: TreeShape
) -> dict[str, float]:
    """Time of a cycle and mismatches of `numerics=invariant` beside `fast`, in bfloat16."""
    target = load_target(TargetConfig(dtype="bfloat16"))
    drafter = None if folder is None else open_for_decoding(folder, target)
    prompts = held_out_prompts(target, args.invariant_prompts, POOL_DOMAINS)
    fast, exact = (our_methods(target, drafter, tree, retrieval, numerics) for numerics in ("fast", "invariant"))
    for method in exact:
        method.name += ", invariant"
    take_turns([method for pair in zip(fast, exact, strict=True) for method in pair], prompts, args.max_new_tokens)
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
    worst_ratio, num_mismatches = 0.0, 0
    for pair in zip(fast, exact, strict=True):
        # texts may differ, so costs of a cycle are compared, not of an answer
        seconds = [
            statistics.median(c.draft_s + c.verify_s + c.host_s for r in method.results for c in r.answer.cycles)
            for method in pair
        ]
        mismatches = [  # with autoregressive decoding of the same numerics
            sum(a.tokens != b.tokens for a, b in zip(method.results, base.results, strict=True))
            for method, base in zip(pair, (fast[0], exact[0]), strict=True)
        ]
        ratio = seconds[1] / seconds[0]
        worst_ratio, num_mismatches = max(worst_ratio, ratio), num_mismatches + mismatches[1]
        table.add_row(pair[0].name, *(f"{1e3 * s:.1f}" for s in seconds), f"{ratio:.2f}x", *map(str, mismatches))
    console.print(table)
    return {"invariant_over_fast": worst_ratio, "mismatches_invariant": num_mismatches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "drafter", nargs="?", help="drafter=FOLDER of an EAGLE-3 drafter; without it, no chain and no tree"
    )
    parser.add_argument("--prompts", type=int, default=24, help="number of held-out prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="length limit of the answers")
    parser.add_argument("--invariant-prompts", type=int, default=24, help="prompts for numerics=invariant; 0 skips it")
    parser.add_argument("--dtype", default="auto", help="auto | float32 | bfloat16")
    parser.add_argument("--openvino", default="", help="folder of the target exported to OpenVINO's IR")
    parser.add_argument(
        "--peers", default=True, action=argparse.BooleanOptionalAction, help="HF and FlashSpec beside ours"
    )
    parser.add_argument("--quick", action="store_true", help="a few short answers, to test the script")
    parser.add_argument("--busy", action="store_true", help="only time decoding beside one busy process for each core")
    parser.add_argument(
        "--setting", action="append", default=[], help="with --busy: also time with NAME=VALUE,... in the environment"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    args = parser.parse_args()
    if args.quick:
        args.prompts, args.max_new_tokens, args.invariant_prompts = 2, 8, min(args.invariant_prompts, 1)
    folder = None if args.drafter is None else Path(args.drafter.removeprefix("drafter="))
    if args.busy:
        report = measure_busy(folder, args.dtype, args.prompts, args.max_new_tokens, args.setting)
        show_busy(console, report)
        if args.json:
            save_record(args.json, "decode-busy", *(report[key] for key in ("device", "dtype", "figures", "rows")))
            console.print(f"wrote {args.json}")
        return
    target = load_target(TargetConfig(dtype=args.dtype))
    dtype, device = str(target.dtype).removeprefix("torch."), describe_device(target.device)
    drafter = None if folder is None else open_for_decoding(folder, target)
    tree = default_shape(target.device, target.dtype)
    retrieval = default_shape(target.device, target.dtype, "retrieval")
    prompts = held_out_prompts(target, args.prompts, POOL_DOMAINS)
    methods = our_methods(target, drafter, tree, retrieval) + other_methods(args, target)
    take_turns(methods, prompts, args.max_new_tokens)
    rows = show_speed(methods, f"{target.name} in {dtype} on {device}, {len(prompts)} prompts, greedy")
    steps = show_steps(methods)
    figures = peer_ratios(methods) if args.peers else {}
    if drafter is not None and target.device.type == "cuda":  # passes alone cannot be timed without waiting for each
        tree_steps = next(row for row in steps if row["method"].startswith("tree"))
        figures["host_share"] = tree_steps["host_ms"] / sum(tree_steps[f"{step}_ms"] for step in STEPS)
    elif drafter is not None:
        fresh = load_target(replace(TargetConfig(), dtype=args.dtype))  # the recorder changes its methods
        cycles = 2 if args.quick else 10
        figures |= time_forward_passes(fresh, open_for_decoding(folder, fresh), tree, prompts[0], cycles)
    verify_ms = time_verification(target, 256, 3 if args.quick else 15)
    figures["verify16_over_one"] = verify_ms[16] / verify_ms[1]
    table = Table(title="one target pass by nodes, after 256 tokens", title_justify="left")
    for count in verify_ms:
        table.add_column(str(count), justify="right")
    table.add_row(*(f"{ms:.1f} ms" for ms in verify_ms.values()))
    table.add_row(*(f"{ms / verify_ms[1]:.2f}x" for ms in verify_ms.values()))
    console.print(table)
    if target.dtype != torch.float32:
        exact = load_target(TargetConfig(dtype="float32"))
        methods = our_methods(exact, None if folder is None else open_for_decoding(folder, exact), tree, retrieval)
        take_turns(methods, prompts, args.max_new_tokens)
    figures["mismatches_fp32"] = count_mismatches(methods)
    if args.invariant_prompts:
        figures |= compare_numerics(args, folder, tree, retrieval)
    table = Table("figure", "value", title="figures", title_justify="left")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)
    if args.json:
        config = {key: getattr(args, key) for key in ("prompts", "max_new_tokens", "invariant_prompts")}
        more = {"config": config, "steps": steps, "verify_ms": verify_ms}
        save_record(args.json, "decode", target.device, dtype, figures, rows, more)
        console.print(f"wrote {args.json}")


def other_methods(args: argparse.Namespace, target: Target) -> list[Method]:
    """Other programs that were asked for and are installed."""
    methods = []
    if args.peers:
        model = open_model(target)
        lookup = Transformers(model, target, prompt_lookup_num_tokens=LOOKUP_TOKENS)
        methods.append(Method(HF, decode_by_other(Transformers(model, target))))
        methods.append(Method(HF_LOOKUP, decode_by_other(lookup)))
        if find_spec("flashspec"):
            methods.append(Method(FLASHSPEC, decode_by_other(FlashSpec(model, target))))
    if args.openvino:
        pipeline = open_pipeline(require_openvino(args.openvino), target)
        methods.append(Method("OpenVINO GenAI", decode_by_other(OpenVINO(pipeline, target))))
    return methods


def peer_ratios(methods: Sequence[Method]) -> dict[str, float]:
    """Tokens/s of our methods over those of HF."""
    by_name = {method.name: method for method in methods}
    best = max((m for m in methods if m.results[0].answer is not None), key=lambda method: method.tokens_per_s)
    return {
        "ar_over_hf_generate": speed_ratio(by_name[AUTOREGRESSIVE], by_name[HF])[0],
        "best_over_hf_generate": speed_ratio(best, by_name[HF])[0],
        "retrieval_over_prompt_lookup": speed_ratio(by_name[RETRIEVAL], by_name[HF_LOOKUP])[0],
    }


if __name__ == "__main__":
    main()
