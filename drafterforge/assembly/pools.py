"""Build pools: open the configured drafters together with their selector, scheduler and router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drafterforge.assembly.drafters import open_named
from drafterforge.assembly.runs import GENERAL, MIN_VAL_PROMPTS, RunsFolder
from drafterforge.assembly.sources import DrafterSummary, PoolSource
from drafterforge.config.names import RETRIEVAL, parse_hybrid
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.registry import kind_named, kind_of
from drafterforge.drafters.retrieval.kind import LAST as DATASTORE_RANK
from drafterforge.errors import ConfigError
from drafterforge.router.router import Router
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.policy import check_observations, check_policy, load_policy
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


def pool_names(source: PoolSource, names: Sequence[str]) -> list[str]:
    """Names of a pool's drafters: `names`, or the source's default if it is empty."""
    check_unique(names)
    return list(names) or source.pool()


def check_unique(names: Sequence[str]) -> None:
    if repeated := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"drafters names {', '.join(repeated)} more than once; a pool has each drafter once")


def retrieval_for(summaries: Iterable[DrafterSummary], domain: str) -> str:
    """The retrieval drafter for a domain: its own datastore, else a general one, else `retrieval`."""
    datastores: dict[str, str] = {}  # domain -> name
    for summary in summaries:
        if summary.rank == DATASTORE_RANK:
            datastores.setdefault(summary.domain, summary.name)
    return datastores.get(domain) or datastores.get(GENERAL) or RETRIEVAL


def report_left_out(source: PoolSource) -> None:
    """Print one line for each reason for which the default pool leaves out drafters."""
    report_other_taps(source)
    if names := source.unproven():
        say(
            f"not in the pool: {', '.join(names)}: on {MIN_VAL_PROMPTS} or more validation prompts, none was shown to "
            "beat the generalist and the drafter that it was trained from; pool.drafters=[NAME,...] includes them"
        )


def report_other_taps(source: PoolSource) -> None:
    """Print one line about the drafters that are left out because of the layers that they read."""
    if names := source.other_taps():
        taps = ",".join(map(str, source.target.backbone.taps))
        say(
            f"left out: {', '.join(names)}; they read other layers of the target than target.taps=[{taps}], type "
            "target.taps= with theirs to use them"
        )


def build_pool(
    cfg: PoolConfig, runtime: RuntimeConfig, source: PoolSource, seed: int | None = 0
) -> tuple[Pool, TreeShape]:
    """The configured pool, and the default tree shape of drafters that have none of their own.

    seed: of random selectors whose options give none; None: the selector's default.
    """
    target = source.target
    if not cfg.drafters and not source.quiet:
        report_left_out(source)
    drafters = open_named(pool_names(source, cfg.drafters), source.drafter, target)
    shapes = {
        name: choose_shape(runtime, target.device, target.dtype, drafter.kind)
        for name, drafter in drafters.items()
        if kind_of(drafter).has_default_shape
    }
    pool = Pool(
        drafters,
        cfg.selector_name,
        shapes=shapes,
        scheduler=open_scheduler(source, cfg.scheduler, drafters),
        router=open_router(source, cfg.router),
        **({} if seed is None else {"seed": seed}) | cfg.options,
    )
    shape = choose_shape(runtime, target.device, target.dtype)
    pool.selector(shape)  # report a mistake in its options now, not at the first prompt
    return pool, shape


def open_single_drafter(name: str, source: PoolSource) -> Drafter:
    """A single drafter or hybrid, outside a pool; a LoRA expert's adapter is merged into its weights."""
    if parse_hybrid(name) is not None and not Path(name).expanduser().exists():
        return open_named([name], source.drafter, source.target)[name]
    files = source.drafter(name)
    return kind_named(files.kind).load(files, source.target)


def with_scheduler(drafter: Drafter | None, name: str, policy: str, source: PoolSource) -> Drafter | Pool | None:
    """A pool of only this drafter, whose trees the policy chooses; the drafter unchanged if `policy` is empty."""
    if not policy or drafter is None:
        return drafter
    drafters = {name: drafter}
    return Pool(drafters, "static", scheduler=open_scheduler(source, policy, drafters))


def open_scheduler(source: PoolSource, name: str, drafters: Mapping[str, Drafter]) -> Scheduler | None:
    """The policy of this name, checked against the target and its drafter; None if `name` is empty.

    drafters: those whose trees the policy will choose.  A single drafter must be the one that the policy was trained
    for.  Among several, one line names those that it was not trained for.
    """
    if not name:
        return None
    folder = source.part(name, "policy")
    policy = load_policy(folder)
    trained_for = policy.spec.drafter
    schedulable = [key for key, drafter in drafters.items() if kind_of(drafter).scheduled]
    if not schedulable:
        raise ConfigError(
            f"pool.scheduler={name} chooses trees of EAGLE-3 drafters, got {', '.join(drafters)}; "
            f"type drafter={trained_for}, or leave pool.scheduler out"
        )
    drafter = schedulable[0] if len(drafters) == 1 else trained_for
    recorded_name, weights = source.identity(drafter)
    if len(drafters) == 1 and recorded_name != trained_for and weights != policy.spec.drafter_sha256:
        raise ConfigError(
            f"pool.scheduler={name} is a policy for drafter {trained_for!r}, not for {drafter!r}; "
            f"type drafter={trained_for}, "
            f"or `drafterforge train-policy drafter={drafter} name={recorded_name}-{policy.name}`"
        )
    check_policy(policy, source.target.fingerprint, drafter, weights, folder)
    sizes = [drafters[key].spec.draft_vocab_size for key in schedulable]
    taps = source.target.backbone.taps
    check_observations(policy, source.target.config.hidden_size, len(taps), sizes, folder)
    untrained = [key for key in schedulable if key not in (trained_for, drafter)]
    if untrained and not source.quiet:
        say(f"pool.scheduler={name} was trained for {trained_for}; it also chooses the trees of {', '.join(untrained)}")
    return policy


def open_router(source: PoolSource, name: str) -> Router | None:
    """The router of this name; None if `name` is empty."""
    return Router.load(source.part(name, "router"), source.target.features_fingerprint) if name else None


def open_pool(runs_dir: Path | str, target: Target, names: Sequence[str]) -> dict[str, Drafter]:
    """Loaded drafters by name; LoRA experts share the weights of their generalist."""
    check_unique(names)
    return open_named(names, RunsFolder(runs_dir, target).drafter, target)
