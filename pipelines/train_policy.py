"""Train a tree scheduler or a router on recorded traces, and compare it with the best static tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.assembly.runs import drafter_manifest, find_drafter
from drafterforge.config.catalogue import group_choices, group_values
from drafterforge.config.commands import CalibrateConfig, TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import settings_flags, shell_value, target_flags
from drafterforge.config.progress import say
from drafterforge.config.replay import GridConfig, LatencyConfig
from drafterforge.evaluation.calibration import (
    action_grid,
    latency_profile,
)
from drafterforge.evaluation.drafter_scores import scorer_of
from drafterforge.evaluation.joint_selection import replay_joint_selection
from drafterforge.evaluation.policy_comparison import (
    decode_held_out,
    open_policies,
    open_policy,
    policy_name,
    replayed_rows,
    require_inputs,
    schedules_of,
    seed_folders,
    spread_over_seeds,
)
from drafterforge.evaluation.router_training import train_router
from drafterforge.evaluation.trace_recording import record_traces
from drafterforge.pipelines import calibrate
from drafterforge.reporting import console
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.policy_verdict import beats_best_static, policy_verdict, seeds_sentence
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.targets.load import Target, load_target
from drafterforge.training.policies import policy_grid
from drafterforge.training.policy_artifact import refuse_other_settings, train_scheduler

Config = TrainPolicyConfig


def run(cfg: Config) -> Path:
    if cfg.policy.method != "router":
        require_inputs(cfg)
    target = load_target(cfg.target)
    path = artifact_dir(cfg.runs_dir, target.name, "policies", policy_name(cfg))
    if cfg.policy.method == "router":
        return run_router(cfg, target, path)
    folders = seed_folders(cfg, path)
    for seed, folder in folders.items() if cfg.policy.method != "joint" else ():
        refuse_other_settings(replace(cfg, seed=seed, seeds=[]), target, folder)
    grid, references = action_grid(cfg), open_policies(cfg, target, path)
    policy_grid(cfg.policy, grid, cfg.traces.score_top_k)  # mistakes fail before traces are recorded
    if cfg.latency.is_named or artifact_dir(cfg.runs_dir, target.name, "latency", cfg.drafter).is_dir():
        latency_profile(cfg, target, grid)
    traces_dir, traces = record_traces(cfg, target)
    grid.check(traces.spec.top_ks, traces.spec.depth, str(traces_dir))
    traces = traces.with_texts(target.backbone.embedding)
    profile_dir, profile = latency_profile(cfg, target, grid)
    if cfg.policy.method == "joint":
        curves = replay_joint_selection(traces, grid, profile, cfg.policy.arms)
        return report_joint_selection(cfg, target, curves | profile_curves(cfg, profile, profile_dir), traces_dir)

    for seed, folder in folders.items():
        seeded = replace(cfg, seed=seed, seeds=[])
        train_scheduler(seeded, target, grid, traces, profile, folder, (traces_dir, profile_dir))
    policies = {folder.name: open_policy(cfg, target, folder) for folder in folders.values()} | references
    schedules = schedules_of(cfg, target, grid, traces, profile, policies)
    test, drafter = traces.split("test"), traces.drafter(cfg.drafter)
    replays = replayed_rows(schedules, test, drafter, grid, profile, traces.split("train"))
    console.print_replayed_schedules(replays, profile.device)
    rows, answers, mismatches = decode_held_out(cfg, target, test, schedules)
    names = {seed: schedules[folder.name].name for seed, folder in folders.items()}
    spread = spread_over_seeds(names, replays, rows, answers)
    curves = {"replayed": replays, "grid": grid.as_dict(), "seeds": spread, "mismatches": mismatches}
    curves |= profile_curves(cfg, profile, profile_dir)
    report, file = write_policy_report(cfg, target, path.name, "schedules, held out", rows, curves, path)
    console.print_live_schedules(report["rows"])
    console.print_noise(report)
    method = names[cfg.seed]
    print(policy_verdict(rows, method))
    if cfg.seeds:
        print(seeds_sentence(spread))
    scheduler = f" pool.scheduler={path.name}" if beats_best_static(rows, method) else ""
    typed = f"drafter={cfg.drafter}{scheduler}{target_flags(cfg)}"
    print(f'wrote {path} and {file}; next: drafterforge generate {typed} prompt="..."')
    require_lossless(report, file)
    return path


def run_router(cfg: Config, target: Target, path: Path) -> Path:
    scorer = scorer_of(cfg, target) if cfg.router.labels == "measured" else None
    domains, overwrite = cfg.router.domains, cfg.overwrite
    rows = train_router(target, domains, path, cfg.router, cfg.seed, scorer=scorer, overwrite=overwrite)
    if rows:
        console.print_router(rows)
        first = rows[0]
        say(f"router: {first['accuracy']:.1%} of {first['num_prompts']} held-out prompts reach their domain, {path}")
    typed = f"drafter=pool pool.selector=router pool.router={path.name}{target_flags(cfg)}"
    print(f'next: drafterforge generate {typed} prompt="..."')
    return path


def report_joint_selection(cfg: Config, target: Target, curves: dict[str, Any], traces_dir: Path) -> Path:
    """Write and print the replay of selectors that choose drafter and tree together."""
    suite = "drafters and trees together, held out"
    report, file = write_policy_report(cfg, target, cfg.name or "joint", suite, [], curves, traces_dir)
    console.print_joint_selection(curves)
    console.print_noise(report)
    print(f"wrote {file}; next: drafterforge inspect {file.parent}")
    return file.parent


def write_policy_report(
    cfg: Config, target: Target, name: str, suite: str, rows: list[dict[str, Any]], curves: dict[str, Any], parent: Path
) -> tuple[dict[str, Any], Path]:
    """Write the report of a policy.  parent: folder of the artifact that was measured."""
    measured = cfg.traces.drafters or [cfg.drafter]
    return write_report(
        cfg.runs_dir,
        target,
        f"policy-{name}",
        suite=suite,
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows,
        curves=curves,
        config=to_dict(cfg),
        parents=[
            open_artifact(parent, "policies" if rows or "arms" not in curves else "traces"),
            *(drafter_manifest(find_drafter(cfg.runs_dir, target.name, name), target) for name in measured),
        ],
    )


def profile_curves(cfg: Config, profile: LatencyProfile, folder: Path) -> dict[str, Any]:
    """The latency profile that priced the schedules, as the report names it, and what to type if figures are noisy."""
    curves = {"profile": profile.device, "profile_error": profile.errors.get("total")}
    curves["again"] = f"drafterforge train-policy{typed_flags(cfg)}{target_flags(cfg)}"
    if cfg.latency.device:
        curves["priced_by"] = cfg.latency.device
    if not cfg.latency.is_named:
        measured = open_artifact(folder, "latency").config
        config = CalibrateConfig(
            target=cfg.target,
            grid=GridConfig(**measured["grid"]),
            latency=LatencyConfig(**measured["latency"]),
            runtime=cfg.runtime,
            drafter=cfg.drafter,
            domains=cfg.traces.domains,
            runs_dir=cfg.runs_dir,
            seed=measured["seed"],
        )
        typed = f"drafter={cfg.drafter}{target_flags(cfg)}{calibrate.typed_flags(config)}"
        curves["recalibrate"] = f"drafterforge calibrate {typed} overwrite=true"
    return curves


def typed_flags(cfg: Config) -> str:
    """What was typed besides target and runs_dir, each key after a space: it decodes with the same policies again."""
    defaults = Config()
    policy = cfg.policy.name if cfg.policy.name in group_choices("policy") else cfg.policy.method
    grid = cfg.grid.name if cfg.grid.name in group_choices("grid") else defaults.grid.name
    values = {
        "policy": type(cfg.policy)(**group_values("policy", policy)),
        "grid": GridConfig(**group_values("grid", grid)),
    }
    flags = [f" policy={policy}", f" grid={grid}" if grid != defaults.grid.name else ""]
    for group in ("policy", "grid", "traces", "latency", "live", "runtime"):
        flags.append(settings_flags(group, getattr(cfg, group), values.get(group, getattr(defaults, group))))
    flags += [
        f" {key}={shell_value(getattr(cfg, key))}"
        for key in ("drafter", "name", "seed", "seeds")
        if getattr(cfg, key) != getattr(defaults, key)
    ]
    return "".join(flags)
