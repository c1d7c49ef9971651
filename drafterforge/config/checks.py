"""Checks of values, in the words of who typed them."""

from __future__ import annotations

from drafterforge.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Refuse what the user typed with `message` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    require(value in choices, f"{key} must be one of {', '.join(choices)}, got {value!r}")


def require_at_least(key: str, value: float | None, least: float) -> None:
    """Refuse a smaller value; None passes."""
    require(value is None or value >= least, f"{key} must be >= {least}, got {value}")


def require_counts(group: object, prefix: str, names: str) -> None:
    """Refuse fields below 1; `names` are separated by spaces, None passes."""
    for name in names.split():
        require_at_least(f"{prefix}.{name}", getattr(group, name), 1)


def require_share(key: str, value: float) -> None:
    """Refuse what does not lie in [0, 1]."""
    require(0.0 <= value <= 1.0, f"{key} must lie in [0, 1], got {value}")


def require_seed(seed: int) -> None:
    """Refuse a seed that 32 bits cannot hold."""
    require(0 <= seed < 2**32, f"seed must lie in [0, 2**32), got {seed}")
