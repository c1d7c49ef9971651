"""Builds the methods that a suite times: drafters, selectors and policies of ours, and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge.assembly.build import auto_engine
from drafterforge.assembly.bundles import open_bundle
from drafterforge.assembly.pools import build_pool, open_scheduler
from drafterforge.assembly.runs import RunsFolder
from drafterforge.bundle.record import read_record
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import DATASTORE, EXPERT, GENERALIST, GENERATE, LOOKUP, OPENVINO
from drafterforge.config.hints import settings_flags
from drafterforge.config.names import AUTO, JOINT, POOL, RETRIEVAL, domain_of, parse_hybrid, parse_tree
from drafterforge.config.pool import DEFAULT_SELECTOR, PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.hybrid.kind import can_combine, combine
from drafterforge.drafters.registry import kind_of
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.evaluation.methods import AUTOREGRESSIVE, INVARIANT, Method
from drafterforge.evaluation.other_engines import (
    LOOKUP_TOKENS,
    OpenVINO,
    Transformers,
    open_model,
    open_pipeline,
    require_openvino,
)
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.selectors.naming import result_name
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

BUNDLE = "the bundle"
EXTERNAL = {GENERATE: "HF generate", LOOKUP: f"HF prompt lookup ({LOOKUP_TOKENS})", OPENVINO: "OpenVINO GenAI"}
STATIC = "static"


class MethodFactory:
    """Builds methods by name; policies and models of other programs are opened once and shared."""

    def __init__(
        self, cfg: EvaluateConfig, target: Target, pool: Pool, shape: TreeShape, bundle: Path | None = None
    ) -> None:
        """bundle: folder of the method `the bundle`."""
        self.cfg, self.target, self.pool, self.shape, self.bundle = cfg, target, pool, shape, bundle
        self.numerics = choose_numerics(cfg.runtime.numerics, target)
        self.policies: dict[str, Scheduler | None] = {"": pool.scheduler, STATIC: None}
        self.model: Any = None

    def build(self, names: Sequence[str]) -> list[Method]:
        """The named methods after plain decoding; invariant numerics add plain decoding in them."""
        methods = {AUTOREGRESSIVE: Method(AUTOREGRESSIVE, Engine(self.target, numerics="fast"))}
        if self.numerics == "invariant":
            methods[INVARIANT] = Method(INVARIANT, Engine(self.target, numerics=self.numerics))
        for name in names:
            if name != AUTOREGRESSIVE:
                method = self.method(name)
                methods.setdefault(method.name, method)
        return list(methods.values())

    def check(self, names: Sequence[str]) -> None:
        """ConfigError if one of our methods cannot be built; opens no other program."""
        for name in names:
            if name not in EXTERNAL:
                self.method(name)

    def reference_of(self, method: str, external: bool = False) -> str:
        """The method that must produce the same tokens: plain decoding in the same numerics."""
        fast = external or method == AUTOREGRESSIVE or self.numerics == "fast"
        return AUTOREGRESSIVE if fast else INVARIANT

    def for_target(self, target: Target) -> MethodFactory:
        """A factory of the same methods on another copy of the target."""
        pool, shape = build_pool(self.cfg.pool, self.cfg.runtime, RunsFolder(self.cfg.runs_dir, target), self.cfg.seed)
        return MethodFactory(self.cfg, target, pool, shape, self.bundle)

    def with_pool_size(self, count: int) -> MethodFactory:
        """A factory whose pool has only the first `count` drafters."""
        names, options = self.pool.names[:count], dict(self.pool.options)
        if options.get("costs") is not None:
            options["costs"] = options["costs"][:count]
        pool = Pool(
            {name: self.pool.drafters[name] for name in names},
            self.cfg.pool.selector_name,
            shapes={name: shape for name, shape in self.pool.shapes.items() if name in names},
            scheduler=self.pool.scheduler,
            router=self.pool.router,
            **options,
        )
        return MethodFactory(self.cfg, self.target, pool, self.shape)

    def method(self, name: str) -> Method:
        """A method by name; `A/POLICY` is A with the trees of that policy, `A/8/3/4` with that one tree."""
        if name in EXTERNAL:
            return self.external(name)
        if name == BUNDLE:
            return self.bundle_method()
        if name == AUTO:
            return self.auto()
        base, _, policy = name.partition("/")
        if base == GENERALIST:
            return self.single(self.pool.names[0], policy)
        if base == DATASTORE:
            return self.single(self.datastore, policy)
        if base == EXPERT:
            return self.expert(policy)
        if base in (*self.pool.names, RETRIEVAL):
            return self.single(base, policy)
        if pair := parse_hybrid(base):
            drafter, retrieval = pair[0], self.datastore if pair[1] == DATASTORE else pair[1]
            if drafter == EXPERT:
                return self.expert(retrieval=retrieval)
            return self.hybrid(self.pool.names[0] if drafter == GENERALIST else drafter, retrieval)
        return self.selection(self.cfg.pool.selector_name if base == POOL else base, policy)

    def single(self, drafter: str, policy: str = "") -> Method:
        """One drafter of the pool."""
        engine = self.engine(drafter, policy)
        name, args, runtime = f"{drafter} alone{_with(policy)}", f"drafter={drafter}", self.cfg.runtime
        if tree := parse_tree(policy):
            runtime = replace(runtime, num_tokens=tree[0], depth=tree[1], top_k=tree[2])
        elif policy:
            args += f" pool.scheduler={policy}"
            runtime = without_tree(runtime)
        args += settings_flags("runtime", runtime, RuntimeConfig())
        return Method(name, engine, "static", policy or STATIC, [drafter], cli_args=args)

    def engine(self, name: str, policy: str = "") -> Engine:
        """An engine with one drafter of the pool."""
        scheduler = self.scheduler(policy) if policy else None
        if name == RETRIEVAL and name not in self.pool.drafters and scheduler is None:
            shape = choose_shape(self.cfg.runtime, self.target.device, self.target.dtype, RETRIEVAL)
            return Engine(self.target, Retrieval(), shape, numerics=self.numerics)
        drafter: Any = self.pool.drafters.get(name)
        if scheduler is not None:
            if drafter is None or not kind_of(drafter).scheduled:
                raise ConfigError(f"{name}/{policy}: a policy chooses trees of EAGLE-3 and block drafters; type {name}")
            drafter = Pool({name: drafter}, "static", scheduler=scheduler)
        return Engine(self.target, drafter, self.pool.shape_of(name, self.shape), numerics=self.numerics)

    def hybrid(self, drafter: str, retrieval: str) -> Method:
        """A drafter of the pool with retrieval in its trees, built if the pool has none."""
        if self.is_hybrid(drafter, retrieval):
            return self.single(drafter)
        parts = self.pool.drafters.get(drafter), self.retrieval_drafter(retrieval)
        if not can_combine(*parts):
            raise ConfigError(
                f"suite.methods has {drafter}{JOINT}{retrieval}; wanted an EAGLE-3 or block drafter of the pool, + and "
                f"a retrieval drafter of it, as {domain_of(self.pool.names[0])}{JOINT}{RETRIEVAL}"
            )
        joint = combine(f"{drafter}{JOINT}{retrieval}", *parts)
        shape = choose_shape(self.cfg.runtime, self.target.device, self.target.dtype, joint.kind)
        engine = Engine(self.target, joint, shape, numerics=self.numerics)
        name = f"{drafter}{JOINT}{retrieval}"
        args = f"drafter={name}{settings_flags('runtime', self.cfg.runtime, RuntimeConfig())}"
        return Method(name, engine, "static", "worth", [drafter, retrieval], cli_args=args)

    @property
    def datastore(self) -> str:
        """Name of the pool's datastore, or of retrieval in the text if it has none."""
        names = [name for name, drafter in self.pool.drafters.items() if drafter.kind == RETRIEVAL]
        return next((name for name in names if name != RETRIEVAL), RETRIEVAL)

    def is_hybrid(self, drafter: str, retrieval: str) -> bool:
        """Whether a drafter of the pool is a hybrid with this retrieval drafter."""
        return drafter in self.pool.drafters and (parse_hybrid(drafter) or ("", ""))[1] == retrieval

    def retrieval_drafter(self, name: str) -> Drafter | None:
        """A retrieval drafter by name; retrieval in the text need not be in the pool."""
        drafter = self.pool.drafters.get(name, Retrieval() if name == RETRIEVAL else None)
        return drafter if drafter is not None and drafter.kind == RETRIEVAL else None

    def expert(self, policy: str = "", retrieval: str = "") -> Method:
        """The drafter of each request's domain, else the generalist.  retrieval: drafter that joins their trees."""
        if retrieval and self.retrieval_drafter(retrieval) is None:
            raise ConfigError(
                f"suite.methods has {EXPERT}{JOINT}{retrieval}, but {retrieval} is no retrieval drafter of the pool; "
                f"type {EXPERT}{JOINT}{RETRIEVAL}"
            )

        def engine(name: str) -> Engine:
            return self.hybrid(name, retrieval).engine if retrieval else self.engine(name, policy)

        generalist = self.pool.names[0]
        names = [name for name in self.pool.names if name not in (RETRIEVAL, generalist)]
        if retrieval:
            drafters, lookup = self.pool.drafters, self.retrieval_drafter(retrieval)
            names = [n for n in names if can_combine(drafters[n], lookup) or self.is_hybrid(n, retrieval)]
        by_domain = {domain_of(name): name for name in reversed(names)} | {name: name for name in names}
        return Method(
            f"the domain's expert{JOINT}{retrieval}" if retrieval else f"the domain's expert{_with(policy)}",
            engine(generalist),
            "static",
            "worth" if retrieval else policy or STATIC,
            [generalist, *names, *([retrieval] if retrieval else [])],
            {domain: engine(name) for domain, name in by_domain.items()},
        )

    def selection(self, selector: str, policy: str = "") -> Method:
        """A selector over the pool.  The pool's own selector has the configured options and router."""
        is_configured = selector == self.cfg.pool.selector_name
        options = self.pool.options if is_configured else {"seed": self.cfg.seed}
        scheduler = self.scheduler(policy)
        pool = Pool(
            self.pool.drafters,
            selector,
            shapes=self.pool.shapes,
            scheduler=scheduler,
            router=self.pool.router if is_configured or selector == "router" else None,
            **options,
        )
        schedule = policy or self.cfg.pool.scheduler or STATIC
        result = result_name(selector, options)
        name = f"{result} over the pool{_with(schedule) if scheduler is not None else ''}"
        engine = Engine(self.target, pool, self.shape, numerics=self.numerics)
        return Method(name, engine, result, schedule, self.pool.names, cli_args=self._pool_args(selector, schedule))

    def _pool_args(self, selector: str, schedule: str) -> str:
        """Arguments of `generate` that decode with the pool; empty for one tree, which `generate` does not take."""
        if parse_tree(schedule):
            return ""
        pool, runtime, is_configured = self.cfg.pool, self.cfg.runtime, selector == self.cfg.pool.selector_name
        typed = PoolConfig(
            drafters=pool.drafters,
            selector="" if selector == DEFAULT_SELECTOR else selector,
            options=pool.options if is_configured else {},
            scheduler="" if schedule == STATIC else schedule,
            router=pool.router if is_configured or selector == "router" else "",
        )
        runtime = without_tree(runtime) if typed.scheduler else runtime
        flags = settings_flags("pool", typed, PoolConfig()) + settings_flags("runtime", runtime, RuntimeConfig())
        return f"drafter={POOL}{flags}"

    def auto(self) -> Method:
        """The engine of `generate` and `serve` if no drafter is named."""
        engine, names = auto_engine(RunsFolder(self.cfg.runs_dir, self.target, quiet=True), self.cfg.runtime)
        args = f"drafter={AUTO}{settings_flags('runtime', self.cfg.runtime, RuntimeConfig())}"
        return Method(AUTO, engine, "static", STATIC, names, cli_args=args)

    def bundle_method(self) -> Method:
        """The bundle with its default drafters, selector and scheduler."""
        defaults = read_record(self.bundle).defaults
        engine = open_bundle(self.bundle, target=self.target)
        selector = "static" if defaults.automatic else defaults.selector_name
        drafters = list(engine.drafter.drafters) if isinstance(engine.drafter, Pool) else list(defaults.drafters)
        return Method(BUNDLE, engine, selector, defaults.scheduler or STATIC, drafters)

    def scheduler(self, policy: str) -> Scheduler | None:
        """A policy by name, or one tree by its numbers; the pool's policy if the name is empty."""
        if policy not in self.policies:
            runs = RunsFolder(self.cfg.runs_dir, self.target)
            tree = parse_tree(policy)
            self.policies[policy] = (
                StaticScheduler(TreeShape(*tree)) if tree else open_scheduler(runs, policy, self.pool.drafters)
            )
        return self.policies[policy]

    def external(self, name: str) -> Method:
        """Another program that decodes the same weights."""
        if name == OPENVINO:
            files = require_openvino(self.cfg.suite.openvino)
            return Method(EXTERNAL[name], OpenVINO(open_pipeline(files, self.target), self.target), external=True)
        self.model = self.model or open_model(self.target)
        options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == LOOKUP else {}
        return Method(EXTERNAL[name], Transformers(self.model, self.target, **options), external=True)


def without_tree(runtime: RuntimeConfig) -> RuntimeConfig:
    """The settings beside a policy, which chooses the trees."""
    return replace(runtime, num_tokens=None, depth=None, top_k=None)


def _with(policy: str) -> str:
    return f" with {policy}" if policy else ""
