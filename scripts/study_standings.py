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


def length_at(curve: Sequence[Mapping[str, float]], where: float, axis: str = "seconds") -> float | None:
    """Best accept length so far, on lines between validations; None before the first.  axis: seconds or step."""
    if where < curve[0][axis]:
        return None
    best = list(accumulate((point["accept_length"] for point in curve), max))
    return float(np.interp(where, [point[axis] for point in curve], best))


def runs_of(report: Report, name: str) -> dict[str, Run]:
    """What was measured of a study, by label."""
    variants = report["studies"].get(name, {"variants": []})["variants"]
    return {one["label"]: report["runs"][one["run"]] for one in variants if one["run"]}


def twins(report: Report, name: str) -> list[str]:
    """Labels of a study that differ from its base in the seed alone: they tell of chance, and win nothing."""
    study = report["studies"].get(name, {"base": None, "variants": []})
    settings = {one["label"]: one["settings"] for one in study["variants"]}
    return [
        label
        for label, own in settings.items()
        if label != study["base"] and [one for one in own if not one.startswith("seed=")] == settings[study["base"]]
    ]


def standings(report: Report, name: str) -> Standings | None:
    """Of one study, without twins of its base; None before anything of it was measured."""
    apart = twins(report, name) if name != report["noise"] else []
    runs = {label: run for label, run in runs_of(report, name).items() if label not in apart}
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
    """Between the best and the worst of settings that differ in the seed alone, after equal steps, for one study.

    They are those of the study itself if it has any, else those of the study of noise.  None if they were not measured,
    or elsewhere than the study was.
    """
    alike = alike_of(report, name)
    return None if alike is None else apart_after(alike, min(run["curve"][-1]["step"] for run in alike))


def alike_of(report: Report, name: str) -> list[Run] | None:
    """Two runs or more that differ in the seed alone and tell what a study's leads are worth."""
    runs, own = runs_of(report, name), twins(report, name)
    alike = [run for label, run in runs.items() if label == report["studies"][name]["base"] or label in own]
    if len(alike) < 2 and report["noise"]:
        same = kind(report, report["noise"]) == kind(report, name)
        alike = list(runs_of(report, report["noise"]).values()) if same else []
    return alike if len(alike) > 1 else None


def apart_after(alike: Sequence[Run], step: float) -> float:
    """How far the accept lengths of runs are apart after as many steps of each."""
    lengths = [length_at(run["curve"], step, "step") for run in alike]
    known = [length for length in lengths if length is not None]
    return max(known) - min(known)


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
        alike = list(runs_of(report, name).values())
        took = [run["curve"][-1]["seconds"] / run["curve"][-1]["step"] for run in alike]
        beside = f"the slowest took {max(took) / min(took):.2f} times as long for a step as the fastest"
        last = min(run["curve"][-1]["step"] for run in alike)
        half = next(point["step"] for point in alike[0]["curve"] if point["step"] >= last / 2)
        before = f", after {half} by {apart_after(alike, half):.3f}" if half < last else ""
        return f"After {last} steps they differ by {noise:.3f}{before}: smaller leads show nothing; {beside}."
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
