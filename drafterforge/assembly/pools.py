"""Pools: the drafters that a configuration names, opened together with their selector, scheduler and router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.assembly.drafters import RETRIEVAL, open_named
from drafterforge.assembly.runs import GENERAL, RunsFolder
from drafterforge.assembly.sources import PoolSource
from drafterforge.config.names import parse_hybrid, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.registry import kind_named, kind_of
from drafterforge.drafters.retrieval.kind import LAST as DATASTORE_RANK
from drafterforge.errors import ConfigError
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.router.router import Router
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.policy import check_observations, check_policy, load_policy
from drafterforge.selectors import advised, check_options
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape


def pool_names(source: PoolSource, names: Sequence[str]) -> list[str]:
    """Names of a pool's drafters: those given, or the source's default."""
    refuse_repeated(names)
    return list(names) or source.pool()


def refuse_repeated(names: Sequence[str]) -> None:
    """Refuse a name that is given twice."""
    if repeated := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"drafters names {', '.join(repeated)} more than once; a pool has each drafter once")


def retrieval_of(runs: RunsFolder, names: Sequence[str], domain: str) -> str:
    """The datastore of a pool that a domain is served by: its own, one of all domains, or the retrieval without one."""
    of: dict[str, str] = {}
    for name in (name for name in parts_of(names) if name != RETRIEVAL):
        if runs.rank(name) == DATASTORE_RANK:
            of.setdefault(runs.manifest(name).config["domain"], name)
    return of.get(domain) or of.get(GENERAL) or RETRIEVAL


def check_selector(cfg: PoolConfig, typed: str = "") -> None:
    """Refuse a selector or options that do not exist, or a router that nobody would listen to, before any loading.

    typed: keys of a suggested command, see `config.hints.typed_target`.
    """
    check_options(cfg.selector, cfg.options)
    if cfg.selector == "oracle":
        raise ConfigError("selector=oracle has to be told the best drafter, which eval alone finds out; type hedgespec")
    if "levels" in cfg.options:
        raise ConfigError("levels of a selector is what the pool's trees say; leave it out of pool.options")
    if cfg.router:
        advised(cfg.selector, cfg.options)
    elif cfg.selector == "router":
        raise ConfigError(
            f"selector=router needs pool.router=NAME; type drafterforge train-policy policy=router{typed}"
        )


def say_of_reading(cfg: PoolConfig, target: Target) -> None:
    """One line where the pool by default is the slow one of those that are shipped."""
    routed = (SHIPPED / target.name / "policies" / "router").is_dir()
    if cfg == PoolConfig() and routed and target.device.type == "cpu" and not has_matrix_unit("cpu"):
        say(
            f"every drafter reads along for {cfg.selector}, which costs more than it gains on a CPU without AMX; "
            "type pool=routed for a faster pool"
        )


def say_of_unproven(source: PoolSource) -> None:
    """One line about drafters that the pool leaves out."""
    if names := source.unproven():
        say(
            f"the pool leaves out {', '.join(names)}: validation does not show a gain over what they began with or "
            "over the generalist; pool.drafters=[NAME,...] takes them"
        )


def check_alone(cfg: PoolConfig, drafter: str) -> None:
    """Refuse keys that pick among a pool's drafters where there is no pool."""
    plain = PoolConfig()
    for key in ("selector", "drafters", "options", "every", "router"):
        if getattr(cfg, key) != getattr(plain, key):
            with_what = f"drafter={drafter}" if drafter else "no drafter"
            raise ConfigError(f"pool.{key}= is read by drafter=pool only, not with {with_what}; type drafter=pool")


def build_pool(
    cfg: PoolConfig, runtime: RuntimeConfig, source: PoolSource, seed: int | None = 0
) -> tuple[Pool, TreeShape]:
    """The pool of the drafters in `cfg`, and the trees of those without their own.

    seed: of selectors that draw, where the options do not give one; None: the selector's default.
    """
    target = source.target
    if not cfg.drafters and not source.quiet:
        say_of_unproven(source)
    drafters = open_named(pool_names(source, cfg.drafters), source.drafter, target)
    shapes = {
        name: choose_shape(runtime, target.device, target.dtype, drafter.kind)
        for name, drafter in drafters.items()
        if kind_of(drafter).has_default_shape
    }
    pool = Pool(
        drafters,
        cfg.selector,
        every=cfg.every,
        shapes=shapes,
        scheduler=open_scheduler(source, cfg.scheduler, drafters),
        router=open_router(source, cfg.router),
        **({} if seed is None else {"seed": seed}) | cfg.options,
    )
    shape = choose_shape(runtime, target.device, target.dtype)
    pool.selector(shape)  # a mistake in its options should not wait for a prompt
    return pool, shape


def open_alone(name: str, source: PoolSource) -> Drafter:
    """One drafter that decodes alone, or two in one tree; a LoRA expert's additions are merged into its weights."""
    if parse_hybrid(name) is not None and not Path(name).expanduser().exists():
        return open_named([name], source.drafter, source.target)[name]
    found = source.drafter(name)
    return kind_named(found.kind).load(found, source.target)


def scheduled(source: PoolSource, policy: str, name: str, drafter: Drafter | None) -> Drafter | Pool | None:
    """The drafter itself, or a pool of it alone whose trees a policy of its own chooses."""
    if not policy or drafter is None:
        return drafter
    drafters = {name: drafter}
    return Pool(drafters, "static", scheduler=open_scheduler(source, policy, drafters))


def open_scheduler(source: PoolSource, name: str, drafters: Mapping[str, Drafter]) -> Scheduler | None:
    """The policy of this name; it must be of this target, and of its drafter as it is now.  name: empty for none.

    drafters: whose trees it is to choose.  A single one must be the policy's; several are named where they are not.
    """
    if not name:
        return None
    folder = source.part(name, "policy")
    policy = load_policy(folder)
    trained_for = policy.spec.drafter
    served = [key for key, drafter in drafters.items() if kind_of(drafter).scheduled]
    if not served:
        raise ConfigError(
            f"pool.scheduler={name} chooses trees of EAGLE-3 drafters, but {', '.join(drafters)} is none; "
            f"type drafter={trained_for}, or leave pool.scheduler out"
        )
    drafter = served[0] if len(drafters) == 1 else trained_for
    recorded, weights = source.weights(drafter)
    if len(drafters) == 1 and recorded != trained_for and weights != policy.spec.drafter_sha256:
        raise ConfigError(
            f"pool.scheduler={name} is a policy for drafter {trained_for!r}, not for {drafter!r}; "
            f"type drafter={trained_for}, "
            f"or drafterforge train-policy drafter={drafter} name={recorded}-{policy.name}{typed_keys_of(source)}"
        )
    check_policy(policy, source.target.fingerprint, drafter, weights, folder, typed_keys_of(source))
    sizes = [drafters[key].spec.draft_vocab_size for key in served]
    check_observations(policy, source.target.config.hidden_size, sizes, folder)
    others = [key for key in served if key not in (trained_for, drafter)]
    if others and not source.quiet:
        say(f"pool.scheduler={name} was trained for {trained_for}; it also chooses the trees of {', '.join(others)}")
    return policy


def typed_keys_of(source: PoolSource) -> str:
    """Keys of a suggested command that finds the source's target and runs; empty of a bundle."""
    return source.typed if isinstance(source, RunsFolder) else ""


def open_router(source: PoolSource, name: str) -> Router | None:
    """The router of this name; none without one."""
    return Router.load(source.part(name, "router"), source.target.features_fingerprint) if name else None


def open_pool(runs_dir: Path | str, target: Target, names: Sequence[str]) -> dict[str, Drafter]:
    """Drafters by name; experts share the weights of their generalist."""
    refuse_repeated(names)
    return open_named(names, RunsFolder(runs_dir, target).drafter, target)
