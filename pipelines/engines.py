"""The engine that a command decodes with: a bundle's, or the target with what `drafter=` names."""

from __future__ import annotations

from drafterforge.assembly.open_bundle import locate, open_bundle
from drafterforge.bundle.record import read_record
from drafterforge.config.pool import PoolConfig
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.errors import ConfigError
from drafterforge.pipelines.bundles import find_bundle
from drafterforge.pipelines.decode import load_any_drafter
from drafterforge.pipelines.pool import build_pool, check_alone, check_selector, say_of_reading, scheduled
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.shapes import choose_shape
from drafterforge.selectors import check_options
from drafterforge.targets.load import load_target


def open_engine(cfg: GenerateConfig | ServeConfig, max_batch: int = 8) -> tuple[Engine, str]:
    """The engine that is configured, and the name of what it serves."""
    if cfg.bundle:
        return open_named_bundle(cfg, max_batch)
    if cfg.drafter == "pool":
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
    if cfg.drafter == "pool":
        say_of_reading(cfg.pool, target)
        drafter, shape = build_pool(cfg.pool, cfg.runtime, cfg.runs_dir, target)
    else:
        drafter = load_any_drafter(cfg, target)
        shape = choose_shape(cfg.runtime, target.device, target.dtype, kind_name(drafter))
        drafter = scheduled(cfg.pool, cfg.runs_dir, target, cfg.drafter, drafter)
    return Engine(target, drafter, shape, max_batch, cfg.runtime.numerics), target.name


def open_named_bundle(cfg: GenerateConfig | ServeConfig, max_batch: int) -> tuple[Engine, str]:
    """The engine of a bundle given by name, path or hub id; keys that are given come before its defaults."""
    plain, own = PoolConfig(), cfg.pool
    if own.drafters or own.router or own.every != plain.every or own.options:
        raise ConfigError(
            "a bundle fixes pool.drafters, pool.router, pool.every and pool.options; with bundle= give pool.selector "
            "or pool.scheduler only, or export another bundle"
        )
    if cfg.drafter not in ("", "pool"):
        check_alone(own, cfg.drafter)
    if own.scheduler and cfg.drafter not in ("", "pool"):
        raise ConfigError(
            f"drafter={cfg.drafter} of a bundle decodes alone, which pool.scheduler={own.scheduler} does not change; "
            "leave one of them out"
        )
    check_options(own.selector, ())
    folder = locate(find_bundle(cfg))
    engine = open_bundle(
        folder,
        target=cfg.target if cfg.target.source == "hf" else None,
        drafter="" if cfg.drafter == "pool" else cfg.drafter,
        selector=None if own.selector == plain.selector else own.selector,
        scheduler=own.scheduler or None,
        device=cfg.target.device,
        dtype=cfg.target.dtype,
        runtime=cfg.runtime,
        max_batch=max_batch,
    )
    return engine, read_record(folder).name
