"""Ranges of sampling parameters, shared by commands, requests and the engine."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Protocol

from drafterforge.config.checks import require


class HasSampling(Protocol):
    """Sampling parameters."""

    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def require_sampling(config: HasSampling) -> None:
    """ConfigError if a sampling parameter is no number or out of range."""
    for name in ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "seed"):
        is_count, value = name in ("top_k", "seed"), getattr(config, name)
        is_number = isinstance(value, Integral if is_count else Real) and not isinstance(value, bool)
        require(is_number, f"{name} must be a {'whole ' if is_count else ''}number, got {value!r}")
    for name, in_range, expected in (
        ("repetition_penalty", config.repetition_penalty > 0, "> 0"),
        ("temperature", config.temperature >= 0, ">= 0"),
        ("top_k", 0 <= config.top_k < 2**31, "in [0, 2**31)"),
        ("top_p", 0 < config.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= config.min_p <= 1, "in [0, 1]"),
        ("seed", 0 <= config.seed < 2**64, "in [0, 2**64)"),
    ):
        require(in_range, f"{name} must be {expected}, got {getattr(config, name)}")
