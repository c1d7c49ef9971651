"""How vLLM serves a pool: what the bundle says, and what `--additional-config` replaces.

vllm serve ... --additional-config '{"drafterforge": {"selector": "ucb1"}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from drafterforge.errors import ConfigError, quote
from drafterforge.interop.vllm.capture import RecordSettings
from drafterforge.interop.vllm.pool_folder import PoolFolder
from drafterforge.router.router import Router
from drafterforge.selectors import advised, check_options, takes_advice
from drafterforge.selectors.batched import BatchedSelector, batched_names, batched_selector
from drafterforge.selectors.naming import require_name

KEY = "drafterforge"  # in vLLM's additional_config
SOURCE = f"additional_config.{KEY}"
HINT = "drafter"  # in a request's vllm_xargs


@dataclass(frozen=True)
class ServingSettings:
    """What `additional_config["drafterforge"]` may hold."""

    drafter: str = ""  # decode with this drafter only
    selector: str = ""  # empty: the bundle's
    options: dict[str, Any] = field(default_factory=dict)  # of the selector
    carry: bool = False  # later requests begin with what earlier ones learned
    adaptive: bool = True  # draft fewer tokens, down to none, where that is faster
    record: str = ""  # folder where served traffic is recorded for training; empty: nothing is
    record_limit_mb: int = 1024  # size of that folder at which recording stops

    @staticmethod
    def of(values: Any, source: str = SOURCE) -> ServingSettings:
        """ConfigError for unknown keys and wrong types.  source: where the values were written, for errors."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}={values!r} must be an object, such as {{'selector': 'ucb1'}}")
        allowed = {entry.name: entry for entry in fields(ServingSettings)}
        for name, value in values.items():
            if name not in allowed:
                raise ConfigError(f"{source} has no key {name!r}; it has {', '.join(allowed)}")
            default = getattr(ServingSettings(), name)
            if not isinstance(value, type(default)):
                raise ConfigError(f"{source}.{name}={value!r} must be of type {type(default).__name__}")
        return ServingSettings(**values)


@dataclass(frozen=True)
class PoolServing:
    """The arms of a served pool and their selector.  N drafters that vLLM runs, then L that look up text."""

    stacked: list[str]  # names, [N]
    lookups: list[str]  # names, [L]
    drafter: str  # decode with this drafter only; empty: select
    selector_name: str
    options: dict[str, Any]
    carry: bool
    adaptive: bool
    router: Router | None
    record: RecordSettings | None

    @staticmethod
    def of(vllm_config: Any) -> PoolServing:
        """The settings of vLLM's server; ConfigError where they do not fit the pool."""
        pool = PoolFolder.open(Path(vllm_config.speculative_config.draft_model_config.model))
        return PoolServing.open(pool, (vllm_config.additional_config or {}).get(KEY, {}))

    @staticmethod
    def open(pool: PoolFolder, values: Any, source: str = SOURCE) -> PoolServing:
        """The settings of a pool's server.  values: see `ServingSettings.of`.  ConfigError where they do not fit it."""
        settings = ServingSettings.of(values, source)
        selector, options = selection_of(pool, settings, source)
        check_options(selector, options)
        carry = options.pop("carry", False) or settings.carry
        router = advisor(pool) if takes_advice(selector) else None
        options = advised(selector, options) if router else options
        record = RecordSettings(settings.record, settings.record_limit_mb) if settings.record else None
        arms = pool.stacked, pool.lookups, settings.drafter
        return PoolServing(*arms, selector, options, carry, settings.adaptive, router, record)

    def arms(self, count: int) -> list[str]:
        """Names of the selector's arms.  count: N, or N + L where text can be looked up."""
        return [*self.stacked, *self.lookups][:count]

    def selector(self, num_arms: int, depth: int, num_slots: int, device: torch.device) -> BatchedSelector:
        """The selector of all requests, of so many arms."""
        names = self.arms(num_arms)
        return batched_selector(self.selector_name, names, depth, num_slots, device, carry=self.carry, **self.options)

    def allowed(self, sampling_params: Any) -> list[bool]:
        """The drafters that a request may use, [N + L]: the one of its hint if it exists, the server's, or all."""
        names = [*self.stacked, *self.lookups]
        hint = (getattr(sampling_params, "extra_args", None) or {}).get(HINT)
        only = hint if hint in names else self.drafter
        return [name == only for name in names] if only else [True] * len(names)


def selection_of(pool: PoolFolder, settings: ServingSettings, source: str) -> tuple[str, dict[str, Any]]:
    """The selector and its options: the bundle's, but for what is typed.  source: see `ServingSettings.of`."""
    defaults = pool.record.defaults
    if settings.drafter:
        require_name(settings.drafter, [*pool.stacked, *pool.lookups], "drafter")
        if needless := [key for key in ("selector", "options") if getattr(settings, key)]:
            raise ConfigError(f"drafter={settings.drafter} leaves nothing to select; leave out {needless[0]}")
        return "static", {"drafter": settings.drafter}
    selector = settings.selector or defaults.selector_name
    if not settings.selector and selector not in batched_names():
        raise ConfigError(
            f"the bundle selects with {quote(selector)}, which cannot serve many requests at once; type "
            + typed_settings('{"selector": "hedgespec"}', source)
        )
    is_default = selector == defaults.selector_name
    return selector, {**(defaults.options if is_default else {}), **settings.options}


def typed_settings(values: str, source: str) -> str:
    """How a user types settings, which are JSON.  source: `SOURCE`, or an environment variable."""
    return f"--additional-config '{{\"{KEY}\": {values}}}'" if source == SOURCE else f"{source}='{values}'"


def advisor(pool: PoolFolder) -> Router | None:
    """The pool's router; None if there is none that knows any of its drafters."""
    router = pool.router()
    with suppress(ConfigError):
        if router is not None:
            router.label_shares(pool.stacked)
            return router
    return None


def refuse_v2_settings(vllm_config: Any) -> None:
    """ConfigError for settings that a pool cannot have in vLLM's V2 runner."""
    speculative, parallel = vllm_config.speculative_config, vllm_config.parallel_config
    if speculative.draft_sample_method != "greedy":
        raise ConfigError(
            f"a pool drafts greedily, but draft_sample_method={speculative.draft_sample_method}; leave it out"
        )
    if speculative.enable_adaptive_verification:
        raise ConfigError("a pool has no adaptive verification; type enable_adaptive_verification=false")
    if parallel.prefill_context_parallel_size > 1:
        raise ConfigError(
            f"a pool cannot split prompts over {parallel.prefill_context_parallel_size} ranks;"
            " type prefill_context_parallel_size=1"
        )
    if ServingSettings.of((vllm_config.additional_config or {}).get(KEY, {})).record:
        raise ConfigError("vLLM's V2 runner cannot record traffic; leave out record, or set VLLM_USE_V2_MODEL_RUNNER=0")
