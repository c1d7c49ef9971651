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
from drafterforge.interop.vllm.pool_folder import PoolFolder
from drafterforge.selectors.batched import BatchedSelector, batched_selector

KEY = "drafterforge"  # in vLLM's additional_config
HINT = "drafter"  # in a request's vllm_xargs


@dataclass(frozen=True)
class ServingSettings:
    """What `additional_config["drafterforge"]` may hold."""

    drafter: str = ""  # decode with this drafter only
    selector: str = ""  # empty: the bundle's
    options: dict[str, Any] = field(default_factory=dict)  # of the selector
    carry: bool = False  # later requests begin with what earlier ones learned

    @staticmethod
    def of(values: Mapping[str, Any]) -> ServingSettings:
        """ConfigError for unknown keys and wrong types."""
        allowed = {entry.name: entry for entry in fields(ServingSettings)}
        for name, value in values.items():
            if name not in allowed:
                raise ConfigError(f"additional_config.{KEY} has no key {name!r}; it has {', '.join(allowed)}")
            default = getattr(ServingSettings(), name)
            if not isinstance(value, type(default)):
                raise ConfigError(f"additional_config.{KEY}.{name}={value!r} must be of type {type(default).__name__}")
        return ServingSettings(**values)


@dataclass(frozen=True)
class PoolServing:
    """The arms of a served pool and their selector."""

    names: list[str]
    selector_name: str
    options: dict[str, Any]
    carry: bool

    @staticmethod
    def of(vllm_config: Any) -> PoolServing:
        """The settings of a server; ConfigError where they do not fit the pool."""
        pool = PoolFolder.open(Path(vllm_config.speculative_config.draft_model_config.model))
        settings = ServingSettings.of((vllm_config.additional_config or {}).get(KEY, {}))
        names, defaults = pool.stacked, pool.record.defaults
        if settings.drafter:
            if settings.drafter not in names:
                raise ConfigError(f"the pool has no drafter {settings.drafter!r}; it has {', '.join(names)}")
            if settings.selector:
                raise ConfigError(f"drafter={settings.drafter} leaves nothing to select; leave out selector")
            return PoolServing(names, "static", {"drafter": settings.drafter}, False)
        replaced = settings.selector or settings.options
        options = dict(settings.options if replaced else defaults.options)
        return PoolServing(names, settings.selector or defaults.selector, options, settings.carry)

    def selector(self, depth: int, num_slots: int, device: torch.device) -> BatchedSelector:
        """The selector of all requests."""
        return batched_selector(
            self.selector_name, self.names, depth, num_slots, device, carry=self.carry, **self.options
        )

    def allowed(self, sampling_params: Any) -> list[bool]:
        """The drafters that a request's hint allows, [N]; all without a hint, or with the name of no drafter."""
        hint = (getattr(sampling_params, "extra_args", None) or {}).get(HINT)
        return [name == hint for name in self.names] if hint in self.names else [True] * len(self.names)
