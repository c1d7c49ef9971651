"""The engine that a command decodes with: a bundle's, or the target with what `drafter=` names."""

from __future__ import annotations

from drafterforge.assembly.bundles import find_bundle, locate, open_bundle
from drafterforge.assembly.pools import (
    build_pool,
    check_alone,
    check_selector,
    open_alone,
    say_of_reading,
    scheduled,
)
from drafterforge.assembly.runs import RunsFolder
from drafterforge.bundle.record import read_record
from drafterforge.config.pool import PoolConfig
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.shapes import choose_shape
from drafterforge.selectors import check_options
from drafterforge.targets.load import load_target, target_name

POOL = "pool"  # what `drafter=` says of all the target's drafters together


def open_engine(cfg: GenerateConfig | ServeConfig, max_batch: int = 8) -> tuple[Engine, str]:
    """The engine that is configured, and the name of what it serves."""
    if cfg.bundle:
        return open_named_bundle(cfg, max_batch)
    if cfg.drafter == POOL:
        check_selector(cfg.pool)
    else:
        check_alone(cfg.pool, cfg.drafter)
        given = [key for key in ("num_tokens", "depth", "top_k") if getattr(cfg.runtime, key) is not None]
        if cfg.pool.scheduler and given:
            raise ConfigError(
                f"runtime.{given[0]}= does nothing where pool.scheduler={cfg.pool.scheduler} chooses the trees; "
                "leave one of them out"
            )
    target = load_target(cfg.target)
    runs = RunsFolder(cfg.runs_dir, target)
    if cfg.drafter == POOL:
        say_of_reading(cfg.pool, target)
        drafter, shape = build_pool(cfg.pool, cfg.runtime, runs)
    else:
        drafter = open_alone(cfg.drafter, runs) if cfg.drafter else None
        shape = choose_shape(cfg.runtime, target.device, target.dtype, kind_name(drafter))
        drafter = scheduled(runs, cfg.pool.scheduler, cfg.drafter, drafter)
    return Engine(target, drafter, shape, max_batch, cfg.runtime.numerics), target.name


def open_named_bundle(cfg: GenerateConfig | ServeConfig, max_batch: int) -> tuple[Engine, str]:
    """The engine of a bundle given by name, path or hub id; keys that are given come before its defaults."""
    plain, pool = PoolConfig(), cfg.pool
    if pool.drafters or pool.router or pool.every != plain.every or pool.options:
        raise ConfigError(
            "a bundle fixes pool.drafters, pool.router, pool.every and pool.options; with bundle= give pool.selector "
            "or pool.scheduler only, or export another bundle"
        )
    if cfg.drafter not in ("", POOL):
        check_alone(pool, cfg.drafter)
    if pool.scheduler and cfg.drafter not in ("", POOL):
        raise ConfigError(
            f"drafter={cfg.drafter} of a bundle decodes alone, which pool.scheduler={pool.scheduler} does not change; "
            "leave one of them out"
        )
    check_options(pool.selector, ())
    folder = locate(find_bundle(cfg.bundle, target_name(cfg.target), cfg.runs_dir))
    engine = open_bundle(
        folder,
        target=cfg.target if cfg.target.source == "hf" else None,
        drafter="" if cfg.drafter == POOL else cfg.drafter,
        selector=None if pool.selector == plain.selector else pool.selector,
        scheduler=pool.scheduler or None,
        device=cfg.target.device,
        dtype=cfg.target.dtype,
        runtime=cfg.runtime,
        max_batch=max_batch,
    )
    return engine, read_record(folder).name
