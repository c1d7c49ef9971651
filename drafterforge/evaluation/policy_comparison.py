"""Compares policies with static trees, live on held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import drafter_manifest, find_drafter, fingerprint_of
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.evaluation import MIN_VERDICT
from drafterforge.config.hints import command_for_policy
from drafterforge.config.progress import bar
from drafterforge.evaluation.calibration import require_cycles_to_calibrate
from drafterforge.evaluation.lossless import PlainComparison, count_mismatches
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.rows import build_row, speedup_interval, timed_pairs, tokens_per_s
from drafterforge.evaluation.statistics import bootstrap_mean_ratio, mean_and_spread
from drafterforge.evaluation.timing import generate_in_turns, samplings
from drafterforge.replay.planner import best_static
from drafterforge.replay.scheduler_play import Schedule, bounds_of, faster_p, schedule_figures, schedule_of
from drafterforge.replay.table import build_table, play_static
from drafterforge.replay.trace import Traces
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.actions import NO_DRAFT, ActionGrid, describe
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.policy import check_policy, load_policy
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

NO_DRAFTING = "no drafting"  # name of a replayed row


def schedules_of(
    cfg: TrainPolicyConfig,
    target: Target,
    grid: ActionGrid,
    traces: Traces,
    profile: LatencyProfile,
    policies: Mapping[str, Scheduler],
) -> dict[str, Schedule]:
    """The schedules to compare: the default tree, the best static tree on the training answers, and policies."""
    drafter, train = traces.drafter(cfg.drafter), traces.split("train")
    table = build_table(train, grid, drafter, profile)
    best = grid.shapes[best_static(table)[0]]
    default = choose_shape(cfg.runtime, target.device, target.dtype)
    static_schedules = {
        "default": Schedule(f"default tree {describe(default)}", shape=default),
        "best static": Schedule(f"best static tree {describe(best)}", shape=best),
    }
    return static_schedules | {name: schedule_of(name, policy) for name, policy in policies.items()}


def replayed_rows(
    schedules: Mapping[str, Schedule],
    test: Traces,
    drafter: int,
    grid: ActionGrid,
    profile: LatencyProfile,
    train: Traces,
) -> list[dict[str, Any]]:
    """Rows of schedules replayed on held-out answers, then of bounds; no drafting is one of them with any grid."""
    rows = [schedule_figures(schedule, test, drafter, profile) for schedule in schedules.values()]
    if NO_DRAFT not in grid.shapes:
        undrafted = ActionGrid(grid.name, (1,), grid.depths[:1], grid.top_ks[:1])
        seconds = play_static(build_table(test, undrafted, drafter, profile))
        rate = round(float(test.num_roots / seconds.sum()), 4)
        rows.append({"name": NO_DRAFTING, "mat": None, "tokens_per_s": rate, "actions": None})
    return rows + bounds_of(test, drafter, grid, profile, train)


def require_inputs(cfg: TrainPolicyConfig) -> None:
    """Refuse drafters and policies that are not there, and too few latency prompts, before the target is loaded."""
    target = cfg.target.folder_name
    for name in cfg.traces.drafters:
        find_drafter(cfg.runs_dir, target, name)
    for name in cfg.live.policies:
        if name != policy_name(cfg):
            find_artifact(cfg.runs_dir, target, "policies", name, hint=command_for_policy(name))
    require_cycles_to_calibrate(cfg)


def policy_name(cfg: TrainPolicyConfig) -> str:
    """What the policy that is trained is called."""
    return cfg.name or cfg.policy.name or cfg.policy.method


def open_policies(cfg: TrainPolicyConfig, target: Target, path: Path) -> dict[str, Scheduler]:
    """The policies of `live.policies`, opened before long steps; not the one at `path`, which is being trained."""
    return {
        name: open_policy(
            cfg, target, find_artifact(cfg.runs_dir, target.name, "policies", name, hint=command_for_policy(name))
        )
        for name in cfg.live.policies
        if name != path.name
    }


def open_policy(cfg: TrainPolicyConfig, target: Target, folder: Path) -> Scheduler:
    """Open a policy; ConfigError if it was trained for another target or drafter."""
    drafter = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter)
    policy = load_policy(folder)
    weights = fingerprint_of(drafter_manifest(drafter, target))
    check_policy(policy, target.fingerprint, cfg.drafter, weights, folder)
    return policy


def decode_held_out(
    cfg: TrainPolicyConfig, target: Target, test: Traces, schedules: Mapping[str, Schedule]
) -> tuple[list[dict[str, Any]], dict[str, list[Generation]], list[dict[str, Any]]]:
    """Rows of held-out prompts decoded one at a time, methods interleaved; each method's answers; the mismatches."""
    count = min(cfg.live.num_prompts, len(test.tokens))
    if not count:
        return [], {}, []
    prompts = [tokens[:begin].tolist() for tokens, begin in zip(test.tokens, test.begins, strict=True)][:count]
    methods = live_methods(cfg, target, schedules)
    with bar("decoding held-out answers", count * len(methods)) as progress:
        draws = samplings(cfg.traces.temperature, cfg.seed, count)
        answers = generate_in_turns(methods, prompts, cfg.traces.max_new_tokens, progress.advance, draws)

    @cache
    def float64_methods() -> dict[str, Method]:
        exact_target = load_target(replace(cfg.target, dtype="float64"))
        return {method.name: method for method in live_methods(cfg, exact_target, schedules)}

    def float64_engines(name: str) -> tuple[Engine, Engine]:
        return float64_methods()[name].engine, float64_methods()[AUTOREGRESSIVE].engine

    numerics = choose_numerics(cfg.runtime.numerics, target)
    static, settled = schedules["best static"].name, PlainComparison(target, numerics, cfg.traces.max_new_tokens)
    rows, mismatch_rows = [], []
    for method in methods:
        exact = partial(float64_engines, method.name)
        mismatches = settled.mismatches(method.name, answers[method.name], answers[AUTOREGRESSIVE], exact, draws)
        mismatch_rows += [mismatch.as_dict() for mismatch in mismatches]
        row = build_row(
            method,
            answers[method.name],
            answers[AUTOREGRESSIVE],
            domain="mixed",
            mismatches=count_mismatches(mismatches),
            dtype=str(target.dtype).removeprefix("torch."),
            numerics=method.engine.numerics,
        )
        cycle_s = row["time_s"]["draft"] + row["time_s"]["verify"] + row["time_s"]["host"] + row["time_s"]["schedule"]
        row["temperature"] = cfg.traces.temperature
        row["policy_share"] = round(row["time_s"]["schedule"] / max(cycle_s, 1e-12), 5)
        row["over_best_static"] = round(row["tokens_per_s"] / tokens_per_s(answers[static]), 4)
        row["over_best_static_ci95"] = speedup_interval(answers[method.name], answers[static])
        row["p_over_best_static"] = faster_p(answers[method.name], answers[static])
        row["shapes"] = shapes_used(answers[method.name])
        rows.append(row)
    return rows, answers, mismatch_rows


def live_methods(cfg: TrainPolicyConfig, target: Target, schedules: Mapping[str, Schedule]) -> list[Method]:
    """Plain decoding, then each schedule."""
    drafters = open_pool(cfg.runs_dir, target, [cfg.drafter])
    numerics = choose_numerics(cfg.runtime.numerics, target)
    methods = [Method(AUTOREGRESSIVE, Engine(target, numerics="fast"))]
    for schedule in schedules.values():
        drafter, shape, scheduler = drafters[cfg.drafter], schedule.shape, "static"
        if shape is None:
            drafter, scheduler = Pool(drafters, "static", scheduler=schedule.policy), schedule.policy.name
            shape = choose_shape(cfg.runtime, target.device, target.dtype)
        engine = Engine(target, drafter, shape, max_batch=1, numerics=numerics)
        methods.append(Method(schedule.name, engine, "static", scheduler, [cfg.drafter]))
    return methods


def seed_folders(cfg: TrainPolicyConfig, path: Path) -> dict[int, Path]:
    """The folder of the policy of each training seed; `path` is that of the first."""
    return {cfg.seed: path} | {seed: path.with_name(f"{path.name}-seed{seed}") for seed in cfg.seeds}


def spread_over_seeds(
    methods: Mapping[int, str],
    replays: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    answers: Mapping[str, Sequence[Generation]],
) -> dict[str, Any]:
    """Mean and spread over training seeds of tokens/s over the best static tree, replayed and live.

    methods: the name of each seed's schedule.  The live interval resamples seeds and prompts.
    """
    rates = {row["name"]: row["tokens_per_s"] for row in replays}
    static = next(name for name in rates if name.startswith("best static tree"))
    live = {row["method"]: row["over_best_static"] for row in rows}
    spread = {
        "seeds": list(methods),
        "replayed": mean_and_spread([rates[name] / rates[static] for name in methods.values()]),
    }
    if live:
        pairs = [timed_pairs(answers[name], answers[static]) for name in methods.values()]
        spread["live"] = mean_and_spread([live[name] for name in methods.values()])
        is_enough = len(pairs[0]) >= MIN_VERDICT
        spread["live"]["ci95"] = [round(bound, 4) for bound in bootstrap_mean_ratio(pairs)] if is_enough else None
    return spread


def shapes_used(generations: Sequence[Any], max_shapes: int = 6) -> dict[str, float]:
    """Share of cycles of the most frequent trees."""
    cycles = [cycle for generation in generations for cycle in generation.cycles]
    shapes = [describe(TreeShape(cycle.num_nodes, cycle.depth, max(cycle.top_k, 1))) for cycle in cycles]
    names, counts = np.unique(shapes, return_counts=True)
    order = np.argsort(-counts)[:max_shapes]
    return {str(names[index]): round(float(counts[index] / len(cycles)), 3) for index in order}
