"""Ranges of what a token is sampled by, for commands, requests and the engine alike."""

from __future__ import annotations

from typing import Protocol

from drafterforge.config.checks import require


class HasSampling(Protocol):
    """What says how the token after a text is chosen."""

    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def require_sampling(config: HasSampling) -> None:
    """Refuse values that no token can be sampled by."""
    for name, sound, wanted in (
        ("repetition_penalty", config.repetition_penalty > 0, "> 0"),
        ("temperature", config.temperature >= 0, ">= 0"),
        ("top_k", config.top_k >= 0, ">= 0"),
        ("top_p", 0 < config.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= config.min_p <= 1, "in [0, 1]"),
        ("seed", 0 <= config.seed < 2**64, "in [0, 2**64)"),
    ):
        require(sound, f"{name} must be {wanted}, got {getattr(config, name)}")
