"""Texts whose acceptance is drawn, on which the real selectors are replayed; the regret of each, and of `drafter=auto`.

Axes: N drafters, T tokens of the text, S seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafterforge.replay.counterfactual import Counterfactual, CycleOutcomes, PlayedCycle
from drafterforge.replay.selector_play import play_selector
from drafterforge.runtime.arms import FIRST_COMPARISON, ArmKnowledge, RowArms, Stakes, common_lengths
from drafterforge.selectors import selector
from drafterforge.selectors.hindsight import signal_strength

import numpy as np

NUM_TOKENS, WINDOW = 1200, 300  # of a text; of its first and last part
DEPTH = 3  # levels of a neural drafter
CONCENTRATION = 10.0  # of the probabilities of positions around their mean
DEFAULT, TRACKER = "hedgespec", "normalhedge_discounted"  # the default and the one before it
MOST_REGRET, LEAST_MAT = 0.5, 0.95  # of the regret of the first part, where stationary; of the tracker's, in bursts
SELECTORS = (
    DEFAULT,
    "hedgespec-paper",
    "normalhedge",
    TRACKER,
    "ftl",
    "ucbspec",
    "exp3spec",
    "ucb1_sliding",
    "thompson",
    "thompson_sliding",
)
AUTO = "drafter=auto"


@dataclass(frozen=True)
class World:
    """Which tokens each drafter proposes."""

    gamma: np.ndarray  # [N, T] probability that each drafter's proposals hold the token, 1 - TV of a chain
    hits: np.ndarray  # [N, T] 1 if they do, else 0
    levels: list[int]  # that each drafter drafts

    @staticmethod
    def draw(rates: np.ndarray, levels: list[int], rng: np.random.Generator) -> World:
        """A text with probabilities around `rates` [N, T]."""
        gamma = rng.beta(CONCENTRATION * rates, CONCENTRATION * (1 - rates))
        return World(gamma, (rng.random(rates.shape) < gamma).astype(float), levels)

    def counterfactual(self) -> Counterfactual:
        """The cycles of every drafter at every position."""
        padded = np.pad(self.hits, ((0, 0), (0, max(self.levels))))
        windows = [
            np.lib.stride_tricks.sliding_window_view(row[1:], depth)[: len(row) - 1 - max(self.levels)]
            for row, depth in zip(padded, self.levels, strict=True)
        ]
        lengths = np.array([1 + window.cumprod(axis=1).sum(axis=1) for window in windows]).astype(int)
        depths = np.broadcast_to(np.array(self.levels)[:, None], lengths.shape)
        outcomes = CycleOutcomes(lengths, depths, depths + 1, np.ones_like(depths))
        names = [f"d{number}" for number in range(len(self.levels))]
        return Counterfactual(names, self.levels, 0, self.hits.shape[1], [outcomes], self.hits)


def _dwell(stay: Callable[[int], float], states: int, rng: np.random.Generator) -> np.ndarray:
    """States of a Markov chain, [T].  stay: probability that a state does not end with a token."""
    chain = [0]
    for _ in range(NUM_TOKENS - 1):
        leaves = rng.random() >= stay(chain[-1])
        chain.append(int((chain[-1] + rng.integers(1, states)) % states) if leaves else chain[-1])
    return np.array(chain)


def stationary(rng: np.random.Generator) -> World:
    """Ten drafters in random order: eight accepted at .50, one at .65, one at .25."""
    rates = rng.permutation([0.5] * 8 + [0.65, 0.25])
    return World.draw(np.repeat(rates[:, None], NUM_TOKENS, axis=1), [DEPTH] * 10, rng)


def bursty(rng: np.random.Generator) -> World:
    """Four steady drafters, two experts that take turns, and retrieval: nearly always right in bursts, else wrong."""
    rates = np.repeat(np.array([0.55, 0.6, 0.5, 0.5, 0.35, 0.35, 0.1])[:, None], NUM_TOKENS, axis=1)
    expert = _dwell(lambda _: 0.9875, 2, rng)
    rates[4 + expert, np.arange(NUM_TOKENS)] = 0.75
    burst = _dwell(lambda state: 0.9 if state else 0.96, 2, rng)
    rates[6, burst == 1] = 0.97
    return World.draw(rates, [DEPTH] * 6 + [10], rng)


def drifting(rng: np.random.Generator) -> World:
    """Six drafters accepted at .50; every 200 tokens another one is accepted at .70."""
    rates = np.full((6, NUM_TOKENS), 0.5)
    for start in range(0, NUM_TOKENS, 200):
        rates[rng.integers(6), start : start + 200] = 0.7
    return World.draw(rates, [DEPTH] * 6, rng)


def adversarial(rng: np.random.Generator) -> World:
    """Two drafters change places every 6 tokens, so that whoever followed the last ones is late; a third is steady."""
    rates = np.full((3, NUM_TOKENS), 0.6)
    turn = np.arange(NUM_TOKENS) // 6 % 2
    rates[0], rates[1] = np.where(turn == 0, 0.9, 0.2), np.where(turn == 1, 0.9, 0.2)
    return World.draw(rates, [DEPTH] * 3, rng)


WORLDS: dict[str, Callable[[np.random.Generator], World]] = {
    "stationary": stationary,
    "bursty": bursty,
    "drifting": drifting,
    "adversarial": adversarial,
}


def play_auto(answer: Counterfactual) -> list[PlayedCycle]:
    """The cycles of the drafters that `drafter=auto` wakes in an answer of which nothing is known beforehand.

    Reading a token takes 1 % of a pass of the target, as it assumes at first, and a cycle one pass.
    """
    arms = RowArms(ArmKnowledge(1.0), answer.names)
    hits = answer.accepted > 0

    def after(cycle: PlayedCycle, _: dict[str, float]) -> None:
        tokens = cycle.position + cycle.accept_length
        if not arms.is_due(tokens):
            return
        stakes = Stakes(remaining_s=max(tokens, FIRST_COMPARISON) / 2.0, cycle_s=1.0, neural_share=1.0)
        unread = {name: tokens for name in arms.names if name != arms.incumbent}
        if name := arms.challenger(tokens, unread, stakes):
            rows = (hits[answer.names.index(drafter), : tokens + 1] for drafter in (name, arms.incumbent))
            if (lengths := common_lengths(*rows, DEPTH)) is not None:
                arms.compare(name, *lengths)
            if arms.lead(name, stakes) > 0:
                arms.incumbent = name

    return answer.play(lambda _: answer.names.index(arms.incumbent), after)


@dataclass(frozen=True)
class Outcome:
    """Replays of one selector on the texts of a world."""

    mat: np.ndarray  # [S]
    best_mat: np.ndarray  # of the best drafter in hindsight, [S]
    regrets: np.ndarray  # cumulative tokens lost against that drafter, [S, T]

    @property
    def first(self) -> float:
        """Mean regret of the first part."""
        return float(self.regrets[:, WINDOW - 1].mean())

    @property
    def last(self) -> float:
        """Mean regret of the last part."""
        return float((self.regrets[:, -1] - self.regrets[:, -1 - WINDOW]).mean())


def _cycles_by_token(cycles: Sequence[PlayedCycle]) -> np.ndarray:
    """Cycles that the tokens up to each one took, fractions of the last included, [T]."""
    return np.concatenate([np.full(c.accept_length, 1 / c.accept_length) for c in cycles] + [np.zeros(1)]).cumsum()


def replay(world: str, names: Sequence[str], seeds: int) -> dict[str, Outcome]:
    """Replay selectors, all on the same texts."""
    parts: dict[str, list[tuple[float, float, np.ndarray]]] = {name: [] for name in names}
    for seed in range(seeds):
        answer = WORLDS[world](np.random.default_rng([seed, 7])).counterfactual()
        fewest = int(np.argmin([answer.cycles(drafter) for drafter in range(len(answer.names))]))
        best = answer.play(lambda _, drafter=fewest: drafter)
        mat = answer.num_tokens / len(best)
        for name in names:
            if name == AUTO:
                played = play_auto(answer)
            else:
                chooser = selector(name, answer.names, max(answer.depths), levels=answer.depths, seed=seed)
                played = play_selector(chooser, answer)
            regret = mat * (_cycles_by_token(played) - _cycles_by_token(best))
            parts[name].append((answer.num_tokens / len(played), mat, regret))
    return {name: Outcome(*(np.array(column) for column in zip(*rows, strict=True))) for name, rows in parts.items()}


def failures(outcomes: dict[str, dict[str, Outcome]]) -> list[str]:
    """What the default does not reach: sublinear regret where stationary, and the tracker's MAT in bursts."""
    lines = []
    steady, burst = outcomes["stationary"][DEFAULT], outcomes["bursty"]
    if steady.last > MOST_REGRET * steady.first:
        lines.append(
            f"stationary, {DEFAULT}: regret {steady.first:.1f} of the first tokens, {steady.last:.1f} of the last"
        )
    share = burst[DEFAULT].mat.mean() / burst[TRACKER].mat.mean()
    if share < LEAST_MAT:
        lines.append(f"bursty, {DEFAULT}: {share:.3f} of the MAT of {TRACKER}")
    return lines


def signal_table(world: str, seeds: int) -> dict[str, tuple[float, float]]:
    """MetaSD's signal strength by the rewards BE and BD: its median over drafters and seeds, and BD's share of wins."""
    efficiency, overlap = [], []
    for seed in range(seeds):
        text = WORLDS[world](np.random.default_rng([seed, 7]))
        lengths = text.counterfactual().outcomes[0].accept_length
        levels = np.array(text.levels)[:, None]
        sums = np.pad(text.gamma[:, 1:], ((0, 0), (1, max(text.levels)))).cumsum(axis=1)
        roots = np.arange(lengths.shape[1])
        means = (np.take_along_axis(sums, roots + levels, axis=1) - sums[:, roots]) / levels
        full = lengths.shape[1] - max(text.levels)  # later trees end with the text
        best = int(lengths.mean(axis=1).argmax())
        efficiency.append(np.delete(signal_strength(((lengths - 1) / levels)[:, :full], best), best))
        overlap.append(np.delete(signal_strength(means[:, :full], best), best))
    be, bd = np.concatenate(efficiency), np.concatenate(overlap)
    rewards = {"BE": (be, bd), "BD": (bd, be)}
    return {name: (float(np.median(mine)), float((mine > rival).mean())) for name, (mine, rival) in rewards.items()}
