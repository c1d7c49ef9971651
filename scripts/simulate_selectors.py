"""Regret of every selector in a simulated pool, beside the reference table, with tuned and untuned constants.

    python scripts/simulate_selectors.py [--plots FOLDER] [--json PATH] [--quick]

The world: a pool of N drafters, K levels, and in every cycle a fresh acceptance probability for each drafter and level
from Beta(10 m, 10 (1 - m)), where m is .75 for one drafter and .60 for the others (or .72, the near tie).  Bandits see
the accept length of the drafter they played; learners see all drafters, two cycles late.  Regret is the expected tokens
lost against always playing the best.  The world is the same in every cycle and the plug-in estimator is exact in it, so
it says nothing about either.
Axes: S seeds, N drafters, K levels, T cycles.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from drafterforge.selectors.estimators import expected_length, geometric_length, length_loss
from drafterforge.selectors.exp3 import exp3_law
from drafterforge.selectors.learners.adanormalhedge import adanormalhedge_law
from drafterforge.selectors.learners.hedge import hedge_law, hedge_rate
from drafterforge.selectors.learners.normalhedge import TOLERANCE
from drafterforge.selectors.learners.squint import squint_law
from drafterforge.selectors.ucb import ucb1_scores, ucbspec_scores

DEPTH, CYCLES, DELAY = 5, 400, 2
BEST, OTHERS, NEAR = 0.75, 0.60, 0.72
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
AUER_RATES, AUER_ROUNDS = (0.3, 0.7, 0.5), 10_000

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


class Rule:
    """A selector for S seeds at once."""

    def reset(self, seeds: int, num_drafters: int) -> None:
        """Begin: nothing is known."""
        self.shape = seeds, num_drafters
        self.rows = np.arange(seeds)
        self.rounds = 0

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The drafters of the next cycle, [S]."""
        raise NotImplementedError

    def observe(self, chosen: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        """What the cycle showed: chosen and accept length [S], gamma of all drafters [S, N, K]."""

    def sample(self, probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Drafters drawn from laws [S, N], [S]."""
        ends = probs.cumsum(axis=1)
        return (ends <= rng.random((len(ends), 1)) * ends[:, -1:]).sum(axis=1)


class Uniform(Rule):
    """Any drafter."""

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """Drafters drawn, [S]."""
        return rng.integers(0, self.shape[1], self.shape[0])


class Fixed(Rule):
    """The best drafter of each seed, told beforehand: an oracle."""

    def __init__(self, drafters: np.ndarray) -> None:
        """drafters: [S]."""
        self.drafters = drafters

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The drafters, [S]."""
        return self.drafters


@dataclass
class Regrets:
    """What learners keep, each [S, N], and the rounds seen."""

    sums: np.ndarray
    spreads: np.ndarray
    squares: np.ndarray
    rounds: int


def normalhedge_rows(regrets: np.ndarray) -> np.ndarray:
    """NormalHedge's laws [S, N] of regrets [S, N]: `normalhedge_law` for many rows at once."""
    positive = np.maximum(regrets, 0.0)
    top = positive.max(axis=1, keepdims=True)
    some = top > 0
    share = positive / np.where(some, top, 1.0)
    square = share**2
    s = np.full(top.shape, np.log(regrets.shape[1] * (np.e - 1) + 1))
    for _ in range(60):
        terms = np.exp(s * (square - 1.0))
        total = terms.sum(axis=1, keepdims=True)
        slope = np.where(some, (terms * square).sum(axis=1, keepdims=True), 1.0)
        step = (np.log(total / regrets.shape[1]) + s - 1.0) * total / slope
        s = np.maximum(s - step, 1.0)
        if (np.abs(step) <= TOLERANCE * s)[some].all():
            break
    weights = np.where(some, share * np.exp(s * (square - 1.0)), 1.0)
    return weights / weights.sum(axis=1, keepdims=True)


class FullInformation(Rule):
    """A learner whose losses come late; each is scored against the law that was played."""

    def __init__(self, law: Callable[[Regrets], np.ndarray], draw: str = "sample", discount: float = 1.0) -> None:
        """law: [S, N] of the regrets."""
        self.law, self.draw, self.discount = law, draw, discount

    def reset(self, seeds: int, num_drafters: int) -> None:
        """Begin: no regrets, nothing waits."""
        super().reset(seeds, num_drafters)
        self.regrets = Regrets(*(np.zeros(self.shape) for _ in range(3)), 0)
        self.waiting: deque[tuple[np.ndarray, np.ndarray]] = deque()

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The likeliest drafters, or drawn ones, [S]."""
        self.probs = self.law(self.regrets)
        return self.probs.argmax(axis=1) if self.draw == "argmax" else self.sample(self.probs, rng)

    def observe(self, chosen: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        """Queue the losses; learn those that have waited long enough."""
        self.waiting.append((self.probs, length_loss(expected_length(gamma, gamma), gamma.shape[-1])))
        if len(self.waiting) <= DELAY:
            return
        probs, losses = self.waiting.popleft()
        new = (probs * losses).sum(axis=1, keepdims=True) - losses
        kept, known = self.discount, self.regrets
        self.regrets = Regrets(
            kept * known.sums + new, kept * known.spreads + np.abs(new), kept * known.squares + new**2, known.rounds + 1
        )


class Bandit(Rule):
    """Rewards in [0, 1] of the drafter played: `efficiency`, or mean acceptance probability, `divergence`."""

    reward = "efficiency"

    def reset(self, seeds: int, num_drafters: int) -> None:
        """Begin: no rewards."""
        super().reset(seeds, num_drafters)
        self.sums, self.counts = np.zeros(self.shape), np.zeros(self.shape)

    def observe(self, chosen: np.ndarray, length: np.ndarray, gamma: np.ndarray) -> None:
        """Add the rewards."""
        self.depth = gamma.shape[-1]
        divergence = gamma[self.rows, chosen].mean(axis=1)
        reward = divergence if self.reward == "divergence" else (length - 1) / self.depth
        self.learn(chosen, reward)
        self.rounds += 1

    def learn(self, chosen: np.ndarray, reward: np.ndarray) -> None:
        """Count drafters and rewards [S]."""
        self.sums[self.rows, chosen] += reward
        self.counts[self.rows, chosen] += 1

    @property
    def means(self) -> np.ndarray:
        """Mean rewards, [S, N]."""
        return self.sums / np.maximum(self.counts, 1.0)


class UCB1(Bandit):
    """The room's UCB1, and MetaSD's."""

    def __init__(self, c: float = 1.0, reward: str = "efficiency") -> None:
        """c: how much to explore."""
        self.c, self.reward = c, reward

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The highest bounds, [S]."""
        return ucb1_scores(self.means, self.counts, self.rounds, self.c).argmax(axis=1)


class UCBSpec(Bandit):
    """The room's UCBSpec."""

    def __init__(self, scale: float = 1.0, delta: float = 0.05) -> None:
        """scale: of the radius."""
        self.scale, self.delta = scale, delta

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The highest bounds, [S]."""
        means = 1.0 + DEPTH * self.means
        return ucbspec_scores(means, self.counts, self.rounds, DEPTH, self.delta, self.scale).argmax(axis=1)


class Thompson(Bandit):
    """The room's Thompson sampling, fractional."""

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """The highest draws, [S]."""
        return rng.beta(1.0 + self.sums, 1.0 + self.counts - self.sums).argmax(axis=1)


class Exp3(Bandit):
    """The room's EXP3Spec, and MetaSD's."""

    def __init__(self, scale: float = 1.0, reward: str = "efficiency") -> None:
        """scale: of the rate."""
        self.scale, self.reward = scale, reward

    def select(self, rng: np.random.Generator) -> np.ndarray:
        """Drafters drawn, [S]; `sums` are estimated losses."""
        self.probs = exp3_law(self.sums, self.rounds, self.scale)
        return self.sample(self.probs, rng)

    def learn(self, chosen: np.ndarray, reward: np.ndarray) -> None:
        """Divide the losses by the probabilities of what was played."""
        self.sums[self.rows, chosen] += (1.0 - reward) / self.probs[self.rows, chosen]


def normalhedge(draw: str = "sample", discount: float = 1.0) -> Rule:
    """NormalHedge."""
    return FullInformation(lambda regrets: normalhedge_rows(regrets.sums), draw, discount)


def hedge(horizon: int = CYCLES) -> Rule:
    """Hedge with the best rate for `horizon` rounds."""
    return FullInformation(lambda r: hedge_law(r.sums, hedge_rate(r.sums.shape[1], horizon)))


RULES: dict[str, Callable[[], Rule]] = {
    "NormalHedge sample": normalhedge,
    "NormalHedge argmax": lambda: normalhedge("argmax"),
    "FTL argmax": lambda: FullInformation(lambda r: np.eye(r.sums.shape[1])[r.sums.argmax(axis=1)], "argmax"),
    "AdaNormalHedge": lambda: FullInformation(lambda r: adanormalhedge_law(r.sums, r.spreads)),
    "Squint": lambda: FullInformation(lambda r: squint_law(r.sums, r.squares)),
    "Hedge": hedge,
    "Thompson": Thompson,
    "UCBSpec": UCBSpec,
    "UCB1": UCB1,
    "MetaSD-UCB": lambda: UCB1(reward="divergence"),
    "EXP3Spec": Exp3,
    "random": Uniform,
}
TUNED: dict[str, tuple[Sequence[float], Callable[[float], Rule]]] = {
    "UCBSpec": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda scale: UCBSpec(scale)),
    "UCB1": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda c: UCB1(c)),
    "MetaSD-UCB": ((0.02, 0.05, 0.1, 0.2, 0.3), lambda beta: UCB1(beta, "divergence")),
    "EXP3Spec": ((2.0, 4.0, 8.0, 16.0, 32.0), lambda scale: Exp3(scale)),
}


def simulate(
    rules: dict[str, Rule],
    best: np.ndarray,
    num_drafters: int,
    cycles: int,
    rng: np.random.Generator,
    others: float = OTHERS,
    depth: int = DEPTH,
) -> dict[str, np.ndarray]:
    """Regret of each cycle in tokens, [T, S], of rules in the same world; they go on from where they are.

    best: the best drafter of each seed, [S].
    """
    seeds = len(best)
    rows = np.arange(seeds)
    rates = np.full((seeds, num_drafters), others)
    rates[rows, best] = BEST
    means = geometric_length(rates, depth)
    lost = means.max(axis=1, keepdims=True) - means
    found = {name: np.empty((cycles, seeds)) for name in rules}
    for cycle in range(cycles):
        gamma = rng.beta(10 * rates[..., None], 10 * (1 - rates[..., None]), (seeds, num_drafters, depth))
        noise = rng.random((seeds, depth))
        for name, rule in rules.items():
            chosen = rule.select(rng)
            accepted = noise < gamma[rows, chosen]
            rule.observe(chosen, 1 + accepted.cumprod(axis=1).sum(axis=1), gamma)
            found[name][cycle] = lost[rows, chosen]
    return found


def regret_curves(
    makers: dict[str, Callable[[], Rule]],
    num_drafters: int,
    seeds: int,
    cycles: int = CYCLES,
    others: float = OTHERS,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Cumulative regret in tokens, [T, S], of rules that begin anew; which drafter is the best differs by seed."""
    rng = np.random.default_rng([seed, num_drafters])
    rules = {name: make() for name, make in makers.items()}
    for rule in rules.values():
        rule.reset(seeds, num_drafters)
    best = rng.integers(0, num_drafters, seeds)
    found = simulate(rules, best, num_drafters, cycles, rng, others)
    return {name: lost.cumsum(axis=0) for name, lost in found.items()}


def queries(seeds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Mean regret per cycle, [S], over queries whose best drafters differ, with and without a reset before each."""
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
    rules = {name: make() for name, make in makers.items()}
    totals = {name: np.zeros(seeds) for name in rules}
    for query in range(QUERIES):
        for name, rule in rules.items():
            if query == 0 or "reset" in name:
                rule.reset(seeds, QUERY_SIZE)
        best = rng.integers(0, QUERY_SIZE, seeds)
        for name, lost in simulate(rules, best, QUERY_SIZE, QUERY_CYCLES, rng).items():
            totals[name] += lost.sum(axis=0)
    return {name: total / (QUERIES * QUERY_CYCLES) for name, total in totals.items()}


def auer(seeds: int, rounds: int = AUER_ROUNDS, seed: int = 0) -> tuple[np.ndarray, float]:
    """Regret of UCB1 on Bernoulli arms after all rounds, [S], and Auer's bound on its mean."""
    rng = np.random.default_rng([seed, rounds])
    rates = np.array(AUER_RATES)
    gaps = rates.max() - rates
    rule = UCB1()
    rule.reset(seeds, len(rates))
    lost = np.zeros(seeds)
    for _ in range(rounds):
        chosen = rule.select(rng)
        rule.learn(chosen, rng.random(seeds) < rates[chosen])
        rule.rounds += 1
        lost += gaps[chosen]
    worse = gaps[gaps > 0]
    return lost, float((8 * np.log(rounds) / worse).sum() + (1 + np.pi**2 / 3) * worse.sum())


def tuned(seeds: int) -> dict[str, tuple[float, Callable[[], Rule]]]:
    """The best of each bandit's constants over all pool sizes, found on seeds of their own."""
    makers = {
        f"{name} {value}": (lambda make=make, value=value: make(value))
        for name, (values, make) in TUNED.items()
        for value in values
    }
    totals = dict.fromkeys(makers, 0.0)
    for size in SIZES:
        curves = regret_curves(makers, size, seeds, seed=1)
        totals = {name: total + curves[name][-1].mean() for name, total in totals.items()}
    found = {}
    for name, (values, make) in TUNED.items():
        value = min(values, key=lambda value: totals[f"{name} {value}"])
        found[name] = value, lambda make=make, value=value: make(value)
    return found


def agrees(measured: np.ndarray, reference: float) -> bool:
    """Within 15 % of the reference, or 4 standard errors of the difference of two such means.  measured: [S]."""
    error = np.std(measured, ddof=1) * np.sqrt(2 / len(measured))
    return abs(measured.mean() - reference) <= max(0.15 * reference, 4 * error)


def _compare(title: str, columns: Sequence[Any], rows: dict[str, list[tuple[np.ndarray, float | None]]]) -> list[str]:
    """Print measured and reference; returns what lies outside."""
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


def plot(folder: Path, curves: dict[int, dict[str, np.ndarray]]) -> None:
    """Draw cumulative regret in the largest pool, and regret against N."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plots needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    largest = max(curves)
    colours = {name: pyplot.colormaps["tab20"](place % 20) for place, name in enumerate(curves[largest])}
    for file, label in (("cumulative_regret", "cycle"), ("regret_by_pool_size", "drafters in the pool")):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for name, colour in colours.items():
            if file == "cumulative_regret":
                axes.plot(curves[largest][name].mean(axis=1), label=name, color=colour)
            else:
                ends = [found[name][-1].mean() for found in curves.values()]
                axes.plot(list(curves), ends, marker="o", label=name, color=colour)
                axes.set_xscale("log", base=2)
        axes.set_xlabel(label)
        axes.set_ylabel("regret in tokens")
        axes.set_yscale("symlog", linthresh=1)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(folder / f"{file}.png", dpi=150, bbox_inches="tight")
        pyplot.close(figure)


def main() -> int:
    """Print all tables; 1 if an entry lies outside the reference or UCB1 above its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the curves there; needs matplotlib")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="20 seeds")
    args = parser.parse_args()
    seeds = 20 if args.quick else args.seeds
    choices = tuned(max(seeds // 4, 5))
    makers = {**RULES, **{f"{name}, {value:g}": make for name, (value, make) in choices.items()}}
    curves = {size: regret_curves(makers, size, seeds) for size in SIZES}
    references = dict.fromkeys(makers, (None,) * len(SIZES)) | REFERENCE
    rows = {
        name: [(curves[size][name][-1], reference) for size, reference in zip(SIZES, references[name], strict=True)]
        for name in makers
    }
    outside = _compare(f"Regret in tokens after {CYCLES} cycles (reference), by pool size", SIZES, rows)
    makers = {name: RULES[name] for name in NEAR_REFERENCE}
    near = {size: regret_curves(makers, size, seeds, others=NEAR) for size in NEAR_SIZES}
    near_rows = {
        name: [(near[size][name][-1], value) for size, value in zip(NEAR_SIZES, values, strict=True)]
        for name, values in NEAR_REFERENCE.items()
    }
    outside += _compare("The same near a tie", NEAR_SIZES, near_rows)
    mixed = queries(max(seeds // 10, 5))
    mixed_rows = {name: [(mixed[name], value)] for name, value in QUERY_REFERENCE.items()}
    outside += _compare(f"Regret per cycle over {QUERIES} queries", ["regret"], mixed_rows)
    lost, bound = auer(seeds)
    console.print(
        f"UCB1 on rates {AUER_RATES}, {AUER_ROUNDS} rounds: regret {lost.mean():.1f}, Auer's bound {bound:.1f}"
    )
    for line in outside:
        console.print(f"outside: {line}")
    if args.json:
        figures = {name: [float(cell.mean()) for cell, _ in cells] for name, cells in rows.items()}
        near_figures = {name: [float(cell.mean()) for cell, _ in cells] for name, cells in near_rows.items()}
        mixed_figures = {name: float(cell.mean()) for name, cell in mixed.items()}
        report = {"sizes": SIZES, "regret": figures, "near": near_figures, "queries": mixed_figures}
        args.json.write_text(
            json.dumps({**report, "auer": [float(lost.mean()), bound], "seeds": seeds}, indent=2) + "\n"
        )
    if args.plots:
        plot(args.plots, curves)
    return int(bool(outside) or lost.mean() > bound)


if __name__ == "__main__":
    sys.exit(main())
