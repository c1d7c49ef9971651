"""Simulates the regret of every selector: in four worlds, and beside reference values with default and tuned constants.

    python scripts/simulate_selectors.py [--worlds] [--plots FOLDER] [--json PATH] [--quick]

Worlds (`--worlds`: nothing else) replay the real selectors on drawn texts of 1,200 tokens: stationary, bursty, drifting
and adversarial, see `simulated_worlds`.  Regret is in tokens against the best drafter of each text.  The default must
lose less than half as much in the last 300 tokens as in the first where the world is stationary, and reach 95 % of the
MAT of discounted NormalHedge, which forgets fast, in the bursty one.

Reference values: a pool has N drafters and K levels.  In every cycle each drafter and level has a fresh acceptance
probability from Beta(10 m, 10 (1 - m)), where m is .75 for the best drafter and .60 for the others (.72 in the near
tie).  Bandits see the accept length of the drafter they played; learners see all drafters, two cycles late.  Regret is
the expected number of tokens lost against always playing the best.  The plug-in estimator is exact here.  Names say
"tuned" where constants are not the papers'.
Axes: S seeds, N drafters, K levels, T cycles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drafterforge.selectors.estimators import geometric_length

import numpy as np
import simulated_worlds as worlds
import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table
from simulated_selectors import (
    CONSTANTS,
    CYCLES,
    DEPTH,
    SELECTORS,
    UCB1,
    SimulatedSelector,
    Thompson,
    Uniform,
    normalhedge,
)

Maker = Callable[[], SimulatedSelector]
BEST, REST, NEAR = 0.75, 0.60, 0.72  # mean acceptance of the best drafter, of the rest, of the rest in a near tie
SIZES = (2, 4, 8, 16, 32)
REFERENCE = {
    "NormalHedge sample": (1.5, 2.3, 2.9, 3.6, 3.9),
    "NormalHedge argmax": (1.4, 2.3, 2.9, 3.1, 3.4),
    "FTL argmax": (1.5, 2.3, 2.7, 3.2, 3.5),
    "AdaNormalHedge": (2.7, 6.0, 9.7, 14.1, 19.1),
    "Squint": (15.4, 29.6, 42.1, 53.8, 64.9),
    "Hedge": (36.4, 52.7, 63.1, 72.9, 80.7),
    "Thompson": (32.9, 89.1, 183.7, 275.6, 335.1),
    "UCBSpec": (71.6, 169.5, 268.1, 322.2, 345.5),
    "UCB1": (81.5, 182.9, 273.1, 323.8, 345.3),
    "MetaSD-UCB": (89.3, 197.6, 282.8, 327.3, 346.6),
    "EXP3Spec": (90.8, 183.5, 267.9, 320.5, 344.4),
    "random": (181.4, 272.1, 316.2, 339.0, 350.5),
}
NEAR_SIZES = (2, 8, 32)
NEAR_REFERENCE = {
    "NormalHedge sample": (1.7, 4.8, 8.0),
    "FTL argmax": (1.6, 4.3, 7.3),
    "Hedge": (26.8, 52.0, 67.5),
    "Thompson": (27.9, 69.6, 82.6),
    "UCB1": (34.9, 73.2, 82.8),
    "random": (42.7, 75.2, 83.0),
}
QUERIES, QUERY_CYCLES, QUERY_SIZE = 40, 60, 8
QUERY_REFERENCE = {
    "NormalHedge reset": 0.0502,
    "NormalHedge carry": 0.7242,
    "NormalHedge carry .97": 0.2913,
    "NormalHedge carry .9": 0.1201,
    "Thompson reset": 0.7127,
    "Thompson carry": 0.7631,
    "UCB1 reset": 0.7540,
    "UCB1 carry": 0.6193,
    "random": 0.792,
}
BAND = (0.1, 0.9)  # quantiles of the seeds
AUER_RATES, AUER_ROUNDS = (0.3, 0.7, 0.5), 10_000

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def simulate(
    selectors: dict[str, SimulatedSelector],
    best: np.ndarray,
    num_drafters: int,
    cycles: int,
    rng: np.random.Generator,
    rest: float = REST,
) -> dict[str, np.ndarray]:
    """Regret of each cycle in tokens, [T, S], of selectors that meet the same cycles; they keep their state.

    best: the best drafter of each seed, [S].
    """
    seeds = len(best)
    rows = np.arange(seeds)
    rates = np.full((seeds, num_drafters), rest)
    rates[rows, best] = BEST
    means = geometric_length(rates, DEPTH)
    losses = means.max(axis=1, keepdims=True) - means
    regrets = {name: np.empty((cycles, seeds)) for name in selectors}
    for cycle in range(cycles):
        gamma = rng.beta(10 * rates[..., None], 10 * (1 - rates[..., None]), (seeds, num_drafters, DEPTH))
        noise = rng.random((seeds, DEPTH))
        for name, selector in selectors.items():
            drafters = selector.select(rng)
            accepted = noise < gamma[rows, drafters]
            selector.observe(drafters, 1 + accepted.cumprod(axis=1).sum(axis=1), gamma)
            regrets[name][cycle] = losses[rows, drafters]
    return regrets


def regret_curves(
    makers: dict[str, Maker],
    num_drafters: int,
    seeds: int,
    cycles: int = CYCLES,
    rest: float = REST,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Cumulative regret in tokens, [T, S], of fresh selectors; the best drafter differs by seed."""
    rng = np.random.default_rng([seed, num_drafters])
    selectors = {name: make() for name, make in makers.items()}
    for selector in selectors.values():
        selector.reset(seeds, num_drafters)
    best = rng.integers(0, num_drafters, seeds)
    regrets = simulate(selectors, best, num_drafters, cycles, rng, rest)
    return {name: regret.cumsum(axis=0) for name, regret in regrets.items()}


def queries(seeds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Mean regret per cycle, [S], over queries with different best drafters; state is reset or carried between them."""
    makers = {
        "NormalHedge reset": normalhedge,
        "NormalHedge carry": normalhedge,
        "NormalHedge carry .97": lambda: normalhedge(discount=0.97),
        "NormalHedge carry .9": lambda: normalhedge(discount=0.9),
        "Thompson reset": Thompson,
        "Thompson carry": Thompson,
        "UCB1 reset": UCB1,
        "UCB1 carry": UCB1,
        "random": Uniform,
    }
    rng = np.random.default_rng([seed, QUERIES])
    selectors = {name: make() for name, make in makers.items()}
    totals = {name: np.zeros(seeds) for name in selectors}
    for query in range(QUERIES):
        for name, selector in selectors.items():
            if query == 0 or "reset" in name:
                selector.reset(seeds, QUERY_SIZE)
        best = rng.integers(0, QUERY_SIZE, seeds)
        for name, regret in simulate(selectors, best, QUERY_SIZE, QUERY_CYCLES, rng).items():
            totals[name] += regret.sum(axis=0)
    return {name: total / (QUERIES * QUERY_CYCLES) for name, total in totals.items()}


def auer(seeds: int, rounds: int = AUER_ROUNDS, seed: int = 0) -> tuple[np.ndarray, float]:
    """Regret of UCB1 on Bernoulli arms after all rounds, [S], and Auer's bound on its mean."""
    rng = np.random.default_rng([seed, rounds])
    rates = np.array(AUER_RATES)
    gaps = rates.max() - rates
    selector = UCB1()
    selector.reset(seeds, len(rates))
    regret = np.zeros(seeds)
    for _ in range(rounds):
        arms = selector.select(rng)
        selector.learn(arms, rng.random(seeds) < rates[arms])
        selector.rounds += 1
        regret += gaps[arms]
    suboptimal = gaps[gaps > 0]
    return regret, float((8 * np.log(rounds) / suboptimal).sum() + (1 + np.pi**2 / 3) * suboptimal.sum())


def tune(seeds: int) -> dict[str, tuple[float, Maker]]:
    """The best constant of each bandit over all pool sizes; tuning and reported regret use different seeds."""
    makers = {
        f"{name} {value}": (lambda make=make, value=value: make(value))
        for name, (values, make) in CONSTANTS.items()
        for value in values
    }
    totals = dict.fromkeys(makers, 0.0)
    for size in SIZES:
        curves = regret_curves(makers, size, seeds, seed=1)
        totals = {name: total + curves[name][-1].mean() for name, total in totals.items()}
    tuned = {}
    for name, (values, make) in CONSTANTS.items():
        value = min(values, key=lambda value: totals[f"{name} {value}"])
        tuned[name] = value, lambda make=make, value=value: make(value)
    return tuned


def agrees(measured: np.ndarray, reference: float) -> bool:
    """Within 15 % of the reference, or 4 standard errors of the difference of two such means.  measured: [S]."""
    error = np.std(measured, ddof=1) * np.sqrt(2 / len(measured))
    return abs(measured.mean() - reference) <= max(0.15 * reference, 4 * error)


def print_comparison(
    title: str, columns: Sequence[Any], rows: dict[str, list[tuple[np.ndarray, float | None]]]
) -> list[str]:
    """Print simulated and reference values; returns a line for each that does not agree."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(str(column), justify="right")
    outside = []
    for name, cells in rows.items():
        texts = []
        for column, (measured, reference) in zip(columns, cells, strict=True):
            digits = 4 if measured.mean() < 1 else 1
            text = f"{measured.mean():.{digits}f}"
            if reference is not None:
                text += f" ({reference:g})"
                if not agrees(measured, reference):
                    text += " !"
                    outside.append(f"{name}, {column}: {measured.mean():.4g}, reference {reference:g}")
            texts.append(text)
        table.add_row(name, *texts)
    console.print(table)
    return outside


def print_worlds(outcomes: dict[str, dict[str, worlds.Outcome]], signals: dict[str, dict[str, tuple]]) -> None:
    """Print MAT and regret in every world, and the signal strength of MetaSD's rewards."""
    for world, by_name in outcomes.items():
        best = next(iter(by_name.values())).best_mat.mean()
        table = Table(title=f"{world}: best drafter alone, MAT {best:.2f}", title_justify="left")
        table.add_column("")
        for heading in ("MAT", "regret of the first 300 tokens", "of the last 300", "of all", "10 to 90 %"):
            table.add_column(heading, justify="right")
        for name, outcome in by_name.items():
            end = outcome.regrets[:, -1]
            low, high = np.quantile(end, BAND)
            figures = outcome.first, outcome.last, end.mean()
            table.add_row(name, f"{outcome.mat.mean():.2f}", *(f"{x:.0f}" for x in figures), f"{low:.0f} to {high:.0f}")
        console.print(table)
    table = Table(title="MetaSD's signal strength R, median over drafters", title_justify="left")
    for heading in ("", "by BE", "by BD", "BD larger"):
        table.add_column(heading, justify="right" if heading else "left")
    for world, rewards in signals.items():
        table.add_row(world, f"{rewards['BE'][0]:.3f}", f"{rewards['BD'][0]:.3f}", f"{rewards['BD'][1]:.0%}")
    console.print(table)


def plot_worlds(folder: Path, outcomes: dict[str, dict[str, worlds.Outcome]]) -> None:
    """Draw mean cumulative regret in every world, with bands over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, panels = pyplot.subplots(1, len(outcomes), figsize=(5 * len(outcomes), 4.5), squeeze=False)
    for axes, (world, by_name) in zip(panels[0], outcomes.items(), strict=True):
        for index, (name, outcome) in enumerate(by_name.items()):
            low, high = np.quantile(outcome.regrets, BAND, axis=0)
            colour = pyplot.colormaps["tab20"](index % 20)
            axes.plot(outcome.regrets.mean(axis=0), label=name, color=colour)
            axes.fill_between(np.arange(len(low)), low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set_title(world)
        axes.set_xlabel("token")
    panels[0][0].set_ylabel("regret in tokens; bands: 10 to 90 % of seeds")
    panels[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(folder / "regret_worlds.png", dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def run_worlds(seeds: int, plots: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Replay and print all worlds; figures for the report, and what the default does not reach."""
    outcomes = {world: worlds.replay(world, (*worlds.SELECTORS, worlds.AUTO), seeds) for world in worlds.WORLDS}
    signals = {world: worlds.signal_table(world, seeds) for world in worlds.WORLDS}
    print_worlds(outcomes, signals)
    if plots:
        plot_worlds(plots, outcomes)
    rows = [
        {"world": world, "method": name, "mat": outcome.mat.mean(), "first": outcome.first, "last": outcome.last}
        for world, by_name in outcomes.items()
        for name, outcome in by_name.items()
    ]
    return {"rows": rows, "signal_strength": signals, "world_seeds": seeds}, worlds.failures(outcomes)


def plot(folder: Path, curves: dict[int, dict[str, np.ndarray]]) -> None:
    """Draw cumulative regret in the largest pool, and regret against N."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    largest = max(curves)
    colours = {name: pyplot.colormaps["tab20"](index % 20) for index, name in enumerate(curves[largest])}
    for file, label in (("cumulative_regret", "cycle"), ("regret_by_pool_size", "drafters in the pool")):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for name, colour in colours.items():
            if file == "cumulative_regret":
                axes.plot(curves[largest][name].mean(axis=1), label=name, color=colour)
            else:
                ends = [by_name[name][-1].mean() for by_name in curves.values()]
                axes.plot(list(curves), ends, marker="o", label=name, color=colour)
                axes.set_xscale("log", base=2)
        axes.set_xlabel(label)
        axes.set_ylabel("regret in tokens")
        axes.set_yscale("symlog", linthresh=1)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(folder / f"{file}.png", dpi=150, bbox_inches="tight")
        pyplot.close(figure)


def main() -> int:
    """Print all tables; returns 1 if a value does not agree with its reference, UCB1 exceeds its bound or the default
    fails in a world.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the curves there")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--worlds", action="store_true", help="only the four worlds")
    parser.add_argument("--quick", action="store_true", help="20 seeds")
    args = parser.parse_args()
    seeds = 20 if args.quick else args.seeds
    report, outside = run_worlds(max(seeds // 10, 5), args.plots)
    if args.worlds:
        return finish(report, outside, args.json)
    tuned = tune(max(seeds // 4, 5))
    makers = {**SELECTORS, **{f"{name}, tuned to {value:g}": make for name, (value, make) in tuned.items()}}
    curves = {size: regret_curves(makers, size, seeds) for size in SIZES}
    references = dict.fromkeys(makers, (None,) * len(SIZES)) | REFERENCE
    rows = {
        name: [(curves[size][name][-1], reference) for size, reference in zip(SIZES, references[name], strict=True)]
        for name in makers
    }
    outside += print_comparison(f"Regret in tokens after {CYCLES} cycles (reference), by pool size", SIZES, rows)
    makers = {name: SELECTORS[name] for name in NEAR_REFERENCE}
    near = {size: regret_curves(makers, size, seeds, rest=NEAR) for size in NEAR_SIZES}
    near_rows = {
        name: [(near[size][name][-1], value) for size, value in zip(NEAR_SIZES, values, strict=True)]
        for name, values in NEAR_REFERENCE.items()
    }
    outside += print_comparison("The same near a tie", NEAR_SIZES, near_rows)
    mixed = queries(max(seeds // 10, 5))
    mixed_rows = {name: [(mixed[name], value)] for name, value in QUERY_REFERENCE.items()}
    outside += print_comparison(f"Regret per cycle over {QUERIES} queries", ["regret"], mixed_rows)
    regret, bound = auer(seeds)
    console.print(
        f"UCB1 on rates {AUER_RATES}, {AUER_ROUNDS} rounds: regret {regret.mean():.1f}, Auer's bound {bound:.1f}"
    )
    if regret.mean() > bound:
        outside.append("UCB1 exceeds its bound")
    if args.plots:
        plot(args.plots, curves)
    report |= {
        "sizes": SIZES,
        "regret": {name: [float(cell.mean()) for cell, _ in cells] for name, cells in rows.items()},
        "near": {name: [float(cell.mean()) for cell, _ in cells] for name, cells in near_rows.items()},
        "queries": {name: float(cell.mean()) for name, cell in mixed.items()},
        "auer": [float(regret.mean()), bound],
        "seeds": seeds,
    }
    return finish(report, outside, args.json)


def finish(report: dict[str, Any], outside: Sequence[str], path: Path | None) -> int:
    """Write the report and print what failed; returns 1 if something did."""
    for line in outside:
        console.print(f"outside: {line}")
    if path:
        rows = report.pop("rows")
        save_record(path, "selectors", torch.device("cpu"), "float64", report, rows)
    return int(bool(outside))


if __name__ == "__main__":
    sys.exit(main())
