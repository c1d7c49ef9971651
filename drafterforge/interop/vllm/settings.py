"""How vLLM serves a pool: what the bundle says, and what `--additional-config` replaces.

vllm serve ... --additional-config '{"drafterforge": {"selector": "ucb1"}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from drafterforge.errors import ConfigError
from drafterforge.interop.vllm.capture import RecordSettings
from drafterforge.interop.vllm.pool_folder import PoolFolder
from drafterforge.router.router import Router
from drafterforge.selectors import advised, takes_advice
from drafterforge.selectors.batched import BatchedSelector, batched_selector
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
        defaults = pool.record.defaults
        selector, options = settings.selector or defaults.selector_name, settings.options
        if settings.drafter:
            require_name(settings.drafter, [*pool.stacked, *pool.lookups], "drafter")
            if settings.selector:
                raise ConfigError(f"drafter={settings.drafter} leaves nothing to select; leave out selector")
            selector, options = "static", {"drafter": settings.drafter}
        elif not settings.selector and not options:
            options = dict(defaults.options)
        router = pool.router() if takes_advice(selector) else None
        options = advised(selector, options) if router else options
        carry, adaptive = settings.carry, settings.adaptive
        record = RecordSettings(settings.record, settings.record_limit_mb) if settings.record else None
        arms = pool.stacked, pool.lookups, settings.drafter
        return PoolServing(*arms, selector, options, carry, adaptive, router, record)

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
