"""Open the engine of a command: that of `bundle=`, or the target with the drafter of `drafter=`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.bundles import find_bundle
from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.build import auto_engine, build_engine
from drafterforge.assembly.bundles import BundleFolder, locate, open_bundle
from drafterforge.assembly.checks import check_bundle_settings, check_engine
from drafterforge.assembly.defaults import default_drafters
from drafterforge.assembly.runs import RunsFolder, locate_drafter
from drafterforge.bundle.record import read_record
from drafterforge.config.hints import command_for_policy, command_for_router
from drafterforge.config.names import AUTO, POOL, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.targets.load import Target, load_target, target_name


def open_engine(cfg: GenerateConfig | ServeConfig, max_batch: int = 8) -> tuple[Engine, str]:
    """The configured engine, and the name of its bundle or target."""
    if cfg.bundle:
        return open_named_bundle(cfg, max_batch)
    check_engine(cfg.drafter, cfg.pool, cfg.runtime)
    check_names(cfg.drafter, cfg.pool, cfg.runs_dir, target_name(cfg.target))
    target = load_target(cfg.target)
    runs = RunsFolder(cfg.runs_dir, target)
    if cfg.drafter == AUTO:
        engine, names = auto_engine(runs, cfg.runtime, max_batch, carry=True)
        say_choice(names, target)
        return engine, target.name
    return build_engine(runs, cfg.drafter, cfg.pool, cfg.runtime, max_batch), target.name


def say_choice(names: Sequence[str], target: Target) -> None:
    """Print which drafters `drafter=auto` stands for."""
    experts = f", and {', '.join(names[1:])} where they are faster," if len(names) > 1 else ""
    choice = f"uses {names[0]}{experts}" if names else "decodes without a drafter"
    say(f"drafter=auto {choice} for {target.name} on this {target.device.type}")


def check_names(drafter: str, pool: PoolConfig, runs_dir: Path | str, target: str) -> None:
    """ArtifactError if a drafter, policy or router does not exist; loads nothing."""
    drafters = {POOL: pool.drafters, AUTO: [], "": []}.get(drafter, [drafter])
    for name in drafters:
        for part in [name] if Path(name).expanduser().exists() else parts_of([name]):
            locate_drafter(runs_dir, target, part)
    for name, command in ((pool.scheduler, command_for_policy), (pool.router, command_for_router)):
        if name:
            find_artifact(runs_dir, target, "policies", name, hint=command(name))


def open_named_bundle(cfg: GenerateConfig | ServeConfig, max_batch: int) -> tuple[Engine, str]:
    """The engine and name of the bundle of `bundle=`; keys that the user typed override its defaults."""
    check_bundle_settings(cfg)
    pool = cfg.pool
    folder = locate(find_bundle(cfg.bundle, target_name(cfg.target), cfg.runs_dir))
    engine = open_bundle(
        folder,
        target=cfg.target if cfg.target.source == "hf" else None,
        drafter=cfg.drafter,
        selector=pool.selector or None,
        scheduler=pool.scheduler or None,
        device=cfg.target.device,
        dtype=cfg.target.dtype,
        runtime=cfg.runtime,
        max_batch=max_batch,
        carry=True,
    )
    record = read_record(folder)
    if cfg.drafter == AUTO and not (pool.scheduler or pool.selector) and record.defaults.automatic:
        names = default_drafters(BundleFolder(folder, record, engine.target))
        say_choice(names if isinstance(engine.drafter, Pool) else names[:1], engine.target)
    return engine, record.name
