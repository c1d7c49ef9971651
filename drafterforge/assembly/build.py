"""Build the engine of a loaded target with the drafters of a source: a runs folder or a bundle."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from drafterforge.assembly.defaults import POOL, default_drafter
from drafterforge.assembly.pools import build_pool, open_single_drafter, with_scheduler
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.names import parse_hybrid
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ArtifactError
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape, default_shape
from drafterforge.runtime.verify_costs import costs_path, verify_costs
from drafterforge.runtime.worth import Worth
from drafterforge.runtime.worth_state import load_state
from drafterforge.targets.load import Target


def auto_engine(
    source: PoolSource, runtime: RuntimeConfig, max_batch: int = 8, carry: bool = False
) -> tuple[Engine, str]:
    """The engine that `drafter=auto` stands for, and the name of its drafter; the name is empty for plain decoding.

    A hybrid drafts only when and as much as `runtime.worth` finds faster, unless `runtime` fixes the shape of trees.
    carry: begin with what was learned when `Engine.save_state` was called last, for this target, drafter and device.
    """
    name, target = default_drafter(source), source.target
    if parse_hybrid(name) is None or (runtime.num_tokens, runtime.depth, runtime.top_k) != (None, None, None):
        return build_engine(source, name, PoolConfig(), runtime, max_batch), name
    invariant = choose_numerics(runtime.numerics, target) == "invariant"
    worth = Worth(verify_costs(target, invariant, source.cost_folders()))
    if carry:
        worth.path = state_path(source, name, invariant)
        with contextlib.suppress(ArtifactError):  # nothing was saved, or by another version
            load_state(worth, worth.path)
    return engine_by_worth(target, name, open_single_drafter(name, source), worth, runtime.numerics, max_batch), name


def state_path(source: PoolSource, name: str, invariant: bool) -> Path:
    """The file of what decisions learn with a hybrid on this device, in the cache folder."""
    weights = [
        source.identity(part)[1] if source.drafter(part).folder else part for part in parse_hybrid(name) or (name,)
    ]
    digest = hashlib.sha256("\0".join(weights).encode()).hexdigest()[:16]
    costs = costs_path(source.target, invariant)
    return costs.with_name(f"{costs.stem}-{digest}.state")


def engine_by_worth(
    target: Target, name: str, drafter: Drafter, worth: Worth, numerics: str = "auto", max_batch: int = 8
) -> Engine:
    """An engine that decides in every cycle whether and how much a hybrid drafts."""
    shape = default_shape(target.device, target.dtype, drafter.kind)
    pool = Pool({name: drafter}, "static", shapes={name: shape}, worth=worth)
    return Engine(target, pool, shape, max_batch, numerics)


def build_engine(
    source: PoolSource,
    drafter: str,
    pool: PoolConfig,
    runtime: RuntimeConfig,
    max_batch: int = 8,
    seed: int | None = 0,
) -> Engine:
    """The engine of a drafter, a pool or the target alone.

    drafter: a name, a folder, `pool`, or empty for plain decoding.  seed: see `build_pool`.
    """
    target = source.target
    if drafter == POOL:
        opened, shape = build_pool(pool, runtime, source, seed)
    else:
        opened = open_single_drafter(drafter, source) if drafter else None
        shape = choose_shape(runtime, target.device, target.dtype, kind_name(opened))
        opened = with_scheduler(opened, drafter, pool.scheduler, source)
    return Engine(target, opened, shape, max_batch, runtime.numerics)
