"""Trains a tree scheduler into a `policies` artifact, unless one with the same settings exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import open_artifact, reuse_artifact
from drafterforge.artifacts.locate import find_artifact
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.catalogue import field_types
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.policy import POLICIES
from drafterforge.config.progress import say
from drafterforge.config.renamed import with_present_keys
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.policy import save_policy
from drafterforge.targets.load import Target
from drafterforge.training.learning_curves import plot_curves, thinned
from drafterforge.training.policies import PolicyInputs, fit_policy


def train_scheduler(
    cfg: TrainPolicyConfig,
    target: Target,
    grid: ActionGrid,
    traces: Traces,
    profile: LatencyProfile,
    path: Path,
    sources: tuple[Path, Path],
) -> None:
    """Train the policy and write its artifact, unless it exists.  sources: folders of the traces and the profile."""
    drafter = drafter_manifest(find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter), target)
    settings = known_settings(cfg) | {
        "grid": grid.as_dict(),
        "profile": profile.as_json(),
        "drafter": drafter.as_parent(),
    }
    settings["policy"] = former_keys(cfg, path) | settings["policy"]
    parents = [drafter, open_artifact(sources[0], "traces")]
    parents += [open_artifact(sources[1], "latency")] if sources[1].is_dir() else []
    run = artifact_run(path, "policies", target, settings, parents, overwrite=cfg.overwrite)
    if run.existing:
        say(f"policy: {path} was trained before with these settings, traces and latency profile")
        return
    inputs = PolicyInputs(traces.split("train"), traces.drafter(cfg.drafter), profile, grid, run.stage(), cfg.seed)
    fitted = fit_policy(cfg.policy, inputs, drafter)
    with run.write() as folder:
        save_policy(folder, fitted.spec, fitted.nets, fitted.seconds)
        curves = thinned(fitted.curves)
        save_json_atomic(folder / "curves.json", curves)
        plot_curves(folder / "curves.png", curves, cfg.policy.method)


def known_settings(cfg: TrainPolicyConfig) -> dict[str, Any]:
    """The settings of a policy that are known before anything is recorded."""
    return {
        "policy": {key: value for key, value in to_dict(cfg.policy).items() if value is not None and key != "name"},
        "traces": {
            key: value for key, value in cfg.traces.recorded().items() if key not in ("batch_size", "shard_size")
        },
        "seed": cfg.seed,
    }


def refuse_other_settings(cfg: TrainPolicyConfig, target: Target, path: Path) -> None:
    """Refuse a policy that was made with other settings before answers are recorded for it."""
    if cfg.overwrite or not path.exists():
        return
    of_target = {"target": target.name, "target_fingerprint": target.fingerprint}
    settings = known_settings(cfg)
    settings["policy"] = former_keys(cfg, path) | settings["policy"]
    recorded = open_artifact(path, "policies", **of_target).config
    reuse_artifact(path, "policies", config=recorded | settings, **of_target)


def former_keys(cfg: TrainPolicyConfig, path: Path) -> dict[str, Any]:
    """What a policy of an earlier version recorded of other methods' keys, which its method does not read."""
    if cfg.overwrite or not path.exists():
        return {}
    recorded = with_present_keys(open_artifact(path, "policies").config).get("policy", {})
    foreign = {key for entry in POLICIES.values() for key in field_types(entry)} - field_types(type(cfg.policy)).keys()
    return {key: value for key, value in recorded.items() if key in foreign}
