"""Decode many prompts with every kind of drafter and compare each answer with autoregressive decoding.

    python scripts/check_lossless.py drafter=runs/smollm2-135m/drafters/quickstart [--datastore FOLDER] --prompts 200
    python scripts/check_lossless.py --graphs --pool general+store,sql,math+store,chat --prompts 100

Prompts are held-out ones of the built-in grammars, domains mixed, decoded in batches.  The last row is drafter=auto.
With --graphs all methods but plain decoding decode in the fixed shapes that a GPU replays from graphs, and the last row
is left out: drafter=auto has no fixed shapes.
In float32, a difference at a near tie is decoded again in float64 and counts if it remains.  In half precision,
`numerics=invariant` is checked and every difference counts.  The exit code is 1 if any difference counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from drafterforge.assembly.build import auto_engine
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import RunsFolder, open_for_decoding
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.names import AUTO
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Datastore, Retrieval
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.lossless import count_mismatches, find_mismatches
from drafterforge.runtime.engine import Drafter, Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.load import Target, load_target

import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table

SELECTORS = ("hedgespec", "hedgespec-prompt", "random")  # that decode with the pool
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", nargs="?", help="drafter=FOLDER of an EAGLE-3 drafter, besides retrieval")
    parser.add_argument("--datastore", type=Path, metavar="FOLDER", help="a datastore, alone and in hybrid trees")
    parser.add_argument(
        "--pool", default="", metavar="NAME,NAME,...", help="drafters of a pool, checked with several selectors"
    )
    parser.add_argument("--graphs", action="store_true", help="decode in fixed shapes, as on a GPU")
    parser.add_argument("--runs-dir", default="runs", help="where drafter=auto looks for drafters before shipped ones")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    target = load_target(TargetConfig(dtype=args.dtype))
    numerics = choose_numerics("fast" if target.dtype == torch.float32 else "invariant", target)
    folder = None if args.drafter is None else Path(args.drafter.removeprefix("drafter="))
    prompts = held_out_prompts(target, args.prompts, POOL_DOMAINS)
    sampling = Sampling(temperature=args.temperature, seed=1)

    @cache
    def exact() -> Target:
        return load_target(TargetConfig(dtype="float64"))

    def drafters(target: Target) -> dict[str, tuple[Drafter | Pool, str]]:
        retrievals = {"retrieval": Retrieval()}
        if args.datastore:
            retrievals["datastore"] = Retrieval(datastore=Datastore.open(args.datastore))
        methods: dict[str, tuple[Drafter | Pool, str]] = {}
        if folder is not None:
            drafter = open_for_decoding(folder, target)
            methods["eagle3"] = drafter, "eagle3"
            methods |= {f"eagle3+{name}": (HybridDrafter(drafter, r), "hybrid") for name, r in retrievals.items()}
        methods |= {name: (drafter, "retrieval") for name, drafter in retrievals.items()}
        if args.pool:
            members = open_pool(args.runs_dir, target, args.pool.split(","))
            methods |= {f"pool, {name}": (Pool(members, name), "eagle3") for name in SELECTORS}
        return methods

    def engine(target: Target, name: str | None) -> Engine:
        if name is None:
            return Engine(target, numerics=numerics, max_batch=args.max_batch)
        if name == AUTO:
            runs = RunsFolder(args.runs_dir, target, quiet=True)
            return auto_engine(runs, RuntimeConfig(numerics=numerics), args.max_batch)[0]
        drafter, kind = drafters(target)[name]
        shape = default_shape(target.device, target.dtype, kind)
        graphs = True if args.graphs else None
        return Engine(target, drafter, shape, numerics=numerics, max_batch=args.max_batch, graphs=graphs)

    expected, rows = None, []
    for name in (None, *drafters(target), *(() if args.graphs else (AUTO,))):
        began = time.perf_counter()
        answers = engine(target, name).generate(prompts, args.max_new_tokens, sampling)
        seconds = time.perf_counter() - began
        expected = expected or answers
        exact_engines = (
            (lambda name=name: (engine(exact(), name), engine(exact(), None)))
            if numerics == "fast" and not args.temperature
            else None
        )
        console.print(f"{name or 'autoregressive'}: {len(prompts)} prompts in {seconds:.0f} s")
        differences = find_mismatches(name or "autoregressive", target, answers, expected, exact_engines)
        for mismatch in differences:
            note = ", equal in float64" if mismatch.rerun else ""
            where = f"prompt {mismatch.prompt} differs at token {mismatch.position}"
            console.print(f"  {where}, margin {mismatch.margin:.1e}{note}")
        cycles = [cycle for answer in answers for cycle in answer.cycles]
        rows.append(
            {
                "method": name or "autoregressive",
                "num_prompts": len(prompts),
                "num_tokens": sum(len(answer.tokens) for answer in answers),
                "mat": sum(cycle.accept_length for cycle in cycles) / len(cycles),
                "seconds": seconds,
                "different": len(differences),
                "mismatches": count_mismatches(differences),
            }
        )
    show(rows, f"{target.name} in {args.dtype}, numerics={numerics}")
    mismatches = sum(row["mismatches"] for row in rows)
    if args.json:
        figures = {"num_prompts": len(prompts), "num_tokens": rows[0]["num_tokens"], "mismatches": mismatches}
        dtype = str(target.dtype).removeprefix("torch.")
        save_record(args.json, "lossless", target.device, dtype, figures, rows, {"numerics": numerics})
    return int(mismatches > 0)


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("method", "prompts", "tokens", "MAT", "seconds", "different", "mismatches"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    forms = ("", "", "", ".2f", ".0f", "", "")
    for row in rows:
        table.add_row(*(f"{value:{form}}" for value, form in zip(row.values(), forms, strict=True)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
