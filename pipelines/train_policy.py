"""Trains a tree scheduler: traces and latencies if they are missing, then seconds of replay, then held-out answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as RichTable

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import open_artifact, reuse_artifact, write_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import fingerprint_of, open_drafter
from drafterforge.config.catalogue import field_types
from drafterforge.config.commands import CalibrateConfig, TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import typed_target
from drafterforge.config.policy import POLICIES, PlannerPolicyConfig
from drafterforge.config.progress import bar, table_console
from drafterforge.config.replay import KNOTS, GridConfig
from drafterforge.errors import ConfigError
from drafterforge.evaluation.lossless import count_mismatches, find_mismatches
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.rows import build_row
from drafterforge.evaluation.timing import generate_in_turns
from drafterforge.pipelines import calibrate
from drafterforge.pipelines.joint import select_jointly
from drafterforge.pipelines.traces import traces_of
from drafterforge.pipelines.train_router import train_router
from drafterforge.pipelines.yardstick import yardstick_of
from drafterforge.replay.planner import best_static
from drafterforge.replay.scheduler_play import Schedule, bounds_of, faster_p, schedule_figures, schedule_of
from drafterforge.replay.table import build_table
from drafterforge.replay.trace import Traces
from drafterforge.reporting.artifact import write_report
from drafterforge.reporting.console import print_noise
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.actions import ActionGrid, describe
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.latency import LatencyProfile, read_profile
from drafterforge.schedulers.marginal import marginal_grid
from drafterforge.schedulers.policy import check_policy, load_policy, save_policy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.training.policies import (
    NUMBERS_TRIED,
    Curve,
    Lesson,
    ltd_grid,
    observed_settings,
    part_of,
    train_ltd,
    train_marginal,
    train_shapes,
)
from drafterforge.tree.grow import TreeShape

Config = TrainPolicyConfig


def run(cfg: Config) -> Path:
    """Train one policy and compare it with the best static tree."""
    if Path(cfg.drafter).name != cfg.drafter:
        raise ConfigError(
            f"drafter={cfg.drafter} is a path, but traces and profiles are kept under a drafter's name; "
            "type drafter=NAME runs_dir=FOLDER"
        )
    profile_path = artifact_dir(cfg.runs_dir, cfg.target.folder_name, "latency", cfg.drafter)
    if cfg.policy.method != "router" and not cfg.latency.path and not profile_path.is_dir():
        calibrate.require_cycles(cfg.latency, calibrate.action_grid(replace(cfg, grid=calibration_grid(cfg))))
    target = load_target(cfg.target)
    path = artifact_dir(cfg.runs_dir, target.name, "policies", cfg.name or cfg.policy.name or cfg.policy.method)
    if cfg.policy.method == "router":
        yardstick = yardstick_of(cfg, target) if cfg.router.labels == "measured" else None
        train_router(
            target, cfg.router.domains, path, cfg.router, cfg.seed, yardstick=yardstick, overwrite=cfg.overwrite
        )
        typed = f"drafter=pool pool.selector=router pool.router={path.name}{typed_target(cfg)}"
        print(f'next: drafterforge generate {typed} prompt="..."')
        return path
    if cfg.policy.method != "joint":
        refuse_other_settings(cfg, target, path)
    grid, others = calibrate.action_grid(cfg), policies_of(cfg, target, path)
    given = given_profile(cfg, target, grid) if cfg.latency.path else None
    traces_path, traces = traces_of(cfg.traces, cfg.grid, cfg.drafter, cfg.runs_dir, target, cfg.seed, cfg.overwrite)
    grid.check(traces.spec.top_ks, traces.spec.depth, str(traces_path))
    traces = traces.with_texts(target.backbone.embedding)
    profile_path, profile = given or own_profile(cfg, target, grid)
    if cfg.policy.method == "joint":
        return select_jointly(cfg, target, grid, traces, profile, traces_path)
    trained(cfg, target, grid, traces, profile, path, (traces_path, profile_path))
    others = {path.name: opened(cfg, target, path)} | others
    schedules = schedules_of(cfg, target, grid, traces, profile, others)
    test = traces.split("test")
    drafter = traces.drafter(cfg.drafter)
    rows = [schedule_figures(one, test, drafter, profile) for one in schedules.values()]
    rows += bounds_of(test, drafter, grid, profile, traces.split("train"))
    show_replayed(rows, profile.device)
    rows_live = live(cfg, target, test, schedules)
    report, out = write_report(
        cfg.runs_dir,
        target,
        f"policy-{path.name}",
        suite="schedules, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows_live,
        curves={"replayed": rows, "grid": grid.as_dict()} | profile_curves(cfg, profile),
        config=to_dict(cfg),
        parents=[open_artifact(path, "policies")],
    )
    show_live(report["rows"])
    print_noise(report)
    typed = f"drafter={cfg.drafter} pool.scheduler={path.name}{typed_target(cfg)}"
    print(f'wrote {path} and {out}; next: drafterforge generate {typed} prompt="..."')
    return path


def profile_curves(cfg: Config, profile: LatencyProfile) -> dict[str, Any]:
    """What the report says of the profile that priced the schedules."""
    again = f"drafterforge calibrate drafter={cfg.drafter}{typed_target(cfg)} overwrite=true"
    return {"profile": profile.device, "profile_error": profile.errors.get("total"), "again": again}


def given_profile(cfg: Config, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """What cycles cost on the device, this one or another, whose profile is named."""
    path = Path(cfg.latency.path)
    profile = read_profile(path)
    if profile.target != target.name:
        raise ConfigError(
            f"{path} was measured for target {profile.target!r}, but this is {target.name!r}; "
            f"type drafterforge calibrate drafter={cfg.drafter}{typed_target(cfg)} on that device"
        )
    profile.check(grid, path)
    return path, profile


def own_profile(cfg: Config, target: Target, grid: ActionGrid) -> tuple[Path, LatencyProfile]:
    """What cycles cost on this device, measured if it is not known."""
    path = artifact_dir(cfg.runs_dir, target.name, "latency", cfg.drafter)
    if not path.is_dir():
        calibrate.run(
            CalibrateConfig(
                target=cfg.target,
                grid=calibration_grid(cfg),
                latency=cfg.latency,
                runtime=cfg.runtime,
                drafter=cfg.drafter,
                domains=cfg.traces.domains,
                runs_dir=cfg.runs_dir,
                seed=cfg.seed,
            )
        )
    profile = read_profile(path)
    found = describe_device(target.device), str(target.dtype).removeprefix("torch.")
    if (profile.device, profile.dtype) != found:
        raise ConfigError(
            f"{path} was measured on {profile.device} in {profile.dtype}, this is {found[0]} in {found[1]}; "
            f"type drafterforge calibrate drafter={cfg.drafter}{typed_target(cfg)} overwrite=true, "
            f"or latency.path={path} to train for that device"
        )
    profile.check(grid, path)
    return path, profile


def calibration_grid(cfg: Config) -> GridConfig:
    """The trees that are timed."""
    return replace(cfg.grid, name="calibration", num_tokens=knots(cfg.grid.num_tokens))


def knots(num_tokens: Sequence[int]) -> list[int]:
    """Node counts to measure: the grid's, and finer ones between them."""
    return sorted({*num_tokens, *(count for count in KNOTS if count <= max(num_tokens))})


def asked_of(cfg: Config) -> dict[str, Any]:
    """The settings of a policy that are known before anything is recorded."""
    return {
        "policy": {key: value for key, value in to_dict(cfg.policy).items() if value is not None and key != "name"},
        "traces": {key: value for key, value in to_dict(cfg.traces).items() if key not in ("batch_size", "shard_size")},
        "seed": cfg.seed,
    }


def refuse_other_settings(cfg: Config, target: Target, path: Path) -> None:
    """Refuse a policy that was made with other settings before answers are recorded for it."""
    if cfg.overwrite or not path.exists():
        return
    own = {"target": target.name, "target_fingerprint": target.fingerprint}
    asked = asked_of(cfg)
    asked["policy"] = former_keys(cfg, path) | asked["policy"]
    reuse_artifact(path, "policies", config=open_artifact(path, "policies", **own).config | asked, **own)


def former_keys(cfg: Config, path: Path) -> dict[str, Any]:
    """What a policy of an earlier version recorded of other methods' keys, which its own method does not read."""
    if cfg.overwrite or not path.exists():
        return {}
    recorded = open_artifact(path, "policies").config.get("policy", {})
    foreign = {key for entry in POLICIES.values() for key in field_types(entry)} - field_types(type(cfg.policy)).keys()
    return {key: value for key, value in recorded.items() if key in foreign}


def trained(
    cfg: Config,
    target: Target,
    grid: ActionGrid,
    traces: Traces,
    profile: LatencyProfile,
    path: Path,
    sources: tuple[Path, Path],
) -> None:
    """The policy's artifact, trained if it is not there."""
    folder = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter)
    parent = open_drafter(folder, target)
    settings = asked_of(cfg) | {
        "grid": grid.as_dict(),
        "profile": profile.as_json(),
        "drafter": parent.as_parent(),
    }
    whole = {"target": target.name, "target_fingerprint": target.fingerprint, "config": settings}
    before = whole | {"config": settings | {"policy": former_keys(cfg, path) | settings["policy"]}}
    if reuse_artifact(path, "policies", **before, overwrite=cfg.overwrite) is not None:
        return
    staging = open_staging(path, settings)
    lesson = Lesson(traces.split("train"), traces.drafter(cfg.drafter), profile, grid, staging, cfg.seed)
    told, method, seconds = traces.spec.score_top_k, cfg.policy.method, None
    grids = {"ltd": ltd_grid, "marginal": marginal_grid}
    spec = PolicySpec(
        kind=method if method in grids else "shapes",
        method=method,
        target_fingerprint=target.fingerprint,
        drafter=cfg.drafter,
        drafter_sha256=fingerprint_of(parent),
        device=profile.device,
        grid=(grids[method](grid, told, cfg.policy.max_depth) if method in grids else grid).as_dict(),
        **observed_settings(cfg.policy),
        top_k=told if method in grids else 0,
    )
    if method == "ltd":
        nets, curves = train_ltd(cfg.policy, lesson)
    elif method == "marginal":
        with bar("training marginal", NUMBERS_TRIED) as progress:
            policy, curves = train_marginal(spec, lesson, lambda shown: progress.advance(shown=shown))
        spec, seconds, nets = policy.spec, policy.seconds, {}
    elif isinstance(cfg.policy, PlannerPolicyConfig):
        with bar("training planner", cfg.policy.planner_rounds) as progress:
            nets, curves = train_shapes(cfg.policy, lesson, lambda shown: progress.advance(shown=shown))
    else:
        nets, curves = train_shapes(cfg.policy, lesson)
    spec = replace(spec, hidden={name: list(part_of(cfg.policy, name).actor) for name in nets})
    parents = [parent, open_artifact(sources[0], "traces")]
    if sources[1].is_dir():
        parents.append(open_artifact(sources[1], "latency"))
    with write_artifact(
        path, kind="policies", name=path.name, **whole, parents=parents, replace=cfg.overwrite
    ) as staged:
        save_policy(staged, spec, nets, seconds)
        save_json_atomic(staged / "curves.json", curves)
        plot(staged / "curves.png", curves, cfg.policy.method)
    drop_staging(path)


def schedules_of(
    cfg: Config,
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


def policies_of(cfg: Config, target: Target, path: Path) -> dict[str, Scheduler]:
    """The further policies to decode, opened before anything takes long; the one at `path` is being trained."""
    hint = f"drafterforge train-policy{typed_target(cfg)}"
    return {
        name: opened(cfg, target, find_artifact(cfg.runs_dir, target.name, "policies", name, hint=hint))
        for name in cfg.live.policies
        if name != path.name
    }


def opened(cfg: Config, target: Target, folder: Path) -> Scheduler:
    """A policy that schedules this very drafter."""
    drafter = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter)
    policy = load_policy(folder)
    check_policy(policy, target.fingerprint, cfg.drafter, fingerprint_of(open_drafter(drafter, target)), folder)
    return policy


def live(cfg: Config, target: Target, test: Traces, schedules: dict[str, Schedule]) -> list[dict[str, Any]]:
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
        row["over_best_static"] = round(row["tokens_per_s"] / build_rate(found[static]), 4)
        row["p_over_best_static"] = faster_p(found[method.name], found[static])
        row["shapes"] = shapes_used(found[method.name])
        rows.append(row)
    return rows


def build_rate(generations: Sequence[Any]) -> float:
    """Tokens per second of some answers."""
    return sum(len(one.tokens) for one in generations) / sum(one.time_s["total"] for one in generations)


def shapes_used(generations: Sequence[Any], most: int = 6) -> dict[str, float]:
    """Shares of the trees that were verified most often."""
    cycles = [describe(TreeShape(c.num_nodes, c.depth, max(c.top_k, 1))) for one in generations for c in one.cycles]
    names, counts = np.unique(cycles, return_counts=True)
    order = np.argsort(-counts)[:most]
    return {str(names[place]): round(float(counts[place] / len(cycles)), 3) for place in order}


def plot(path: Path, curves: dict[str, Curve], method: str) -> None:
    """Learning curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2 * len(curves)), layout="constrained")
    for place, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(len(curves), 1, place + 1)
        along = "cycles" if curve and "cycles" in curve[0] else "round"
        for key in ("train/tokens_per_s", "val/tokens_per_s"):
            if curve and key in curve[0]:
                axes.plot([point[along] for point in curve], [point[key] for point in curve], label=key)
        axes.set(xlabel=along, ylabel="tokens/s, replayed", title=f"{method}: {name}")
        axes.legend()
    figure.savefig(path)


def show_replayed(rows: Sequence[dict[str, Any]], device: str) -> None:
    """Rates that need no decoding, before there are any others."""
    table = RichTable(title=f"replayed on held-out answers, priced for {device}", title_justify="left")
    for heading in ("schedule", "MAT", "tokens/s", "over best static", "actions used"):
        table.add_column(heading, justify="left" if heading == "schedule" else "right")
    static = next(row["tokens_per_s"] for row in rows if row["name"].startswith("best static tree"))
    for row in rows:
        mat = "" if row["mat"] is None else f"{row['mat']:.2f}"
        gain = f"{100 * (row['tokens_per_s'] / static - 1):+.1f} %"
        table.add_row(row["name"], mat, f"{row['tokens_per_s']:.2f}", gain, str(row["actions"] or ""))
    table_console().print(table)


def show_live(rows: Sequence[dict[str, Any]]) -> None:
    """What was decoded."""
    if not rows:
        return
    table = RichTable(title="live, one request at a time", title_justify="left")
    for heading in ("method", "MAT", "tokens/s", "speed-up", "over best static", "p", "policy's share", "mismatches"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        p = row["p_over_best_static"]
        table.add_row(
            row["method"],
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{100 * (row['over_best_static'] - 1):+.1f} %",
            "" if p is None else f"{p:.1g}",
            f"{100 * row['policy_share']:.2f} %",
            str(row["mismatches"]),
        )
    table_console().print(table)
