"""The pool of a target: its drafters by name, ready to decode together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import SHIPPED, find_artifact, list_artifacts
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.drafters import RETRIEVAL, open_named
from drafterforge.config.names import parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.registry import kind_named, kind_of, manifest_kind
from drafterforge.drafters.retrieval.kind import LAST as DATASTORE_RANK
from drafterforge.errors import ConfigError
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.pipelines.decode import open_drafter, source_of
from drafterforge.router.router import Router
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.policy import check_observations, check_policy, load_policy
from drafterforge.selectors import advised, check_options
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

GENERAL = "general"  # the mixture of all domains


def pool_names(runs_dir: Path | str, target: Target, names: Sequence[str]) -> list[str]:
    """Names of the pool's drafters: those given, or all that were trained for the target, and retrieval."""
    refuse_repeated(names)
    trained = list_artifacts(runs_dir, target.name, "drafters")
    if not names and not trained:
        raise ConfigError(
            f"the pool is empty: {runs_dir} has no drafters for {target.name}; "
            "type drafterforge train-drafter domain=sql"
        )
    return list(names) or [*sorted(trained, key=lambda name: rank(runs_dir, target, name)), RETRIEVAL]


def refuse_repeated(names: Sequence[str]) -> None:
    """Refuse a name that is given twice."""
    if repeated := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"drafters names {', '.join(repeated)} more than once; a pool has each drafter once")


def rank(runs_dir: Path | str, target: Target, name: str) -> int:
    """Drafters with weights of their own come first in a pool, 0; 1: what adds to another; datastores are last."""
    folder = find_artifact(runs_dir, target.name, "drafters", name)
    return kind_named(manifest_kind(Manifest.read(folder).config)).pool_rank(folder)


def retrieval_of(runs_dir: Path | str, target: Target, names: Sequence[str], domain: str) -> str:
    """The datastore of a pool that a domain is served by: its own, one of all domains, or the retrieval without one."""
    of: dict[str, str] = {}
    for name in (name for name in parts_of(names) if name != RETRIEVAL):
        if rank(runs_dir, target, name) == DATASTORE_RANK:
            folder = find_artifact(runs_dir, target.name, "drafters", name)
            of.setdefault(open_drafter(folder, target).config["domain"], name)
    return of.get(domain) or of.get(GENERAL) or RETRIEVAL


def check_selector(cfg: PoolConfig) -> None:
    """Refuse a selector or options that do not exist, or a router that nobody would listen to, before any loading."""
    check_options(cfg.selector, cfg.options)
    if cfg.selector == "oracle":
        raise ConfigError("selector=oracle has to be told the best drafter, which eval alone finds out; type hedgespec")
    if "levels" in cfg.options:
        raise ConfigError("levels of a selector is what the pool's trees say; leave it out of pool.options")
    if cfg.router:
        advised(cfg.selector, cfg.options)
    elif cfg.selector == "router":
        raise ConfigError("selector=router needs pool.router=NAME; type drafterforge train-policy policy=router")


def say_of_reading(cfg: PoolConfig, target: Target) -> None:
    """One line where the pool by default is the slow one of those that are shipped."""
    routed = (SHIPPED / target.name / "policies" / "router").is_dir()
    if cfg == PoolConfig() and routed and target.device.type == "cpu" and not has_matrix_unit("cpu"):
        say(
            f"every drafter reads along for {cfg.selector}, which costs more than it gains on a CPU without AMX; "
            "type pool=routed for a faster pool"
        )


def check_alone(cfg: PoolConfig, drafter: str) -> None:
    """Refuse keys that pick among a pool's drafters where there is no pool."""
    plain = PoolConfig()
    for key in ("selector", "drafters", "options", "every", "router"):
        if getattr(cfg, key) != getattr(plain, key):
            with_what = f"drafter={drafter}" if drafter else "no drafter"
            raise ConfigError(f"pool.{key}= is read by drafter=pool only, not with {with_what}; type drafter=pool")


def build_pool(
    cfg: PoolConfig, runtime: RuntimeConfig, runs_dir: Path | str, target: Target, seed: int = 0
) -> tuple[Pool, TreeShape]:
    """The pool that is configured, and the trees of drafters without their own.  seed: of selectors that draw."""
    check_selector(cfg)
    drafters = open_pool(runs_dir, target, pool_names(runs_dir, target, cfg.drafters))
    shapes = {
        name: choose_shape(runtime, target.device, target.dtype, drafter.kind)
        for name, drafter in drafters.items()
        if kind_of(drafter).has_default_shape
    }
    scheduler, router = open_scheduler(cfg, runs_dir, target, drafters), open_router(cfg, runs_dir, target)
    options = {"seed": seed} | cfg.options
    pool = Pool(drafters, cfg.selector, every=cfg.every, shapes=shapes, scheduler=scheduler, router=router, **options)
    shape = choose_shape(runtime, target.device, target.dtype)
    pool.selector(shape)  # a mistake in its options should not wait for a prompt
    return pool, shape


def scheduled(
    cfg: PoolConfig, runs_dir: Path | str, target: Target, name: str, drafter: Drafter | None
) -> Drafter | Pool | None:
    """The drafter itself, or a pool of it alone whose trees a policy of its own chooses."""
    if not cfg.scheduler:
        return drafter
    if drafter is None:
        raise ConfigError(f"pool.scheduler={cfg.scheduler} needs a drafter; type drafter=NAME or drafter=pool")
    drafters = {name: drafter}
    return Pool(drafters, "static", scheduler=open_scheduler(cfg, runs_dir, target, drafters))


def open_scheduler(
    cfg: PoolConfig, runs_dir: Path | str, target: Target, drafters: Mapping[str, Drafter]
) -> Scheduler | None:
    """The policy that is configured; it must be of this target, and of its drafter as it is now.

    drafters: whose trees it is to choose.  A single one must be its own; several are told of where they are not.
    """
    if not cfg.scheduler:
        return None
    folder = find_artifact(runs_dir, target.name, "policies", cfg.scheduler, hint="drafterforge train-policy")
    open_artifact(folder, "policies", target_fingerprint=target.fingerprint, target=target.name)
    policy = load_policy(folder)
    own = policy.spec.drafter
    served = [name for name, drafter in drafters.items() if kind_of(drafter).scheduled]
    if not served:
        raise ConfigError(
            f"pool.scheduler={cfg.scheduler} chooses trees of EAGLE-3 drafters, but {', '.join(drafters)} is none; "
            f"type drafter={own}, or leave pool.scheduler out"
        )
    named = served[0] if len(drafters) == 1 else own
    manifest = open_drafter(find_artifact(runs_dir, target.name, "drafters", named), target)
    if len(drafters) == 1 and manifest.name != own and fingerprint_of(manifest) != policy.spec.drafter_sha256:
        raise ConfigError(
            f"pool.scheduler={cfg.scheduler} is a policy for drafter {own!r}, not for {named!r}; type drafter={own}, "
            f"or drafterforge train-policy drafter={named} name={manifest.name}-{policy.name}"
        )
    check_policy(policy, target.fingerprint, named, fingerprint_of(manifest), folder)
    sizes = [drafters[name].spec.draft_vocab_size for name in served]
    check_observations(policy, target.config.hidden_size, sizes, folder)
    if others := [name for name in served if name not in (own, named)]:
        say(f"pool.scheduler={cfg.scheduler} was trained for {own}; it also chooses the trees of {', '.join(others)}")
    return policy


def open_router(cfg: PoolConfig, runs_dir: Path | str, target: Target) -> Router | None:
    """The router that is configured."""
    if not cfg.router:
        return None
    hint = "drafterforge train-policy policy=router"
    folder = find_artifact(runs_dir, target.name, "policies", cfg.router, hint=hint)
    open_artifact(folder, "policies", target_fingerprint=target.fingerprint, target=target.name)
    return Router.load(folder, target.features_fingerprint)


def fingerprint_of(manifest: Manifest) -> str:
    """What a drafter's manifest says of its weights."""
    weights = [file["sha256"] for name, file in sorted(manifest.files.items()) if name.endswith(".safetensors")]
    return "-".join(one[:16] for one in weights)


def open_pool(runs_dir: Path | str, target: Target, names: Sequence[str]) -> dict[str, Drafter]:
    """Drafters by name; experts share the weights of their generalist."""
    refuse_repeated(names)
    return open_named(names, lambda name: source_of(runs_dir, target, name), target)
