"""What a selector sees, says and keeps.  Axes: N drafters of the pool, n committed positions.

A selector serves one request at a time: `begin`, then `select` and `observe` once per cycle, then `end`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError, quote
from drafterforge.selectors.laws import best_of, draw, one_hot, restricted
from drafterforge.selectors.memory import Memory
from drafterforge.selectors.naming import keyword_options, known, pool_names

STATE_VERSION = 1


@dataclass(frozen=True)
class Needs:
    """What the runtime has to measure for a selector."""

    evaluation: bool = False  # the pool pass: gamma and accepted of every drafter at every committed position
    divergence: bool = False  # block divergence of the chosen drafter's draft


@dataclass(frozen=True)
class Context:
    """What is known before a cycle."""

    cycle: int  # cycles of this request so far
    num_tokens: int  # tokens of the answer so far
    mask: np.ndarray | None = None  # [N] bool: drafters that may be chosen now; None: all


@dataclass(frozen=True)
class Choice:
    """The drafter of the next cycle."""

    drafter: int
    probs: np.ndarray  # [N] the law it was drawn from; one-hot for a rule that has no better one


@dataclass(frozen=True)
class Evaluation:
    """The pool pass over committed positions start .. start + n - 1; it may come late and cover several cycles."""

    start: int
    gamma: np.ndarray  # [N, n] probability that a token of the target is accepted from the drafter; NaN: not evaluated
    accepted: np.ndarray  # [N, n] the same for the token that was emitted: 0 or 1 for trees, min(1, q / p) for chains


@dataclass(frozen=True)
class Feedback:
    """What a cycle showed."""

    drafter: int
    position: int  # absolute position of the first token the cycle emitted
    accept_length: int  # tokens emitted, bonus included, before any cut at the answer's end; in [1, depth + 1]
    depth: int  # levels drafted; 0: nothing was drafted
    ended: bool = False  # the answer ended in this cycle
    divergence: float | None = None  # mean of 1 - TV over the chosen drafter's draft, if `Needs.divergence`
    evaluation: Evaluation | None = None


class Selector(Memory, ABC):
    """Picks the drafter of every cycle; the output does not depend on it, only the speed does."""

    name = "selector"
    needs = Needs()

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        seed: int = 0,
        carry: bool = False,
        costs: Sequence[float] | None = None,
        levels: Sequence[int] | None = None,
    ) -> None:
        """drafters: names, [N].  depth: most levels a cycle drafts.  carry: keep what was learned between requests.

        costs: seconds per cycle of each drafter, [N]; with them tokens per second count, not tokens per cycle.
        levels: that each drafter drafts, [N], where some draft fewer than `depth`.
        """
        self.drafters = pool_names(drafters)
        self.num_drafters = len(self.drafters)
        self.depth = whole("depth", depth, 1)
        self.seed, self.carry = whole("seed", seed, 0), flag("carry", carry)
        self.costs = None if costs is None else np.array([_cost(cost) for cost in costs])
        if self.costs is not None and len(self.costs) != self.num_drafters:
            raise ConfigError(f"costs needs a number for each of {self.num_drafters} drafters, got {len(self.costs)}")
        self.levels = np.array([depth] * self.num_drafters if levels is None else list(levels))
        if len(self.levels) != self.num_drafters or not ((self.levels >= 0) & (self.levels <= depth)).all():
            raise ConfigError(f"levels needs a number from 0 to {depth} for each of {self.num_drafters} drafters")
        self.options: dict[str, Any] = {}
        self.requests = 0
        self.rng = np.random.default_rng([self.seed, 0])
        self.played = one_hot(0, self.num_drafters)
        self.advice: np.ndarray | None = None  # a router's law for the request, [N]

    @classmethod
    def option_names(cls, **preset: Any) -> list[str]:
        """Options beside the shared `seed`, `carry` and `costs`; `preset` are those that the selector's name sets."""
        return keyword_options(cls, Selector)

    def advise(self, law: np.ndarray) -> None:
        """Hear what a router makes of the next request, [N], before it begins."""
        self.advice = np.array(law, dtype=np.float64)

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Start a request; its draws depend on its seed alone, or on its number if it has none."""
        self.requests += 1
        self.rng = np.random.default_rng([self.seed, self.requests] if seed is None else seed)
        if not self.carry:
            self.reset()

    @abstractmethod
    def select(self, context: Context) -> Choice:
        """The drafter of the next cycle."""

    def observe(self, feedback: Feedback) -> None:
        """Learn from the cycle just run."""

    def end(self) -> None:
        """The request is over."""

    def allowed(self, context: Context) -> np.ndarray:
        """Drafters that may be chosen, [N] bool; at least one."""
        if context.mask is None:
            return np.ones(self.num_drafters, dtype=bool)
        mask = np.asarray(context.mask, dtype=bool)
        if mask.shape != (self.num_drafters,) or not mask.any():
            raise ConfigError(f"a mask must allow one of {self.num_drafters} drafters, got {mask.tolist()}")
        return mask

    def best(self, scores: np.ndarray, context: Context) -> Choice:
        """The allowed drafter of the highest score [N]."""
        drafter = best_of(scores, self.allowed(context))
        return self._chosen(drafter, one_hot(drafter, self.num_drafters))

    def from_law(self, weights: np.ndarray, context: Context, rule: str) -> Choice:
        """The likeliest allowed drafter, or one drawn, as `rule` says (argmax, sample), of a law [N]."""
        allowed = self.allowed(context)
        probs = restricted(weights, allowed)
        return self._chosen(best_of(probs, allowed) if rule == "argmax" else draw(probs, self.rng), probs)

    def _chosen(self, drafter: int, probs: np.ndarray) -> Choice:
        self.played = probs
        return Choice(drafter, probs)

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """One more drafter joins the pool; `cost` is needed where the others have one."""
        drafters = pool_names([*self.drafters, f"drafter {self.num_drafters}" if name is None else name])
        if self.costs is not None:
            self.costs = np.append(self.costs, _cost(cost))
        super().add_drafter()
        self.levels = np.append(self.levels, self.depth if levels is None else levels)
        self.drafters = drafters
        self.played = np.append(self.played, 0.0)

    def remove_drafter(self, index: int) -> None:
        """Drafter `index` leaves the pool; later ones move up."""
        super().remove_drafter(index)
        del self.drafters[index]
        self.levels = np.delete(self.levels, index)
        self.played = np.delete(self.played, index)
        self.costs = None if self.costs is None else np.delete(self.costs, index)

    def _kind(self) -> dict[str, Any]:
        plain = {key: value for key, value in self.options.items() if isinstance(value, str | int | float | None)}
        costs = None if self.costs is None else self.costs.tolist()
        return {"version": STATE_VERSION, "selector": self.name, "depth": self.depth, "costs": costs, "options": plain}

    def state_dict(self) -> dict[str, Any]:
        """All that decides the next choices, as JSON."""
        own = {"requests": self.requests, "rng": self.rng.bit_generator.state, "played": self.played.tolist()}
        return self._kind() | own | super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the selector that `state_dict` was taken of stood."""
        for key, value in self._kind().items():
            if state.get(key) != value:
                raise ConfigError(f"this state is of a selector with {key} {state.get(key)!r}, wanted {value!r}")
        super().load_state_dict(state)
        self.requests = state["requests"]
        self.rng.bit_generator.state = state["rng"]
        self.played = np.array(state["played"])


def one_of(option: str, value: object, choices: Sequence[str]) -> str:
    """The value of an option that takes a word."""
    return known(value, choices, f"{option} named")


def flag(option: str, value: object) -> bool:
    """The value of an option that is on or off."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{option} must be true or false, got {quote(value)}")
    return bool(value)


def whole(option: str, value: Any, least: int, most: float = np.inf) -> int:
    """The value of an option that takes a whole number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        limit = f", at most {most}" if most < np.inf else ""
        raise ConfigError(f"{option} must be a whole number of at least {least}{limit}, got {quote(value)}")
    return int(value)


def at_least(option: str, value: Any, least: float, most: float = np.inf) -> Any:
    """The value of an option that takes a number of a range."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value <= most:
        limit = f", at most {most:g}" if most < np.inf else ""
        raise ConfigError(f"{option} must be at least {least:g}{limit}, got {quote(value)}")
    return value


def _cost(cost: Any) -> float:
    if not isinstance(cost, int | float | np.number) or not 0 < cost < np.inf:
        raise ConfigError(f"costs are the seconds a cycle takes with each drafter, above 0, got {quote(cost)}")
    return float(cost)
