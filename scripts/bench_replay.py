"""Measures the speed of replay, the time of a Re-SpS training, the error of the latency profile, and exactness.

    python scripts/bench_replay.py [--json PATH] [--quick] [key=value ...]   # keys of `drafterforge train-policy`

Traces and the latency profile are made if they do not exist.  `live_cycles_different` counts cycles of live decoding
whose accept length differs from replay; each cycle's tree is drawn from 50 actions of the grid.

Figures:
    cycles_per_s            replayed cycles a second, of the slowest observation
    resps_budget_s          seconds of a Re-SpS training
    latency_median_abs_err  median relative error of the latency profile on held-out answers
    live_cycles_different   see above
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from drafterforge.assembly.pools import open_pool
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.progress import bar
from drafterforge.evaluation.calibration import action_grid, latency_profile
from drafterforge.evaluation.lossless import top2_margin
from drafterforge.evaluation.trace_recording import record_traces
from drafterforge.replay.environment import ShapeEnvironment
from drafterforge.replay.scheduler_actions import observations_of
from drafterforge.replay.table import OutcomeTable, build_table
from drafterforge.replay.trace import Traces
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import PlannedScheduler
from drafterforge.targets.load import Target, load_target
from drafterforge.training.policies import PolicyInputs, train_shapes

import numpy as np
from bench_record import save_record
from rich.console import Console
from rich.table import Table

ACTIONS, PROMPTS = 50, 32  # of the grid, and held-out answers decoded live with them
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="keys of drafterforge train-policy")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="little of everything, to test the script")
    options = parser.parse_args(arguments)
    cfg: TrainPolicyConfig = load_config("train_policy", TrainPolicyConfig, options.overrides)
    resps: TrainPolicyConfig = load_config(
        "train_policy", TrainPolicyConfig, ["policy=resps", *(o for o in options.overrides if "policy" not in o)]
    )
    target = load_target(cfg.target)
    grid = action_grid(cfg)
    _, traces = record_traces(cfg, target)
    _, profile = latency_profile(cfg, target, grid)
    drafter = traces.drafter(cfg.drafter)
    began = time.perf_counter()
    table = build_table(traces.split("train"), grid, drafter, profile)
    build_s = time.perf_counter() - began
    rows = [
        time_stepping(table, observations_of(traces.split("train"), drafter, parts), parts, options.quick)
        for parts in (["features"], ["children", "length"])
    ]
    budget = replace(resps.policy, total_cycles=4000 if options.quick else resps.policy.total_cycles)
    with tempfile.TemporaryDirectory() as folder:
        inputs = PolicyInputs(traces.split("train"), drafter, profile, grid, Path(folder), cfg.seed)
        began = time.perf_counter()
        train_shapes(budget, inputs, lambda _: None)
        budget_s = time.perf_counter() - began
    live = compare_live(cfg, target, traces, grid, drafter, 2 if options.quick else PROMPTS)
    figures = {
        "cycles_per_s": min(row["cycles_per_s"] for row in rows),
        "resps_budget_s": round(budget_s, 1),
        "latency_median_abs_err": profile.errors.get("total"),
        "live_cycles_different": live["different"],
    }
    rows.append({"part": "training answers of the traces", "answers": len(traces.split("train").tokens)})
    rows.append({"part": "table of all actions", "seconds": round(build_s, 2), "actions": len(grid)})
    rows.append({"part": "live cycles", **live})
    show(rows, figures)
    if options.json:
        dtype = str(target.dtype).removeprefix("torch.")
        save_record(options.json, "replay", target.device, dtype, figures, rows)


def time_stepping(table: OutcomeTable, observations: np.ndarray, parts: list[str], quick: bool) -> dict:
    """Cycles a second of environments that step with random actions and observe."""
    env = ShapeEnvironment(table, observations, num_envs=256, hold_cycles=10)
    draw, steps = np.random.default_rng(0), 20 if quick else 400
    actions = draw.integers(env.num_actions, size=(steps, env.num_envs))
    env.reset()
    began, cycles = time.perf_counter(), 0
    for action in actions:
        cycles += int(env.step(action).cycles.sum())
    rate = cycles / (time.perf_counter() - began)
    return {
        "part": f"stepping, observing {'+'.join(parts)}",
        "observation": observations.shape[1],
        "cycles_per_s": round(rate),
    }


def compare_live(
    cfg: TrainPolicyConfig, target: Target, traces: Traces, grid: ActionGrid, drafter: int, count: int
) -> dict:
    """Decode with random trees, and count cycles that differ from replay and answers that differ from the traces."""
    test = traces.split("test")
    lengths, rng = test.accept_lengths(grid, drafter), np.random.default_rng(cfg.seed)
    subset = rng.choice(len(grid), size=min(ACTIONS, len(grid)), replace=False)
    drafters = open_pool(cfg.runs_dir, target, [cfg.drafter])
    counts = {"prompts": 0, "cycles": 0, "different": 0, "other_texts": 0, "least_margin": None}
    with bar("live cycles", count) as progress:
        for index in range(min(count, len(test.tokens))):
            begin, tokens = int(test.begins[index]), test.tokens[index].tolist()
            actions = rng.choice(subset, size=len(tokens))
            scheduler = PlannedScheduler([grid.shapes[action] for action in actions])
            engine = Engine(target, Pool(drafters, "static", scheduler=scheduler), max_batch=1)
            answer = engine.generate([tokens[:begin]], cfg.traces.max_new_tokens)[0]
            counts["prompts"] += 1
            row = test.starts[index]
            for cycle, action in zip(answer.cycles, actions, strict=False):
                counts["cycles"] += 1
                counts["different"] += int(cycle.accept_length != lengths[row, action])
                row += cycle.accept_length
            if answer.tokens != tokens[begin:]:
                pairs = enumerate(zip(answer.tokens, tokens[begin:], strict=False))
                position = next(i for i, (live, recorded) in pairs if live != recorded)
                margin = top2_margin(target, tokens[: begin + position])
                counts["other_texts"] += 1
                counts["least_margin"] = min(margin, counts["least_margin"] or margin)
            progress.advance()
    return counts


def show(rows: list[dict], figures: dict) -> None:
    table = Table(title="parts", title_justify="left")
    table.add_column("part")
    table.add_column("figures")
    for row in rows:
        table.add_row(row["part"], ", ".join(f"{key} {value}" for key, value in row.items() if key != "part"))
    console.print(table)
    table = Table(title="figures", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, str(value))
    console.print(table)


if __name__ == "__main__":
    main()
