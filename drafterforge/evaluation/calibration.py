"""Measures a latency profile: what every step of a cycle costs, and how well that predicts held-out answers.

Answers to fit, held-out ones and probes without a drafter take turns, so that drift hits all alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import open_drafter
from drafterforge.config.commands import CalibrateConfig, TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import typed_target
from drafterforge.config.progress import bar
from drafterforge.config.replay import KNOTS, GridConfig, LatencyConfig
from drafterforge.errors import ConfigError
from drafterforge.evaluation.trace_recording import policy_prompts
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import ActionGrid, describe
from drafterforge.schedulers.base import RandomScheduler, StaticScheduler
from drafterforge.schedulers.latency import FILE, STEPS, Cycles, LatencyProfile, read_profile
from drafterforge.schedulers.latency_fit import ENOUGH, fit_step, fit_terms, median_error, unpriced
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target

TOKENS_PER_CYCLE = 2.0  # of trees drawn from a grid, about
INPUTS = tuple(Cycles.__dataclass_fields__)


@dataclass
class CycleTimes:
    """Cycles of live answers and what their steps took."""

    columns: dict[str, list[float]] = field(
        default_factory=lambda: {n: [] for n in (*Cycles.__dataclass_fields__, *STEPS)}
    )

    def add(self, answer: Generation) -> None:
        """Add the cycles of an answer that was decoded alone."""
        position = len(answer.prompt)
        for place, cycle in enumerate(answer.cycles):
            last = place == len(answer.cycles) - 1  # which refreshes nothing
            seen = {"depth": cycle.depth, "top_k": cycle.top_k, "nodes": cycle.num_nodes, "length": position}
            seen |= {"emitted": cycle.accept_length, "draft": cycle.draft_s - cycle.refresh_s}
            seen |= {"refresh": 0.0 if last else cycle.refresh_s, "verify": cycle.verify_s, "host": cycle.host_s}
            for name, value in seen.items():
                self.columns[name].append(value)
            position += cycle.accept_length

    @staticmethod
    def join(many: Sequence[CycleTimes]) -> CycleTimes:
        """One after the other."""
        return CycleTimes(
            {name: [value for one in many for value in one.columns[name]] for name in CycleTimes().columns}
        )

    @property
    def cycles(self) -> Cycles:
        """What their cost depends on."""
        return Cycles(*(np.array(self.columns[name]) for name in INPUTS))

    def seconds(self, step: str) -> np.ndarray:
        """Seconds of a step, [M]."""
        return np.array(self.columns[step])


@dataclass
class ProbedAnswer:
    """Cycles of one answer, and tokens decoded without a drafter right beside it."""

    cycles: CycleTimes = field(default_factory=CycleTimes)
    probes: CycleTimes = field(default_factory=CycleTimes)


def calibrate(cfg: CalibrateConfig, target: Target) -> tuple[Path, bool]:
    """The profile's artifact, measured if it is not there; and whether it was.  See `require_cycles`."""
    grid = action_grid(cfg)
    drafter = open_drafter(find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter), target)
    path = artifact_dir(cfg.runs_dir, target.name, "latency", cfg.name or cfg.drafter)
    settings = {
        "latency": to_dict(replace(cfg.latency, path="")),
        "grid": grid.as_dict(),
        "drafter": drafter.as_parent(),
        "device": describe_device(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "numerics": choose_numerics(cfg.runtime.numerics, target),
        "seed": cfg.seed,
    }
    checked: dict[str, Any] = {"target": target.name, "target_fingerprint": target.fingerprint, "config": settings}
    if not cfg.overwrite and reuse_artifact(path, "latency", **checked) is not None:
        return path, False
    profile = measure_profile(cfg, target, grid)
    errors = dict(profile.errors)
    with write_artifact(
        path, kind="latency", name=path.name, **checked, parents=[drafter], metrics=errors, replace=True
    ) as staged:
        save_json_atomic(staged / FILE, profile.as_json())
    return path, True


def require_cycles(latency: LatencyConfig, grid: ActionGrid) -> None:
    """Refuse so few answers that some tree of the grid would hardly be seen: that is told before any is decoded."""
    cycles, wanted = latency.num_prompts * latency.max_new_tokens / TOKENS_PER_CYCLE, ENOUGH * len(grid)
    if cycles < wanted:
        least = math.ceil(wanted * TOKENS_PER_CYCLE / latency.max_new_tokens)
        raise ConfigError(
            f"latency.num_prompts={latency.num_prompts} answers of latency.max_new_tokens={latency.max_new_tokens} are "
            f"too few to price {len(grid)} trees; type latency.num_prompts={least}, or a smaller grid"
        )


def require_cycles_to_calibrate(cfg: CalibrateConfig | TrainPolicyConfig) -> None:
    """The same for a command, before anything is loaded, if it is going to measure a profile."""
    training = isinstance(cfg, TrainPolicyConfig)
    name = cfg.drafter if training else cfg.name or cfg.drafter
    is_measured = artifact_dir(cfg.runs_dir, cfg.target.folder_name, "latency", name).is_dir()
    if training and not cfg.latency.path and not is_measured:
        require_cycles(cfg.latency, action_grid(replace(cfg, grid=calibration_grid(cfg))))
    if not training and (cfg.overwrite or not is_measured):
        require_cycles(cfg.latency, action_grid(cfg))


def action_grid(cfg: CalibrateConfig | TrainPolicyConfig) -> ActionGrid:
    """The configured grid."""
    return ActionGrid(cfg.grid.name, tuple(cfg.grid.num_tokens), tuple(cfg.grid.depths), tuple(cfg.grid.top_ks))


def measure_profile(cfg: CalibrateConfig, target: Target, grid: ActionGrid) -> LatencyProfile:
    """The fitted profile and its errors on held-out answers."""
    latency = cfg.latency
    prompts = policy_prompts(cfg.domains, latency.num_prompts, latency.num_held_out, target, cfg.seed)
    numerics = choose_numerics(cfg.runtime.numerics, target)
    pool = Pool(open_pool(cfg.runs_dir, target, [cfg.drafter]), "static")
    engine = Engine(target, pool, max_batch=1, numerics=numerics)
    plain = Engine(target, numerics="fast")
    drawn = RandomScheduler(grid, cfg.seed)
    draw = np.random.default_rng(cfg.seed + 1)
    held = [grid.shapes[place] for place in draw.integers(len(grid), size=latency.num_held_out)]
    turns = [(drawn, ids, True) for ids in prompts["train"]]
    for place, (shape, ids) in enumerate(zip(held, prompts["test"], strict=True)):
        after = round((place + 1) * len(prompts["train"]) / len(held)) + place
        turns.insert(after, (StaticScheduler(shape), ids, False))
    pool.scheduler = drawn
    engine.generate([prompts["train"][0]], latency.max_new_tokens)  # warm-up
    plain.generate([prompts["train"][0]], latency.probe_tokens)
    answers, held_out = [], []
    with bar("measuring cycles", len(turns)) as progress:
        for scheduler, ids, fits in turns:
            pool.scheduler = scheduler
            one = ProbedAnswer()
            probe(plain, ids, latency.probe_tokens, one.probes)
            one.cycles.add(engine.generate([ids], latency.max_new_tokens)[0])
            if not fits:
                probe(plain, ids, latency.probe_tokens, one.probes)
            (answers if fits else held_out).append(one)
            progress.advance(shown="drawn trees" if fits else describe(scheduler.shape))
    profile = fit_profile(cfg, target, grid, answers)
    return replace(profile, errors=errors_on(held_out, profile))


def probe(plain: Engine, ids: list[int], num_tokens: int, into: CycleTimes) -> None:
    """Decode some tokens without a drafter: what a token costs at this moment."""
    into.add(plain.generate([ids], num_tokens)[0])


def fit_profile(
    cfg: CalibrateConfig, target: Target, grid: ActionGrid, answers: Sequence[ProbedAnswer]
) -> LatencyProfile:
    """Seconds of all terms; node counts between the grid's are interpolated.

    An answer's times are first divided by how slow the machine was just then: its probe's time over the expected.
    Only these answers' own probes are read, none that will scale a held-out answer.
    """
    probe = CycleTimes.join([one.probes for one in answers])
    nodes = tuple(sorted({1, *grid.num_tokens}))
    alone = sum(probe.seconds(step) for step in STEPS)
    kilo = probe.cycles.length / 1000.0
    profile = LatencyProfile(
        device=describe_device(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        target=target.name,
        drafter=cfg.drafter,
        nodes=nodes,
        top_ks=grid.top_ks,
        depth=max(grid.depths),
        seconds={},
        autoregressive=fit_terms({"token": np.ones_like(kilo), "kilotoken": kilo}, alone),
        errors={},
    )
    cycles = Cycles(*(np.concatenate([getattr(one.cycles.cycles, name) for one in answers]) for name in INPUTS))
    seconds = {}
    for step in STEPS:
        took = np.concatenate([one.cycles.seconds(step) / scale_of(one.probes, profile) for one in answers])
        kept = took > 0
        ran = Cycles(*(getattr(cycles, name)[kept] for name in INPUTS))
        if missing := unpriced(step, ran, profile) if kept.any() else "all of it":
            raise ConfigError(
                f"{len(answers)} answers have too few cycles to price a step, {step} ({missing}); "
                f"type latency.num_prompts={2 * len(answers)}, or a smaller grid"
            )
        seconds[step] = fit_step(step, ran, took[kept], profile)
    return replace(profile, seconds=seconds)


def scale_of(probes: CycleTimes, profile: LatencyProfile) -> float:
    """What probes without a drafter took, over what was predicted for them."""
    took = sum(probes.seconds(step).sum() for step in STEPS)
    return float(took / profile.token_s(probes.cycles.length).sum())


def errors_on(answers: Sequence[ProbedAnswer], profile: LatencyProfile) -> dict[str, float]:
    """Median absolute error of answers' total time and of each step's, one tree for each answer.

    Predictions are scaled by the probes just before and after an answer: a shared machine drifts by more than the
    profile errs, and a schedule's gain is a ratio.  `total_unscaled` has one factor for all, from all these probes.
    """
    overall = scale_of(CycleTimes.join([one.probes for one in answers]), profile)
    own = np.array([scale_of(one.probes, profile) for one in answers])
    errors = {"autoregressive_scale": round(overall, 4)}
    predicted, measured = {}, {}
    for step in STEPS:
        took = [one.cycles.seconds(step) for one in answers]
        known = zip(answers, took, strict=True)
        predicted[step] = np.array([profile.step_s(step, one.cycles.cycles)[each > 0].sum() for one, each in known])
        measured[step] = np.array([each.sum() for each in took])
        drafted = measured[step] > 1e-4 * len(answers)
        if drafted.any():
            errors[step] = round(median_error((own * predicted[step])[drafted], measured[step][drafted]), 4)
    total, took = sum(predicted.values()), sum(measured.values())
    return errors | {
        "total": round(median_error(own * total, took), 4),
        "total_largest": round(float(np.abs(own * total / took - 1).max()), 4),
        "total_unscaled": round(median_error(overall * total, took), 4),
    }


def latency_profile(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """What cycles cost: the profile that is named, else this device's, measured if there is none."""
    return (open_given_profile if cfg.latency.path else profile_of_device)(cfg, target, grid)


def open_given_profile(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """What cycles cost on the device, this one or another, whose profile is named."""
    path = Path(cfg.latency.path)
    profile = read_profile(path)
    if profile.target != target.name:
        raise ConfigError(
            f"{path} was measured for target {profile.target!r}, but this is {target.name!r}; "
            f"type drafterforge calibrate drafter={cfg.drafter}{typed_target(cfg)} on that device"
        )
    profile.check(grid, path, typed_target(cfg))
    return path, profile


def profile_of_device(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """What cycles cost on this device, measured if it is not known."""
    path = artifact_dir(cfg.runs_dir, target.name, "latency", cfg.drafter)
    if not path.is_dir():
        calibrate(
            CalibrateConfig(
                target=cfg.target,
                grid=calibration_grid(cfg),
                latency=cfg.latency,
                runtime=cfg.runtime,
                drafter=cfg.drafter,
                domains=cfg.traces.domains,
                runs_dir=cfg.runs_dir,
                seed=cfg.seed,
            ),
            target,
        )
    profile = read_profile(path)
    here = describe_device(target.device), str(target.dtype).removeprefix("torch.")
    if (profile.device, profile.dtype) != here:
        raise ConfigError(
            f"{path} was measured on {profile.device} in {profile.dtype}, this is {here[0]} in {here[1]}; "
            f"type drafterforge calibrate drafter={cfg.drafter}{typed_target(cfg)} overwrite=true, "
            f"or latency.path={path} to train for that device"
        )
    profile.check(grid, path, typed_target(cfg))
    return path, profile


def calibration_grid(cfg: TrainPolicyConfig) -> GridConfig:
    """The trees that are timed."""
    return replace(cfg.grid, name="calibration", num_tokens=knots(cfg.grid.num_tokens))


def knots(num_tokens: Sequence[int]) -> list[int]:
    """Node counts to measure: the grid's, and finer ones between them."""
    return sorted({*num_tokens, *(count for count in KNOTS if count <= max(num_tokens))})
