"""Open the engine of a command: that of `bundle=`, or the target with the drafter of `drafter=`."""

from __future__ import annotations

from pathlib import Path

from drafterforge.artifacts.bundles import find_bundle
from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.bundles import locate, open_bundle
from drafterforge.assembly.defaults import AUTO, default_drafter
from drafterforge.assembly.pools import (
    build_pool,
    check_selector,
    check_single_drafter,
    open_single_drafter,
    with_scheduler,
)
from drafterforge.assembly.runs import POLICY_COMMAND, ROUTER_COMMAND, RunsFolder, locate_drafter
from drafterforge.bundle.record import read_record
from drafterforge.config.hints import target_flags
from drafterforge.config.names import parse_hybrid, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape, default_shape
from drafterforge.runtime.verify_costs import verify_costs
from drafterforge.runtime.worth import Worth
from drafterforge.selectors import check_options
from drafterforge.targets.load import Target, load_target, target_name

POOL = "pool"  # value of `drafter=` for a pool of the target's drafters


def open_engine(cfg: GenerateConfig | ServeConfig, max_batch: int = 8) -> tuple[Engine, str]:
    """The configured engine, and the name of its bundle or target."""
    if cfg.bundle:
        return open_named_bundle(cfg, max_batch)
    flags = target_flags(cfg)
    check_engine(cfg.drafter, cfg.pool, cfg.runtime, flags)
    check_names(cfg.drafter, cfg.pool, cfg.runs_dir, target_name(cfg.target), flags)
    target = load_target(cfg.target)
    runs = RunsFolder(cfg.runs_dir, target)
    if cfg.drafter == AUTO:
        engine, drafter = auto_engine(runs, cfg.runtime, max_batch)
        choice = f"uses {drafter}" if drafter else "decodes without a drafter"
        say(f"drafter=auto {choice} for {target.name} on this {target.device.type}")
        return engine, target.name
    return build_engine(runs, cfg.drafter, cfg.pool, cfg.runtime, max_batch), target.name


def auto_engine(runs: RunsFolder, runtime: RuntimeConfig, max_batch: int = 8) -> tuple[Engine, str]:
    """The engine that `drafter=auto` stands for, and the name of its drafter; the name is empty for plain decoding.

    A hybrid drafts only when and as much as `runtime.worth` finds faster, unless `runtime` fixes the shape of trees.
    """
    name, target = default_drafter(runs), runs.target
    if parse_hybrid(name) is None or (runtime.num_tokens, runtime.depth, runtime.top_k) != (None, None, None):
        return build_engine(runs, name, PoolConfig(), runtime, max_batch), name
    return engine_by_worth(target, name, open_single_drafter(name, runs), runtime.numerics, max_batch), name


def engine_by_worth(target: Target, name: str, drafter: Drafter, numerics: str, max_batch: int) -> Engine:
    """An engine that decides in every cycle whether and how much a hybrid drafts."""
    shape = default_shape(target.device, target.dtype, drafter.kind)
    worth = Worth(verify_costs(target, choose_numerics(numerics, target) == "invariant"))
    pool = Pool({name: drafter}, "static", shapes={name: shape}, worth=worth)
    return Engine(target, pool, shape, max_batch, numerics)


def check_engine(drafter: str, pool: PoolConfig, runtime: RuntimeConfig, flags: str = "") -> None:
    """ConfigError if settings contradict each other; loads nothing.

    flags: target and runs folder of a suggested command, see `config.hints.target_flags`.
    """
    if drafter == POOL:
        return check_selector(pool, flags)
    check_single_drafter(pool, drafter)
    if pool.scheduler and drafter in (AUTO, ""):
        raise ConfigError(f"pool.scheduler={pool.scheduler} needs a drafter; type drafter=NAME or drafter=pool")
    shape_keys = [key for key in ("num_tokens", "depth", "top_k") if getattr(runtime, key) is not None]
    if pool.scheduler and shape_keys:
        raise ConfigError(
            f"runtime.{shape_keys[0]}= has no effect when pool.scheduler={pool.scheduler} chooses the trees; "
            "leave one of them out"
        )


def check_names(drafter: str, pool: PoolConfig, runs_dir: Path | str, target: str, flags: str = "") -> None:
    """ArtifactError if a drafter, policy or router does not exist; loads nothing."""
    drafters = {POOL: pool.drafters, AUTO: [], "": []}.get(drafter, [drafter])
    for name in drafters:
        for part in [name] if Path(name).expanduser().exists() else parts_of([name]):
            locate_drafter(runs_dir, target, part, flags)
    for name, hint in ((pool.scheduler, POLICY_COMMAND), (pool.router, ROUTER_COMMAND)):
        if name:
            find_artifact(runs_dir, target, "policies", name, hint=hint + flags)


def build_engine(
    runs: RunsFolder, drafter: str, pool: PoolConfig, runtime: RuntimeConfig, max_batch: int = 8
) -> Engine:
    """The engine of a loaded target.  drafter: a name, a folder, `pool`, or empty for plain decoding."""
    target = runs.target
    if drafter == POOL:
        opened, shape = build_pool(pool, runtime, runs)
    else:
        opened = open_single_drafter(drafter, runs) if drafter else None
        shape = choose_shape(runtime, target.device, target.dtype, kind_name(opened))
        opened = with_scheduler(opened, drafter, pool.scheduler, runs)
    return Engine(target, opened, shape, max_batch, runtime.numerics)


def open_named_bundle(cfg: GenerateConfig | ServeConfig, max_batch: int) -> tuple[Engine, str]:
    """The engine and name of the bundle of `bundle=`; keys that the user typed override its defaults."""
    plain, pool = PoolConfig(), cfg.pool
    if pool.drafters or pool.router or pool.read_interval != plain.read_interval or pool.options:
        raise ConfigError(
            "a bundle fixes pool.drafters, pool.router, pool.read_interval and pool.options; with bundle= give "
            "pool.selector or pool.scheduler only, or export another bundle"
        )
    if cfg.drafter not in ("", AUTO, POOL):
        check_single_drafter(pool, cfg.drafter)
    if pool.scheduler and cfg.drafter not in ("", AUTO, POOL):
        raise ConfigError(
            f"drafter={cfg.drafter} of a bundle decodes without a scheduler, got pool.scheduler={pool.scheduler}; "
            "leave one of them out"
        )
    check_options(pool.selector, ())
    folder = locate(find_bundle(cfg.bundle, target_name(cfg.target), cfg.runs_dir, target_flags(cfg)))
    engine = open_bundle(
        folder,
        target=cfg.target if cfg.target.source == "hf" else None,
        drafter="" if cfg.drafter in (AUTO, POOL) else cfg.drafter,
        selector=None if pool.selector == plain.selector else pool.selector,
        scheduler=pool.scheduler or None,
        device=cfg.target.device,
        dtype=cfg.target.dtype,
        runtime=cfg.runtime,
        max_batch=max_batch,
    )
    return engine, read_record(folder).name
