"""Build the engine of a loaded target with the drafters of a source: a runs folder or a bundle."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from drafterforge.assembly.defaults import default_drafters
from drafterforge.assembly.drafters import open_named
from drafterforge.assembly.pools import build_pool, open_single_drafter, report_other_taps, with_scheduler
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.names import POOL, parse_hybrid, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.router.router import Router
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
) -> tuple[Engine, list[str]]:
    """The engine that `drafter=auto` stands for, and the names of its drafters; none for plain decoding.

    In every cycle it decides by expected tokens per second which hybrid drafts and how much, see `AutoProposer`, unless
    `runtime` fixes the shape of trees.
    carry: begin with what was learned when `Engine.save_state` was called last, for this target, drafters and device.
    """
    names, target = default_drafters(source), source.target
    if not source.quiet:
        report_other_taps(source)
    name = names[0] if names else ""
    if parse_hybrid(name) is None or (runtime.num_tokens, runtime.depth, runtime.top_k) != (None, None, None):
        return build_engine(source, name, PoolConfig(), runtime, max_batch), names[:1]
    invariant = choose_numerics(runtime.numerics, target) == "invariant"
    worth = Worth(verify_costs(target, invariant, source.cost_folders()))
    if carry:
        worth.path = state_path(source, names, invariant)
        with contextlib.suppress(ArtifactError):  # nothing was saved, or by another version
            load_state(worth, worth.path)
    drafters = (
        open_named(names, source.drafter, target) if len(names) > 1 else {name: open_single_drafter(name, source)}
    )
    router = advisor(source, names) if len(names) > 1 else None
    return engine_by_worth(target, drafters, worth, runtime.numerics, max_batch, router), names


def advisor(source: PoolSource, names: Sequence[str]) -> Router | None:
    """The router that advises among drafters; None if the source has none that knows any of them."""
    folder = source.default_router()
    if folder is None:
        return None
    try:
        router = Router.load(folder, source.target.features_fingerprint)
        router.label_shares(names)
    except (ArtifactError, ConfigError):
        return None
    return router


def state_path(source: PoolSource, names: Sequence[str], invariant: bool) -> Path:
    """The file of what decisions learn with these hybrids on this device, in the cache folder."""
    parts = [part for part in parts_of(names) if part not in source.learned()]  # which come and go
    weights = [source.identity(part)[1] if source.drafter(part).folder else part for part in parts]
    digest = hashlib.sha256("\0".join(weights).encode()).hexdigest()[:16]
    costs = costs_path(source.target, invariant)
    return costs.with_name(f"{costs.stem}-{digest}.state")


def engine_by_worth(
    target: Target,
    drafters: Mapping[str, Drafter],
    worth: Worth,
    numerics: str = "auto",
    max_batch: int = 8,
    router: Router | None = None,
) -> Engine:
    """An engine that decides in every cycle which hybrid drafts and how much."""
    shapes = {name: default_shape(target.device, target.dtype, drafter.kind) for name, drafter in drafters.items()}
    pool = Pool(drafters, "static", shapes=shapes, router=router, worth=worth)
    return Engine(target, pool, next(iter(shapes.values())), max_batch, numerics)


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
    return Engine(target, opened, shape, max_batch, runtime.numerics, verify=runtime.verify)
