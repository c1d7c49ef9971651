"""Compares the settings of a study after equal training time, and tells leads from differences between seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

SETUP = ("device", "dtype", "target")  # equal in all runs of a study
Run = Mapping[str, Any]
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The settings of one study after equal training time."""

    seconds: float  # training time of the fastest setting
    lengths: dict[str, float]  # accept length by setting, best first; without settings not validated by then
    base: str | None  # None if it was not validated by then
    seed_spread: float | None  # accept lengths of equal settings differ by this much; None if not measured

    @property
    def best(self) -> str:
        """The setting of the greatest accept length."""
        return next(iter(self.lengths))

    @property
    def rival(self) -> str | None:
        """The base, or the second best if the base is the best."""
        if self.base and self.best != self.base:
            return self.base
        return list(self.lengths)[1] if len(self.lengths) > 1 else None

    @property
    def lead(self) -> float:
        """Of the best over its rival."""
        return self.lengths[self.best] - self.lengths[self.rival] if self.rival else 0.0

    @property
    def recommended(self) -> str:
        """The best setting, or the base if the lead is within the spread of seeds."""
        by_chance = self.seed_spread is not None and self.lead <= self.seed_spread
        return self.base if self.base and by_chance else self.best


def compare(report: Report, name: str) -> Comparison:
    """Compare a study's settings; of variants that differ only in the seed, only the base takes part."""
    study, runs = report["studies"][name], runs_of(report, name)
    base = study["base"]
    repeats = set(seed_variants(study)) - {base} if name != report["noise"] else set()
    curves = {label: run["curve"] for label, run in runs.items() if label not in repeats}
    seconds = min(curve[-1]["seconds"] for curve in curves.values())
    reached = {label: length_at(curve, seconds) for label, curve in curves.items()}
    lengths = {label: length for label, length in reached.items() if length is not None}
    order = sorted(lengths, key=lambda label: (-lengths[label], label != base))  # the base wins a tie
    ranked = {label: lengths[label] for label in order}
    return Comparison(seconds, ranked, base if base in ranked else None, seed_spread(report, name))


def runs_of(report: Report, name: str) -> dict[str, Run]:
    """The measured runs of a study, by label."""
    variants = report["studies"][name]["variants"]
    return {variant["label"]: report["runs"][variant["run"]] for variant in variants if variant["run"]}


def setup_of(report: Report, name: str) -> tuple[str, ...]:
    """Device, dtype and target of a study."""
    run = next(iter(runs_of(report, name).values()))
    return tuple(run[key] for key in SETUP)


def seed_variants(study: Mapping[str, Any]) -> list[str]:
    """Labels of the base and of variants that differ from it only in the seed."""
    settings = {
        variant["label"]: [setting for setting in variant["settings"] if not setting.startswith("seed=")]
        for variant in study["variants"]
    }
    return [label for label in settings if settings[label] == settings[study["base"]]]


def seed_spread(report: Report, name: str) -> float | None:
    """Difference between the best and the worst of runs that differ only in the seed, after equal steps.

    These are runs of the study itself, else of the noise study if it has the same setup; None if there are none.
    """
    labels, noise = seed_variants(report["studies"][name]), report["noise"]
    runs = [run for label, run in runs_of(report, name).items() if label in labels]
    if len(runs) < 2 and noise in report["studies"] and setup_of(report, noise) == setup_of(report, name):
        runs = list(runs_of(report, noise).values())
    if len(runs) < 2:
        return None
    lengths = [length_at(run["curve"], num_steps(runs), "step") for run in runs]
    validated = [length for length in lengths if length is not None]
    return max(validated) - min(validated)


def num_steps(runs: Sequence[Run]) -> int:
    """Steps that all runs took."""
    return min(run["curve"][-1]["step"] for run in runs)


def length_at(curve: Sequence[Mapping[str, float]], x: float, axis: str = "seconds") -> float | None:
    """Best accept length so far, linear between validations; None before the first.  axis: seconds or step."""
    if x < curve[0][axis]:
        return None
    best = list(accumulate((point["accept_length"] for point in curve), max))
    return float(np.interp(x, [point[axis] for point in curve], best))


def verdict(report: Report, name: str) -> str:
    """The outcome of a study in one sentence."""
    runs = list(runs_of(report, name).values())
    comparison = compare(report, name)
    spread = comparison.seed_spread
    if name == report["noise"] and spread is not None:
        return f"After {num_steps(runs)} steps, seeds differ by {spread:.3f}; smaller leads are chance."
    minutes, best, rival = f"{comparison.seconds / 60:.1f}", comparison.best, comparison.rival
    if rival is None:
        return f"No other setting was validated within {minutes} minutes."
    lengths = f"{comparison.lengths[best]:.3f}, {rival}: {comparison.lengths[rival]:.3f}"
    sentence = f"After {minutes} minutes each, **{best}** is best: {lengths}"
    if spread is None:
        return f"{sentence}; the spread between seeds was not measured."
    relation = "within" if comparison.lead <= spread else "above"
    return f"{sentence}; the lead is {relation} the spread of seeds ({spread:.3f})."
