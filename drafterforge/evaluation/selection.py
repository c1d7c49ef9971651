"""How selectors fare on a stream of answers, against the best drafter of each answer in hindsight.

Axes: Q answers, N drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from drafterforge.errors import DrafterforgeError
from drafterforge.evaluation.story import Story, replay
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Selector

Cycles = list[tuple[int, int]]  # of one answer: drafter and tokens emitted
# Constants that the papers leave open, and NormalHedge's variants: tuned on answers of other prompts than reported.
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "normalhedge": {"hybrid": (False, True), "discount": (1.0, 0.9, 0.8, 0.7, 0.5)},
    "ucb1": {"c": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "ucb1_sliding": {"c": (0.02, 0.05, 0.1, 0.2, 0.5), "window": (20, 50)},
    "ucb1_discounted": {"c": (0.02, 0.05, 0.1, 0.2, 0.5), "discount": (0.9, 0.98)},
    "ucbspec": {"scale": (0.01, 0.03, 0.1, 0.3, 1.0)},
    "exp3spec": {"scale": (0.3, 1.0, 2.0, 5.0, 10.0)},
    "thompson": {"decay": (1.0, 0.98, 0.9)},
    "metasd_ucb": {"beta": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "metasd_exp3": {"scale": (0.3, 1.0, 2.0, 5.0, 10.0)},
    "metasd_halving": {"budget": (8, 16, 32)},
}


@dataclass(frozen=True)
class Contest:
    """Answers, and how many cycles each drafter alone takes for them."""

    stories: list[Story]
    prompts: list[list[int]]
    places: list[int]  # of these answers among those given
    static: np.ndarray  # [Q, N] cycles
    advice: list[np.ndarray] | None = None  # a router's law for each prompt, [N]

    @staticmethod
    def of(stories: Sequence[Story], prompts: Sequence[list[int]]) -> Contest:
        """From stories of one pool; answers of one token take no cycle and are left out."""
        places = [place for place, story in enumerate(stories) if story.end - 1 > story.begin]
        if not places:
            raise DrafterforgeError(f"none of {len(stories)} answers has a second token; there is nothing to draft")
        kept = [stories[place] for place in places]
        static = np.array([[story.cycles(n) for n in range(len(story.names))] for story in kept])
        return Contest(kept, [list(prompts[place]) for place in places], places, static)

    def select(self, answers: Sequence[int]) -> Contest:
        """Some of the answers."""
        return Contest(
            [self.stories[q] for q in answers],
            [self.prompts[q] for q in answers],
            [self.places[q] for q in answers],
            self.static[list(answers)],
            None if self.advice is None else [self.advice[q] for q in answers],
        )

    @property
    def names(self) -> list[str]:
        """The drafters."""
        return self.stories[0].names

    @property
    def tokens(self) -> np.ndarray:
        """Tokens that cycles emit, [Q]."""
        return np.array([story.end - 1 - story.begin for story in self.stories])

    def run(self, make: Callable[[], Selector]) -> list[Cycles]:
        """One selector through all answers in order."""
        selector, advice = make(), self.advice or [None] * len(self.stories)
        return [replay(selector, *told) for told in zip(self.stories, self.prompts, advice, strict=True)]

    def maker(self, name: str, **options: Any) -> Callable[[], Selector]:
        """Makes the selector `name` for this pool."""
        levels = self.stories[0].depths
        return lambda: build_selector(name, self.names, max(1, *levels), levels=levels, **options)

    def alone(self, drafter: int) -> list[Cycles]:
        """One drafter through all answers."""
        return [story.play(lambda _: drafter) for story in self.stories]

    def hindsight(self) -> list[Cycles]:
        """Each answer by the drafter that takes the fewest cycles for it."""
        best = self.static.argmin(axis=1)
        return [
            story.play(lambda _, drafter=drafter: drafter) for story, drafter in zip(self.stories, best, strict=True)
        ]

    def figures(self, played: Sequence[Cycles]) -> dict[str, Any]:
        """MAT, regret and switching of what was played."""
        cycles = np.array([len(one) for one in played])
        best = self.static.min(axis=1)
        on_best = sum(self.static[q, n] == best[q] for q, one in enumerate(played) for n, _ in one)
        switches = sum(before[0] != after[0] for one in played for before, after in pairwise(one))
        regret = cycles - best
        return {
            "num_prompts": len(played),
            "num_tokens": int(self.tokens.sum()),
            "num_cycles": int(cycles.sum()),
            "mat": float(self.tokens.sum() / cycles.sum()),
            "of_hindsight": float((best / cycles).mean()),  # MAT of a query over the best drafter's, averaged
            "regret_cycles": float(regret.mean()),
            "regret_tokens": float((regret * self.tokens / best).mean()),
            "share_on_best": float(on_best / cycles.sum()),
            "switches_per_cycle": float(switches / cycles.sum()),
        }

    def paired_p(self, ours: Sequence[Cycles], theirs: Sequence[Cycles]) -> float | None:
        """Wilcoxon signed-rank p that `ours` has no higher MAT per answer, one-sided; None if they never differ."""
        mats = [self.tokens / np.array([len(one) for one in played]) for played in (ours, theirs)]
        if np.array_equal(*mats):
            return None
        return float(wilcoxon(*mats, alternative="greater").pvalue)


def tuned(
    contest: Contest, name: str, grids: Mapping[str, Mapping[str, Sequence[Any]]] = GRIDS, seed: int = 0
) -> dict[str, Any]:
    """Constants of the selector with the fewest cycles on these answers; none for one without a grid."""
    grid = grids.get(name, {})
    choices = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    totals = [sum(map(len, contest.run(contest.maker(name, seed=seed, **one)))) for one in choices]
    return choices[int(np.argmin(totals))]
