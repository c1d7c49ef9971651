"""Policies beside static trees: replayed on held-out answers, and decoded live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import POLICY_COMMAND, find_drafter, fingerprint_of, open_drafter
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.hints import typed_target
from drafterforge.config.progress import bar
from drafterforge.evaluation.calibration import require_cycles_to_calibrate
from drafterforge.evaluation.lossless import count_mismatches, find_mismatches
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.rows import build_row, tokens_per_s
from drafterforge.evaluation.timing import generate_in_turns
from drafterforge.replay.planner import best_static
from drafterforge.replay.scheduler_play import Schedule, faster_p, schedule_of
from drafterforge.replay.table import build_table
from drafterforge.replay.trace import Traces
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.actions import ActionGrid, describe
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.policy import check_policy, load_policy
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


def schedules_of(
    cfg: TrainPolicyConfig,
    target: Target,
    grid: ActionGrid,
    traces: Traces,
    profile: LatencyProfile,
    policies: Mapping[str, Scheduler],
) -> dict[str, Schedule]:
    """What is compared: the default tree, the best static tree of the training answers, and policies."""
    drafter, train = traces.drafter(cfg.drafter), traces.split("train")
    table = build_table(train, grid, drafter, profile)
    best = grid.shapes[best_static(table)[0]]
    default = choose_shape(cfg.runtime, target.device, target.dtype)
    found = {
        "default": Schedule(f"default tree {describe(default)}", shape=default),
        "best static": Schedule(f"best static tree {describe(best)}", shape=best),
    }
    return found | {name: schedule_of(name, policy) for name, policy in policies.items()}


def require_inputs(cfg: TrainPolicyConfig) -> None:
    """Refuse drafters and policies that are not there, and too few latency prompts, before anything is loaded."""
    target, typed = cfg.target.folder_name, typed_target(cfg)
    for name in dict.fromkeys([cfg.drafter, *cfg.traces.drafters]):
        find_drafter(cfg.runs_dir, target, name, typed)
    for name in cfg.live.policies:
        if name != policy_name(cfg):
            find_artifact(cfg.runs_dir, target, "policies", name, hint=POLICY_COMMAND + typed)
    require_cycles_to_calibrate(cfg)


def policy_name(cfg: TrainPolicyConfig) -> str:
    """What the policy that is trained is called."""
    return cfg.name or cfg.policy.name or cfg.policy.method


def open_policies(cfg: TrainPolicyConfig, target: Target, path: Path) -> dict[str, Scheduler]:
    """The further policies to decode, opened before anything takes long; the one at `path` is being trained."""
    hint = f"drafterforge train-policy{typed_target(cfg)}"
    return {
        name: open_policy(cfg, target, find_artifact(cfg.runs_dir, target.name, "policies", name, hint=hint))
        for name in cfg.live.policies
        if name != path.name
    }


def open_policy(cfg: TrainPolicyConfig, target: Target, folder: Path) -> Scheduler:
    """A policy that schedules this very drafter."""
    drafter = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter)
    policy = load_policy(folder)
    weights = fingerprint_of(open_drafter(drafter, target))
    check_policy(policy, target.fingerprint, cfg.drafter, weights, folder, typed_target(cfg))
    return policy


def decode_held_out(
    cfg: TrainPolicyConfig, target: Target, test: Traces, schedules: dict[str, Schedule]
) -> list[dict[str, Any]]:
    """Held-out answers decoded one by one, methods taking turns."""
    count = min(cfg.live.num_prompts, len(test.tokens))
    if not count:
        return []
    prompts = [tokens[:begin].tolist() for tokens, begin in zip(test.tokens, test.begins, strict=True)][:count]
    drafters = open_pool(cfg.runs_dir, target, [cfg.drafter])
    numerics = choose_numerics(cfg.runtime.numerics, target)
    methods = [Method(AUTOREGRESSIVE, Engine(target, numerics="fast"))]
    for one in schedules.values():
        engine = Engine(target, drafters[cfg.drafter], one.shape, max_batch=1, numerics=numerics) if one.shape else None
        if engine is None:
            pool = Pool(drafters, "static", scheduler=one.policy)
            engine = Engine(target, pool, choose_shape(cfg.runtime, target.device, target.dtype), 1, numerics)
        methods.append(Method(one.name, engine, "static", "static" if one.shape else one.policy.name, [cfg.drafter]))
    with bar("decoding held-out answers", count * len(methods)) as progress:
        found = generate_in_turns(methods, prompts, cfg.traces.max_new_tokens, progress.advance)
    static = schedules["best static"].name
    rows = []
    for method in methods:
        mismatches = find_mismatches(method.name, target, found[method.name], found[AUTOREGRESSIVE])
        row = build_row(
            method,
            found[method.name],
            found[AUTOREGRESSIVE],
            domain="mixed",
            mismatches=count_mismatches(mismatches),
            dtype=str(target.dtype).removeprefix("torch."),
            numerics=method.engine.numerics,
        )
        cycle_s = row["time_s"]["draft"] + row["time_s"]["verify"] + row["time_s"]["host"] + row["time_s"]["schedule"]
        row["policy_share"] = round(row["time_s"]["schedule"] / max(cycle_s, 1e-12), 5)
        row["over_best_static"] = round(row["tokens_per_s"] / tokens_per_s(found[static]), 4)
        row["p_over_best_static"] = faster_p(found[method.name], found[static])
        row["shapes"] = shapes_used(found[method.name])
        rows.append(row)
    return rows


def shapes_used(generations: Sequence[Any], most: int = 6) -> dict[str, float]:
    """Shares of the trees that were verified most often."""
    cycles = [describe(TreeShape(c.num_nodes, c.depth, max(c.top_k, 1))) for one in generations for c in one.cycles]
    names, counts = np.unique(cycles, return_counts=True)
    order = np.argsort(-counts)[:most]
    return {str(names[place]): round(float(counts[place] / len(cycles)), 3) for place in order}
