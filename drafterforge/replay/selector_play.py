"""Replays selectors on a stream of answers, and compares them with the best drafter of each answer in hindsight.

Axes: Q answers, N drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from drafterforge.errors import DrafterforgeError
from drafterforge.replay.counterfactual import Counterfactual, PlayedCycle
from drafterforge.selectors import selector as build_selector
from drafterforge.selectors.base import Context, Evaluation, Feedback, Selector

Cycles = list[PlayedCycle]  # of one answer
# Constants that tuning tries, on other prompts than those reported; `naming.result_name` says where results are tuned.
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "normalhedge_discounted": {"discount": (0.9, 0.8, 0.7, 0.5)},
    "ucb1": {"c": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "ucb1_sliding": {"c": (0.02, 0.05, 0.1, 0.2, 0.5), "window": (20, 50)},
    "ucb1_discounted": {"c": (0.02, 0.05, 0.1, 0.2, 0.5), "discount": (0.9, 0.98)},
    "ucbspec": {"scale": (0.01, 0.03, 0.1, 0.3, 1.0)},
    "exp3spec": {"scale": (0.3, 1.0, 2.0, 5.0, 10.0)},
    "thompson": {"decay": (1.0, 0.98, 0.9)},
    "thompson_sliding": {"window": (20, 50, 100)},
    "metasd_ucb": {"beta": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "metasd_exp3": {"scale": (0.3, 1.0, 2.0, 5.0, 10.0)},
    "metasd_halving": {"budget": (8, 16, 32)},
}


@dataclass(frozen=True)
class RecordedAnswers:
    """Counterfactuals of answers, with the cycles of each drafter alone."""

    counterfactuals: list[Counterfactual]
    prompts: list[list[int]]
    indices: list[int]  # of these answers in the original list
    static: np.ndarray  # [Q, N] cycles
    advice: list[np.ndarray] | None = None  # distribution of a router for each prompt, [N]

    @staticmethod
    def of(counterfactuals: Sequence[Counterfactual], prompts: Sequence[list[int]]) -> RecordedAnswers:
        """From counterfactuals of one pool; answers of one token have no cycle and are left out."""
        indices = [index for index, answer in enumerate(counterfactuals) if answer.num_tokens > 0]
        if not indices:
            raise DrafterforgeError(
                f"none of {len(counterfactuals)} answers has a second token; there is nothing to draft"
            )
        answers = [counterfactuals[index] for index in indices]
        static = np.array([[answer.cycles(n) for n in range(len(answer.names))] for answer in answers])
        return RecordedAnswers(answers, [list(prompts[index]) for index in indices], indices, static)

    def select(self, answers: Sequence[int]) -> RecordedAnswers:
        return RecordedAnswers(
            [self.counterfactuals[q] for q in answers],
            [self.prompts[q] for q in answers],
            [self.indices[q] for q in answers],
            self.static[list(answers)],
            None if self.advice is None else [self.advice[q] for q in answers],
        )

    @property
    def names(self) -> list[str]:
        return self.counterfactuals[0].names

    @property
    def tokens(self) -> np.ndarray:
        """Tokens emitted by cycles, [Q]."""
        return np.array([answer.num_tokens for answer in self.counterfactuals])

    def run(self, make: Callable[[], Selector]) -> list[Cycles]:
        """Replay one selector on all answers in order."""
        selector, advice = make(), self.advice or [None] * len(self.prompts)
        return [
            play_selector(selector, *inputs) for inputs in zip(self.counterfactuals, self.prompts, advice, strict=True)
        ]

    def distributions(self, make: Callable[[], Selector], answer: int) -> np.ndarray:
        """A selector's distributions over drafters in one answer, after all earlier answers, [cycles, N]."""
        selector, advice = make(), self.advice or [None] * len(self.prompts)
        for q in range(answer + 1):
            distributions: list[np.ndarray] = []
            play_selector(selector, self.counterfactuals[q], self.prompts[q], advice[q], distributions)
        return np.array(distributions)

    def of_drafters(self, drafters: Sequence[int]) -> RecordedAnswers:
        """The answers with some of the drafters, without router advice, which was for all of them."""
        rows = list(drafters)
        return replace(
            self,
            counterfactuals=[answer.select(rows) for answer in self.counterfactuals],
            static=self.static[:, rows],
            advice=None,
        )

    def table(self, played: Sequence[Cycles]) -> dict[str, list]:
        """Replayed cycles as columns of a table.

        request: index of the answer in the original list.  position: of the cycle's root in prompt and answer.
        """
        rows = [
            (index, number, self.names[cycle.drafter], *cycle[1:])
            for index, cycles in zip(self.indices, played, strict=True)
            for number, cycle in enumerate(cycles)
        ]
        columns = ("request", "cycle", "drafter", *PlayedCycle._fields[1:])
        return {name: [row[column] for row in rows] for column, name in enumerate(columns)}

    def maker(self, name: str, **options: Any) -> Callable[[], Selector]:
        """A factory of the selector `name` for this pool."""
        levels = self.counterfactuals[0].depths
        return lambda: build_selector(name, self.names, max(1, *levels), levels=levels, **options)

    def alone(self, drafter: int) -> list[Cycles]:
        """Replay one drafter on all answers."""
        return [answer.play(lambda _: drafter) for answer in self.counterfactuals]

    def hindsight(self) -> list[Cycles]:
        """Replay each answer with the drafter that takes the fewest cycles for it."""
        best = self.static.argmin(axis=1)
        return [
            answer.play(lambda _, drafter=drafter: drafter)
            for answer, drafter in zip(self.counterfactuals, best, strict=True)
        ]

    def figures(self, played: Sequence[Cycles]) -> dict[str, Any]:
        """MAT, regret and switching of replayed cycles."""
        counts = np.array([len(cycles) for cycles in played])
        best = self.static.min(axis=1)
        on_best = sum(self.static[q, cycle.drafter] == best[q] for q, cycles in enumerate(played) for cycle in cycles)
        switches = sum(before.drafter != after.drafter for cycles in played for before, after in pairwise(cycles))
        regret = counts - best
        return {
            "num_prompts": len(played),
            "num_tokens": int(self.tokens.sum()),
            "num_cycles": int(counts.sum()),
            "mat": float(self.tokens.sum() / counts.sum()),
            "of_hindsight": float((best / counts).mean()),  # mean over answers of MAT over that of the best drafter
            "regret_cycles": float(regret.mean()),
            "regret_tokens": float((regret * self.tokens / best).mean()),
            "share_on_best": float(on_best / counts.sum()),
            "switches_per_cycle": float(switches / counts.sum()),
        }

    def paired_p(self, ours: Sequence[Cycles], theirs: Sequence[Cycles]) -> float | None:
        """One-sided Wilcoxon signed-rank p that `ours` has no higher MAT per answer; None if they are equal."""
        mats = [self.tokens / np.array([len(cycles) for cycles in played]) for played in (ours, theirs)]
        if np.array_equal(*mats):
            return None
        return float(wilcoxon(*mats, alternative="greater").pvalue)


def accept_rate(played: Sequence[Cycles]) -> float | None:
    """Emitted drafted tokens over drafted levels; None if nothing was drafted."""
    cycles = [cycle for answer in played for cycle in answer]
    drafted = sum(cycle.depth for cycle in cycles)
    return sum(cycle.accept_length - 1 for cycle in cycles) / drafted if drafted else None


def tune_options(
    recorded: RecordedAnswers, name: str, grids: Mapping[str, Mapping[str, Sequence[Any]]] = GRIDS, seed: int = 0
) -> dict[str, Any]:
    """Options of a selector with the fewest cycles on these answers; empty for a selector without a grid."""
    grid = grids.get(name, {})
    choices = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    totals = [sum(map(len, recorded.run(recorded.maker(name, seed=seed, **options)))) for options in choices]
    return choices[int(np.argmin(totals))]


def play_selector(
    selector: Selector,
    counterfactual: Counterfactual,
    prompt: Sequence[int] = (),
    advice: np.ndarray | None = None,
    distributions: list[np.ndarray] | None = None,
) -> list[PlayedCycle]:
    """Replay a selector, with the feedback of an engine that decodes one request at a time.

    advice: distribution of a router for the prompt, [N].  distributions: the selector's distribution of each cycle is
    appended to it, [N].
    """
    needs = selector.needs
    if (needs.coverage or needs.overlap) and counterfactual.outcomes[0].coverage is None:
        raise DrafterforgeError(f"{selector.name} needs counterfactuals with branches; record them with branches=True")
    if needs.prompt and counterfactual.prompt_hit_rates is None:
        raise DrafterforgeError(
            f"{selector.name} needs counterfactuals with hit rates on prompts; record them with record_answers"
        )
    cycles = 0

    def pick(root: int) -> int:
        choice = selector.select(Context(cycles, root - counterfactual.begin))
        if distributions is not None:
            distributions.append(choice.probs)
        return choice.drafter

    def after(cycle: PlayedCycle, branch: dict[str, float]) -> None:
        nonlocal cycles
        cycles += 1
        first = cycle.position + 1
        accepted = counterfactual.accepted[:, first : first + cycle.accept_length]
        selector.observe(
            Feedback(
                cycle.drafter,
                first,
                cycle.accept_length,
                cycle.depth,
                evaluation=Evaluation(first, accepted, accepted) if selector.needs.evaluation else None,
                **branch,
            )
        )

    if advice is not None:
        selector.advise(advice)
    if needs.prompt:
        selector.read_prompt(counterfactual.prompt_hit_rates)
    selector.begin(list(prompt))
    played = counterfactual.play(pick, after)
    selector.end()
    return played
