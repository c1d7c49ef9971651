"""The methods that a suite times: ours with every drafter, selector and policy, and other programs'."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drafterforge.assembly.open_bundle import open_bundle
from drafterforge.bundle.record import read_record
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.names import JOINT, domain_of, halves
from drafterforge.config.pool import PoolConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.hybrid.model import Merged
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.evaluation.measure import AUTOREGRESSIVE, Method
from drafterforge.evaluation.rivals import (
    LOOKUP_TOKENS,
    OpenVINO,
    Transformers,
    open_model,
    open_pipeline,
    require_openvino,
)
from drafterforge.pipelines.pool import RETRIEVAL, build_pool, open_scheduler
from drafterforge.runtime.engine import Engine, kind_of_drafter
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler
from drafterforge.selectors import names as selector_names
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

INVARIANT = f"{AUTOREGRESSIVE}, invariant"
GENERALIST, EXPERT, DEFAULT, BUNDLE = "generalist", "expert", "default", "the bundle"
GENERATE, LOOKUP, OPENVINO = "hf_generate", "hf_prompt_lookup", "openvino"
EXTERNAL = {GENERATE: "HF generate", LOOKUP: f"HF prompt lookup ({LOOKUP_TOKENS})", OPENVINO: "OpenVINO GenAI"}
STATIC = "static"


class Contenders:
    """Builds methods by name; what several share, such as a policy or another program's model, is opened once."""

    def __init__(
        self, cfg: EvaluateConfig, target: Target, pool: Pool, shape: TreeShape, bundle: Path | None = None
    ) -> None:
        """bundle: folder of the one that the method `the bundle` decodes with."""
        self.cfg, self.target, self.pool, self.shape, self.bundle = cfg, target, pool, shape, bundle
        self.numerics = choose_numerics(cfg.runtime.numerics, target)
        self.policies: dict[str, Scheduler | None] = {"": pool.scheduler, STATIC: None}
        self.model: Any = None

    def build(self, names: Sequence[str]) -> list[Method]:
        """The methods, autoregressive decoding first; where texts are those of other numerics, that of those too."""
        found = [Method(AUTOREGRESSIVE, Engine(self.target, numerics="fast"))]
        if self.numerics == "invariant":
            found.append(Method(INVARIANT, Engine(self.target, numerics=self.numerics)))
        for name in names:
            if name != AUTOREGRESSIVE:
                method = self.method(name)
                found += [] if method.name in [one.name for one in found] else [method]
        return found

    def text_of(self, method: str, external: bool = False) -> str:
        """The method whose text another of these has to give."""
        fast = external or method == AUTOREGRESSIVE or self.numerics == "fast"
        return AUTOREGRESSIVE if fast else INVARIANT

    def on(self, target: Target) -> Contenders:
        """The same on another copy of the target."""
        pool, shape = build_pool(self.cfg.pool, self.cfg.runtime, self.cfg.runs_dir, target, self.cfg.seed)
        return Contenders(self.cfg, target, pool, shape, self.bundle)

    def of_size(self, count: int) -> Contenders:
        """With the first drafters of the pool alone."""
        kept, options = self.pool.names[:count], dict(self.pool.options)
        if options.get("costs") is not None:
            options["costs"] = options["costs"][:count]
        pool = Pool(
            {name: self.pool.drafters[name] for name in kept},
            self.cfg.pool.selector,
            every=self.pool.every,
            shapes={name: shape for name, shape in self.pool.shapes.items() if name in kept},
            scheduler=self.pool.scheduler,
            router=self.pool.router,
            **options,
        )
        return Contenders(self.cfg, self.target, pool, self.shape)

    def method(self, name: str) -> Method:
        """One method; `A/POLICY` is A with the trees of that policy."""
        if name in EXTERNAL:
            return self.external(name)
        if name == BUNDLE:
            return self.bundled()
        what, _, policy = name.partition("/")
        if what == GENERALIST:
            return self.alone(self.pool.names[0], policy)
        if what == EXPERT:
            return self.expert(policy)
        if what in (*self.pool.names, RETRIEVAL):
            return self.alone(what, policy)
        if both := halves(what):
            if both[0] == EXPERT:
                return self.expert(found=both[1])
            return self.joined(self.pool.names[0] if both[0] == GENERALIST else both[0], both[1])
        return self.over(self.cfg.pool.selector if what == DEFAULT else what, policy)

    def alone(self, drafter: str, policy: str = "") -> Method:
        """One drafter."""
        engine = self.engine(drafter, policy)
        with_policy = f" with {policy}" if policy else ""
        return Method(f"{drafter} alone{with_policy}", engine, "static", policy or STATIC, [drafter])

    def engine(self, drafter: str, policy: str = "") -> Engine:
        """Decodes with one drafter."""
        scheduler = self.scheduler(policy) if policy else None
        if drafter == RETRIEVAL and drafter not in self.pool.drafters and scheduler is None:
            deep = choose_shape(self.cfg.runtime, self.target.device, self.target.dtype, RETRIEVAL)
            return Engine(self.target, Retrieval(), deep, numerics=self.numerics)
        own: Any = self.pool.drafters.get(drafter)
        if scheduler is not None:
            if not isinstance(own, FusedDrafter):
                raise ConfigError(f"{drafter}/{policy}: a policy chooses trees of EAGLE-3 drafters; type {drafter}")
            own = Pool({drafter: own}, "static", scheduler=scheduler)
        return Engine(self.target, own, self.pool.shape_of(drafter, self.shape), numerics=self.numerics)

    def joined(self, first: str, second: str) -> Method:
        """A drafter of the pool with what retrieval proposes in its trees, or one that has it already."""
        return self.alone(first) if self.has(first, second) else self.merged(first, second)

    def has(self, drafter: str, second: str) -> bool:
        """Whether a drafter of the pool takes what this retrieval drafter proposes."""
        return isinstance(self.pool.drafters.get(drafter), Merged) and (halves(drafter) or ("", ""))[1] == second

    def retriever(self, name: str) -> Retrieval | None:
        """The retrieval drafter of this name; the one without a datastore need not be in the pool."""
        found = self.pool.drafters.get(name, Retrieval() if name == RETRIEVAL else None)
        return found if isinstance(found, Retrieval) else None

    def merged(self, first: str, second: str) -> Method:
        """A drafter of the pool with what retrieval proposes in its trees."""
        eagle = self.pool.drafters.get(first)
        found = self.retriever(second)
        if not isinstance(eagle, FusedDrafter) or found is None:
            raise ConfigError(
                f"suite.methods has {first}{JOINT}{second}; wanted an EAGLE-3 drafter of the pool, + and a retrieval "
                f"drafter of it, as {domain_of(self.pool.names[0])}{JOINT}{RETRIEVAL}"
            )
        own = Merged(eagle, found)
        shape = choose_shape(self.cfg.runtime, self.target.device, self.target.dtype, kind_of_drafter(own))
        engine = Engine(self.target, own, shape, numerics=self.numerics)
        return Method(f"{first}{JOINT}{second}", engine, "static", "worth", [first, second])

    def expert(self, policy: str = "", found: str = "") -> Method:
        """For each request the drafter of its domain, or the generalist.  found: what retrieves for their trees."""

        def engine(name: str) -> Engine:
            return self.joined(name, found).engine if found else self.engine(name, policy)

        if found and self.retriever(found) is None:
            raise ConfigError(
                f"suite.methods has {EXPERT}{JOINT}{found}, but {found} is no retrieval drafter of the pool; "
                f"type {EXPERT}{JOINT}{RETRIEVAL}"
            )
        names = [name for name in self.pool.names if name not in (RETRIEVAL, self.pool.names[0])]
        if found:
            eagles = [name for name in names if isinstance(self.pool.drafters[name], FusedDrafter)]
            names = [name for name in names if name in eagles or self.has(name, found)]
        chosen = {domain_of(name): name for name in reversed(names)} | {name: name for name in names}
        experts = {domain: engine(name) for domain, name in chosen.items()}
        with_policy = f" with {policy}" if policy else ""
        general = engine(self.pool.names[0])
        used = [self.pool.names[0], *names, *([found] if found else [])]
        shown = f"the domain's expert{JOINT}{found}" if found else f"the domain's expert{with_policy}"
        return Method(shown, general, "static", "worth" if found else policy or STATIC, used, experts)

    def over(self, selector: str, policy: str = "") -> Method:
        """A selector over the whole pool; the pool's own selector with its own options and policy."""
        own = selector == self.cfg.pool.selector
        options = self.pool.options if own else {"seed": self.cfg.seed}
        scheduler = self.scheduler(policy)
        pool = Pool(
            self.pool.drafters,
            selector,
            every=self.pool.every,
            shapes=self.pool.shapes,
            scheduler=scheduler,
            router=self.pool.router if own or selector == "router" else None,
            **options,
        )
        chosen = policy or self.cfg.pool.scheduler or STATIC
        with_policy = f" with {chosen}" if scheduler is not None else ""
        engine = Engine(self.target, pool, self.shape, numerics=self.numerics)
        return Method(f"{selector} over the pool{with_policy}", engine, selector, chosen, self.pool.names)

    def bundled(self) -> Method:
        """The bundle as it opens, by its own defaults."""
        own = read_record(self.bundle).defaults
        engine = open_bundle(self.bundle, target=self.target)
        return Method(BUNDLE, engine, own.selector, own.scheduler or STATIC, list(own.drafters))

    def scheduler(self, policy: str) -> Scheduler | None:
        """A policy by name; empty: the pool's own."""
        if policy not in self.policies:
            cfg = PoolConfig(scheduler=policy)
            self.policies[policy] = open_scheduler(cfg, self.cfg.runs_dir, self.target, self.pool.drafters)
        return self.policies[policy]

    def external(self, name: str) -> Method:
        """Another program's decoding of the same weights."""
        if name == OPENVINO:
            files = require_openvino(self.cfg.suite.openvino)
            return Method(EXTERNAL[name], OpenVINO(open_pipeline(files, self.target), self.target), external=True)
        self.model = self.model or open_model(self.target)
        options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == LOOKUP else {}
        return Method(EXTERNAL[name], Transformers(self.model, self.target, **options), external=True)


def check_methods(names: Sequence[str], drafters: Sequence[str] | None = None) -> None:
    """Refuse names that mean nothing.  drafters: the pool's; None: not known yet, so that one of them may be meant."""
    selectors = [name for name in selector_names() if name not in ("static", "oracle")]
    known = [AUTOREGRESSIVE, GENERALIST, EXPERT, DEFAULT, RETRIEVAL, *EXTERNAL, *selectors, *(drafters or ())]
    for name in names:
        what, slash, policy = name.partition("/")
        bare = what in (AUTOREGRESSIVE, *EXTERNAL) or halves(what)
        if slash and (bare or not policy):
            raise ConfigError(
                f"suite.methods has {name!r}; a policy goes behind a drafter or selector: general/planner"
            )
        if drafters is None or what in known or halves(what):
            continue
        close = difflib.get_close_matches(what, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"suite.methods has {what!r}, which is no drafter of the pool, selector or method{hint}")


def named(methods: Sequence[Method]) -> Callable[[str], Method]:
    """Finds a method by its name in the report."""
    table: Mapping[str, Method] = {method.name: method for method in methods}
    return table.__getitem__
