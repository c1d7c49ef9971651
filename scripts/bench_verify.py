"""Compares rejection verification with sample-and-match: tokens a cycle at several temperatures.

    python scripts/bench_verify.py --prompts 32 --json verify.json

Prompts are held-out ones of the eight domains.  Chains of the same depth are compared, and the default tree of
sample-and-match, which chains of any verification have to beat.  MAT does not depend on the machine or its load.

Figures, a row for each temperature:
    match, rejection        tokens a cycle of a chain
    rejection_over_match    ratio of these
    tree                    tokens a cycle of the default tree with sample-and-match
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.runs import open_for_decoding
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.runtime import MATCH, REJECTION
from drafterforge.config.target import TargetConfig
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.shapes import default_shape
from drafterforge.targets.load import load_target
from drafterforge.tree.grow import TreeShape

from bench_record import save_record


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="general", metavar="NAME", help="name or folder of an EAGLE-3 drafter")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="of artifacts")
    parser.add_argument("--prompts", type=int, default=32, metavar="N", help="number of prompts")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="length limit of an answer")
    parser.add_argument("--depth", type=int, default=4, metavar="D", help="drafted levels of the chains")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.5, 1.0], metavar="T", help="of sampling"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    target = load_target(TargetConfig())
    drafter = open_for_decoding(find_artifact(options.runs, target.name, "drafters", options.drafter), target)
    chain = TreeShape(options.depth + 1, options.depth, 1)
    tree = default_shape(target.device, target.dtype, drafter.kind)
    engines = {name: Engine(target, drafter, chain, verify=name) for name in (MATCH, REJECTION)}
    engines["tree"] = Engine(target, drafter, tree)
    prompts = held_out_prompts(target, options.prompts, POOL_DOMAINS)
    rows: list[dict[str, float]] = []
    for temperature in options.temperatures:
        samplings = [Sampling(temperature=temperature, seed=seed) for seed in range(len(prompts))]
        mats = {name: mat(engine, prompts, options.tokens, samplings) for name, engine in engines.items()}
        rows.append({"temperature": temperature} | {name: round(value, 3) for name, value in mats.items()})
        rows[-1]["rejection_over_match"] = round(mats[REJECTION] / mats[MATCH], 3)
        line = ", ".join(f"{name} {value:.2f}" for name, value in mats.items())
        print(f"T = {temperature:g}: MAT {line}; rejection over match {mats[REJECTION] / mats[MATCH]:.3f}", flush=True)
    if options.json:
        figures = {"prompts": len(prompts), "tokens": options.tokens, "depth": options.depth}
        save_record(options.json, "verify", target.device, str(target.dtype).removeprefix("torch."), figures, rows)
    return 0


def mat(engine: Engine, prompts: Sequence[list[int]], count: int, samplings: Sequence[Sampling]) -> float:
    """Tokens a cycle over all answers."""
    cycles = [cycle for answer in engine.generate(prompts, count, samplings) for cycle in answer.cycles]
    return sum(cycle.accept_length for cycle in cycles) / len(cycles)


if __name__ == "__main__":
    sys.exit(main())
