"""Measures a latency profile: the cost of each step of a cycle, and its prediction error on held-out answers.

Answers to fit, held-out answers and probes without a drafter alternate, so that machine drift affects all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest, first_difference
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.commands import CalibrateConfig, TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.progress import bar
from drafterforge.config.replay import KNOTS, GridConfig, LatencyConfig
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ConfigError
from drafterforge.evaluation.trace_recording import policy_prompts
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.schedulers.actions import ActionGrid, describe
from drafterforge.schedulers.base import RandomScheduler, StaticScheduler
from drafterforge.schedulers.latency import FILE, STEPS, Cycles, LatencyProfile, path_of_device, read_profile
from drafterforge.schedulers.latency_fit import MIN_CYCLES, fit_step, fit_terms, median_error, unpriced
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

TOKENS_PER_CYCLE = 2.0  # rough mean accept length of trees drawn from a grid
INPUTS = tuple(Cycles.__dataclass_fields__)


@dataclass
class CycleTimes:
    """Cycles of live answers and the seconds of their steps."""

    columns: dict[str, list[float]] = field(
        default_factory=lambda: {n: [] for n in (*Cycles.__dataclass_fields__, *STEPS)}
    )

    def add(self, answer: Generation) -> None:
        """Add the cycles of an answer that was decoded alone."""
        position = len(answer.prompt)
        for number, cycle in enumerate(answer.cycles):
            is_last = number == len(answer.cycles) - 1  # the last cycle refreshes nothing
            tree = TreeShape(cycle.num_nodes, cycle.depth, max(cycle.top_k, 1)).drafted
            values = {"depth": tree.depth, "top_k": tree.top_k, "nodes": tree.num_tokens, "length": position}
            values |= {"emitted": cycle.accept_length, "draft": cycle.draft_s - cycle.refresh_s}
            values |= {"refresh": 0.0 if is_last else cycle.refresh_s, "verify": cycle.verify_s, "host": cycle.host_s}
            for name, value in values.items():
                self.columns[name].append(value)
            position += cycle.accept_length

    @staticmethod
    def join(parts: Sequence[CycleTimes]) -> CycleTimes:
        return CycleTimes(
            {name: [value for times in parts for value in times.columns[name]] for name in CycleTimes().columns}
        )

    @property
    def cycles(self) -> Cycles:
        return Cycles(*(np.array(self.columns[name]) for name in INPUTS))

    def seconds(self, step: str) -> np.ndarray:
        """Seconds of a step, [M]."""
        return np.array(self.columns[step])


@dataclass
class ProbedAnswer:
    """Cycles of one answer, and of tokens decoded without a drafter just before or after it."""

    cycles: CycleTimes = field(default_factory=CycleTimes)
    probes: CycleTimes = field(default_factory=CycleTimes)


def calibrate(cfg: CalibrateConfig, target: Target) -> tuple[Path, bool]:
    """Path of the latency artifact, measured if there is none, and whether it was measured now."""
    grid = action_grid(cfg)
    path = artifact_dir(cfg.runs_dir, target.name, "latency", cfg.name or cfg.drafter)
    latency = to_dict(replace(cfg.latency, path=""))
    del latency["device"]  # of other profiles
    drafter = drafter_of(cfg, target)
    settings = {"latency": latency, "grid": grid.as_dict(), "seed": cfg.seed, **measured_settings(cfg, target, drafter)}
    run = artifact_run(path, "latency", target, settings, [drafter], overwrite=cfg.overwrite)
    if run.existing and not cfg.overwrite:
        return path, False
    profile = measure_profile(cfg, target, grid)
    with run.write(dict(profile.errors)) as folder:
        save_json_atomic(folder / FILE, profile.as_json())
    return path, True


def drafter_of(cfg: CalibrateConfig | TrainPolicyConfig, target: Target) -> Manifest:
    return drafter_manifest(find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter), target)


def measured_settings(cfg: CalibrateConfig | TrainPolicyConfig, target: Target, drafter: Manifest) -> dict[str, Any]:
    """What a profile of this device is measured with, besides its own keys."""
    return {
        "drafter": drafter.as_parent(),
        "device": describe_device(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "numerics": choose_numerics(cfg.runtime.numerics, target),
    }


def require_cycles(latency: LatencyConfig, grid: ActionGrid) -> None:
    """Refuse, before any decoding, a number of answers that measures some tree of the grid too rarely."""
    cycles, needed = latency.num_prompts * latency.max_new_tokens / TOKENS_PER_CYCLE, MIN_CYCLES * len(grid)
    if cycles < needed:
        least = math.ceil(needed * TOKENS_PER_CYCLE / latency.max_new_tokens)
        raise ConfigError(
            f"latency.num_prompts={latency.num_prompts} answers of latency.max_new_tokens={latency.max_new_tokens} are "
            f"too few to price {len(grid)} trees; type latency.num_prompts={least}, or a smaller grid"
        )


def require_cycles_to_calibrate(cfg: CalibrateConfig | TrainPolicyConfig) -> None:
    """Apply `require_cycles` to a command that will measure a profile, before anything is loaded."""
    training = isinstance(cfg, TrainPolicyConfig)
    name = cfg.drafter if training else cfg.name or cfg.drafter
    is_measured = artifact_dir(cfg.runs_dir, cfg.target.folder_name, "latency", name).is_dir()
    if not cfg.latency.is_named and (cfg.overwrite or not is_measured):
        require_cycles(cfg.latency, action_grid(replace(cfg, grid=calibration_grid(cfg)) if training else cfg))


def action_grid(cfg: CalibrateConfig | TrainPolicyConfig) -> ActionGrid:
    axes = (tuple(values) for values in (cfg.grid.num_tokens, cfg.grid.depths, cfg.grid.top_ks))
    return ActionGrid(cfg.grid.name, *axes, cfg.grid.mask)


def measure_profile(cfg: CalibrateConfig, target: Target, grid: ActionGrid) -> LatencyProfile:
    """Fit a profile to live answers of the configured drafter and evaluate it on held-out ones."""
    latency = cfg.latency
    prompts = policy_prompts(cfg.domains, latency.num_prompts, latency.num_held_out, target, cfg.seed)
    (drafter,) = open_pool(cfg.runs_dir, target, [cfg.drafter]).values()
    return measure_drafter(cfg, target, grid, drafter, prompts)


def measure_drafter(
    cfg: CalibrateConfig, target: Target, grid: ActionGrid, drafter: Drafter, prompts: Mapping[str, list[list[int]]]
) -> LatencyProfile:
    """As `measure_profile`, of a drafter in memory.  prompts: token ids, `train` to fit and `test` held out."""
    latency, numerics = cfg.latency, choose_numerics(cfg.runtime.numerics, target)
    pool = Pool({cfg.drafter: drafter}, "static")
    engine = Engine(target, pool, max_batch=1, numerics=numerics)
    plain = Engine(target, numerics="fast")
    random_trees = RandomScheduler(grid, cfg.seed)
    rng = np.random.default_rng(cfg.seed + 1)
    shapes = [grid.shapes[action] for action in rng.integers(len(grid), size=latency.num_held_out)]
    queue = [(random_trees, ids, True) for ids in prompts["train"]]
    for index, (shape, ids) in enumerate(zip(shapes, prompts["test"], strict=True)):
        position = round((index + 1) * len(prompts["train"]) / len(shapes)) + index
        queue.insert(position, (StaticScheduler(shape), ids, False))
    pool.scheduler = random_trees
    engine.generate([prompts["train"][0]], latency.max_new_tokens)  # warm-up
    plain.generate([prompts["train"][0]], latency.probe_tokens)
    answers, held_out = [], []
    with bar("measuring cycles", len(queue)) as progress:
        for scheduler, ids, is_fitted in queue:
            pool.scheduler = scheduler
            probed = ProbedAnswer()
            probe(plain, ids, latency.probe_tokens, probed.probes)
            probed.cycles.add(engine.generate([ids], latency.max_new_tokens)[0])
            if not is_fitted:
                probe(plain, ids, latency.probe_tokens, probed.probes)
            (answers if is_fitted else held_out).append(probed)
            progress.advance(status="random trees" if is_fitted else describe(scheduler.shape))
    profile = fit_profile(cfg, target, grid, answers)
    return replace(profile, errors=errors_on(held_out, profile))


def probe(plain: Engine, ids: list[int], num_tokens: int, into: CycleTimes) -> None:
    """Add cycles decoded without a drafter to `into`: the present cost of a token."""
    into.add(plain.generate([ids], num_tokens)[0])


def fit_profile(
    cfg: CalibrateConfig, target: Target, grid: ActionGrid, answers: Sequence[ProbedAnswer]
) -> LatencyProfile:
    """Seconds of all terms; node counts between those of the grid are interpolated.

    An answer's times are first divided by the measured over the expected time of its probe, which removes machine
    drift.  The probes of held-out answers are not used.
    """
    probe = CycleTimes.join([answer.probes for answer in answers])
    nodes, largest = tuple(sorted({1, *grid.num_tokens})), grid.largest
    widths = [top_k for _, depth, top_k in grid.drafted.tolist() if depth > 1] or [largest.top_k]  # of later levels
    token_s = sum(probe.seconds(step) for step in STEPS)
    kilotokens = probe.cycles.length / 1000.0
    profile = LatencyProfile(
        device=describe_device(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        target=target.name,
        drafter=cfg.drafter,
        nodes=nodes,
        top_ks=tuple(sorted({min(max(top_k, min(widths)), max(widths)) for top_k in grid.top_ks})),
        depth=max(largest.depth, 1),
        seconds={},
        autoregressive=fit_terms({"token": np.ones_like(kilotokens), "kilotoken": kilotokens}, token_s),
        errors={},
    )
    cycles = Cycles(*(np.concatenate([getattr(answer.cycles.cycles, name) for answer in answers]) for name in INPUTS))
    seconds = {}
    for step in STEPS:
        measured_s = np.concatenate(
            [answer.cycles.seconds(step) / scale_of(answer.probes, profile) for answer in answers]
        )
        has_run = measured_s > 0
        priced = Cycles(*(getattr(cycles, name)[has_run] for name in INPUTS))
        if missing := unpriced(step, priced, profile) if has_run.any() else "all of it":
            raise ConfigError(
                f"{len(answers)} answers have too few cycles to price a step, {step} ({missing}); "
                f"type latency.num_prompts={2 * len(answers)}, or a smaller grid"
            )
        seconds[step] = fit_step(step, priced, measured_s[has_run], profile)
    return replace(profile, seconds=seconds)


def scale_of(probes: CycleTimes, profile: LatencyProfile) -> float:
    """Measured over predicted time of probes without a drafter."""
    measured_s = sum(probes.seconds(step).sum() for step in STEPS)
    return float(measured_s / profile.token_s(probes.cycles.length).sum())


def errors_on(answers: Sequence[ProbedAnswer], profile: LatencyProfile) -> dict[str, float]:
    """Median absolute error of the answers' total time and of the time of each step; each answer has one tree.

    Predictions are scaled by the probes just before and after an answer, because a shared machine drifts by more than
    the profile errs, and the gain of a schedule is a ratio.  `total_unscaled` scales all answers by one factor.
    """
    overall = scale_of(CycleTimes.join([answer.probes for answer in answers]), profile)
    scales = np.array([scale_of(answer.probes, profile) for answer in answers])
    errors = {"autoregressive_scale": round(overall, 4)}
    predicted, measured = {}, {}
    for step in STEPS:
        measured_s = [answer.cycles.seconds(step) for answer in answers]
        pairs = zip(answers, measured_s, strict=True)
        predicted[step] = np.array(
            [profile.step_s(step, answer.cycles.cycles)[step_s > 0].sum() for answer, step_s in pairs]
        )
        measured[step] = np.array([step_s.sum() for step_s in measured_s])
        drafted = measured[step] > 1e-4 * len(answers)
        if drafted.any():
            errors[step] = round(median_error((scales * predicted[step])[drafted], measured[step][drafted]), 4)
    total, measured_s = sum(predicted.values()), sum(measured.values())
    return errors | {
        "total": round(median_error(scales * total, measured_s), 4),
        "total_largest": round(float(np.abs(scales * total / measured_s - 1).max()), 4),
        "total_unscaled": round(median_error(overall * total, measured_s), 4),
    }


def latency_profile(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """The profile that is named, else the one of this device, measured if there is none."""
    return (open_named_profile if cfg.latency.is_named else profile_of_device)(cfg, target, grid)


def open_named_profile(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """The profile at `latency.path`, or that of `latency.device`, whose target may be another one."""
    path = path_of_device(cfg.latency.device) if cfg.latency.device else Path(cfg.latency.path)
    profile = read_profile(path)
    if profile.target != target.name and not cfg.latency.device:
        raise ConfigError(
            f"{path} was measured for target {profile.target!r}, but this is {target.name!r}; "
            f"type `drafterforge calibrate drafter={cfg.drafter}` on that device"
        )
    profile.check(grid, path)
    return path, profile


def profile_of_device(cfg: TrainPolicyConfig, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """The profile of this device and drafter; measured if there is none, and with `overwrite` in place of another's."""
    path = artifact_dir(cfg.runs_dir, target.name, "latency", cfg.drafter)
    changed = changed_since(cfg, target, path)
    if changed and not cfg.overwrite:
        raise ConfigError(
            f"{path} was measured otherwise ({changed}); type overwrite=true to measure it again, or "
            f"latency.path={path} to train by it as it is"
        )
    if changed or not path.is_dir():
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
                overwrite=bool(changed),
            ),
            target,
        )
    profile = read_profile(path)
    profile.check(grid, path)
    return path, profile


def changed_since(cfg: TrainPolicyConfig, target: Target, path: Path) -> str:
    """What the profile at `path` was measured with that differs now, and its two values; empty if nothing does."""
    if not path.is_dir():
        return ""
    recorded, settings = open_artifact(path, "latency").config, measured_settings(cfg, target, drafter_of(cfg, target))
    return first_difference({key: recorded.get(key) for key in settings}, settings)


def calibration_grid(cfg: TrainPolicyConfig) -> GridConfig:
    return replace(cfg.grid, name="calibration", num_tokens=knots(cfg.grid.num_tokens), mask="pool")


def knots(num_tokens: Sequence[int]) -> list[int]:
    """Node counts to measure: those of the grid, and finer ones between them."""
    return sorted({*num_tokens, *(count for count in KNOTS if count <= max(num_tokens))})
