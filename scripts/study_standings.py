"""Which setting of a study is best at equal seconds of training, and whether by more than seeds differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

SAME = ("device", "dtype", "target")  # of runs that compare
Run = Mapping[str, Any]
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Standings:
    """A study's settings, the best first."""

    seconds: float  # of training, as many as the setting took that took least
    lengths: dict[str, float]  # accept length of each at that time; without those not validated by then
    base: str | None  # None: not among them

    @property
    def best(self) -> str:
        """The setting that wins."""
        return next(iter(self.lengths))

    @property
    def second(self) -> str | None:
        """The next."""
        return list(self.lengths)[1] if len(self.lengths) > 1 else None

    @property
    def lead(self) -> float | None:
        """Of the best over the base; over the second if it is the base."""
        other = self.second if self.best == self.base else self.base
        return None if other is None else self.lengths[self.best] - self.lengths[other]


def length_at(curve: Sequence[Mapping[str, float]], seconds: float) -> float | None:
    """Best accept length so far, on lines between validations; None before the first."""
    if seconds < curve[0]["seconds"]:
        return None
    best = list(accumulate((point["accept_length"] for point in curve), max))
    return float(np.interp(seconds, [point["seconds"] for point in curve], best))


def runs_of(report: Report, name: str) -> dict[str, Run]:
    """What was measured of a study, by label."""
    variants = report["studies"].get(name, {"variants": []})["variants"]
    return {one["label"]: report["runs"][one["run"]] for one in variants if one["run"]}


def standings(report: Report, name: str) -> Standings | None:
    """Of one study; None before anything of it was measured."""
    runs = runs_of(report, name)
    if not runs:
        return None
    seconds = min(run["curve"][-1]["seconds"] for run in runs.values())
    reached = {label: length_at(run["curve"], seconds) for label, run in runs.items()}
    lengths = {label: value for label, value in reached.items() if value is not None}
    base = report["studies"][name]["base"]
    ranked = dict(sorted(lengths.items(), key=lambda one: (-one[1], one[0] != base)))  # among equals the base wins
    return Standings(seconds, ranked, base if base in ranked else None)


def kind(report: Report, name: str) -> set[tuple[str, ...]]:
    """Device, dtype and target of what was measured of a study."""
    return {tuple(run[key] for key in SAME) for run in runs_of(report, name).values()}


def spread(report: Report, name: str) -> float | None:
    """Between the best and the worst of settings that differ in nothing that should matter, for one study.

    None if that was not measured where the study was.
    """
    found = standings(report, report["noise"])
    if found is None or found.second is None or kind(report, report["noise"]) != kind(report, name):
        return None
    return max(found.lengths.values()) - min(found.lengths.values())


def kept(found: Standings, noise: float | None) -> str:
    """The setting to keep: the best, or the base where the best does not lead by more than seeds differ."""
    if found.base is None or found.lead is None or (noise is not None and found.lead <= noise):
        return found.base or found.best
    return found.best


def verdict(report: Report, name: str) -> str:
    """One sentence about a study."""
    found, noise = standings(report, name), spread(report, name)
    if found is None or len(runs_of(report, name)) == 1:
        return "Not measured yet."
    if name == report["noise"] and noise is not None:
        took = [run["curve"][-1]["seconds"] / run["curve"][-1]["step"] for run in runs_of(report, name).values()]
        beside = f"the slowest took {max(took) / min(took):.2f} times as long for a step as the fastest"
        return f"They differ by {noise:.3f}: smaller leads show nothing; {beside}."
    minutes, best, other = f"{found.seconds / 60:.1f}", found.best, found.second
    if other is None:
        return f"Nothing else was validated within {minutes} minutes."
    if best != found.base and found.base is not None:
        other = found.base
    lengths = found.lengths
    said = f"After {minutes} minutes each, **{best}** is best: {lengths[best]:.3f}, {other}: {lengths[other]:.3f}"
    if noise is None:
        return f"{said}; how much seeds differ was not measured there."
    lead = lengths[best] - lengths[other]
    return f"{said}; that is {'no more than' if lead <= noise else 'more than'} seeds differ ({noise:.3f})."


def winners(report: Report) -> str:
    """One line for all studies."""
    named = [(name, standings(report, name)) for name in report["studies"] if name != report["noise"]]
    told = [
        f"{name}: {found.best} ({found.lengths[found.best]:.2f}"
        + (f", {found.lead:+.2f})" if found.lead is not None else ")")
        for name, found in named
        if found is not None and found.second is not None
    ]
    return "; ".join(told)
