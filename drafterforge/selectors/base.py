"""The interface of selectors.  Axes: N drafters of the pool, n committed positions.

A selector serves one request at a time: `begin`, then `select` and `observe` once per cycle, then `end`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError, quote
from drafterforge.selectors.memory import Memory
from drafterforge.selectors.naming import keyword_options, pool_names, require_name
from drafterforge.selectors.probabilities import best_of, draw, one_hot, restricted

STATE_VERSION = 2


@dataclass(frozen=True)
class Needs:
    """Measurements that a selector needs from the runtime."""

    evaluation: bool = False  # the pool pass: gamma and accepted of every drafter at every committed position
    coverage: bool = False  # the target's mass on the children along the selected drafter's likeliest branch
    overlap: bool = False  # 1 - TV of target and selected drafter along that branch
    prompt: bool = False  # before a request begins: how well each drafter predicts the prompt, see `read_prompt`


@dataclass(frozen=True)
class Context:
    """What a selector knows before a cycle."""

    cycle: int  # cycles of this request so far
    num_tokens: int  # tokens of the answer so far
    mask: np.ndarray | None = None  # [N] bool: drafters that may be selected; None: all


@dataclass(frozen=True)
class Choice:
    """The drafter of the next cycle."""

    drafter: int
    probs: np.ndarray  # [N] distribution it was drawn from; one-hot for a deterministic rule


@dataclass(frozen=True)
class Evaluation:
    """The pool pass over committed positions start .. start + n - 1; it may come late and cover several cycles."""

    start: int
    gamma: np.ndarray  # [N, n] probability that a token of the target is accepted from the drafter; NaN: not evaluated
    accepted: np.ndarray  # [N, n] the same for the emitted token: 0 or 1 for trees, min(1, q / p) for chains


@dataclass(frozen=True)
class Feedback:
    """The outcome of a cycle."""

    drafter: int
    position: int  # absolute position of the first token the cycle emitted
    accept_length: int  # tokens emitted, bonus included, before any cut at the answer's end; in [1, depth + 1]
    depth: int  # levels drafted; 0: none
    coverage: float | None = None  # of the selected drafter's draft, if `Needs.coverage`; see `tree.coverage`
    overlap: float | None = None  # of target and selected drafter, if `Needs.overlap`; see `tree.coverage`
    evaluation: Evaluation | None = None


class Selector(Memory, ABC):
    """Selects the drafter of every cycle, which affects only speed, never the output."""

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
        """drafters: names, [N].  depth: most levels that a cycle drafts.  carry: keep state between requests.

        costs: seconds per cycle of each drafter, [N]; given, tokens per second are maximised, not tokens per cycle.
        levels: that each drafter drafts, [N], if some draft fewer than `depth`.
        """
        self.drafters = pool_names(drafters)
        self.num_drafters = len(self.drafters)
        self.depth = whole_number("depth", depth, 1)
        self.seed, self.carry = whole_number("seed", seed, 0), flag("carry", carry)
        self.costs = None if costs is None else np.array([_cost(cost) for cost in costs])
        if self.costs is not None and len(self.costs) != self.num_drafters:
            raise ConfigError(f"costs needs a number for each of {self.num_drafters} drafters, got {len(self.costs)}")
        self.levels = np.array([depth] * self.num_drafters if levels is None else list(levels))
        if len(self.levels) != self.num_drafters or not ((self.levels >= 0) & (self.levels <= depth)).all():
            raise ConfigError(f"levels needs a number from 0 to {depth} for each of {self.num_drafters} drafters")
        self.options: dict[str, Any] = {}
        self.requests = 0
        self.rng = np.random.default_rng([self.seed, 0])
        self.played_probs = one_hot(0, self.num_drafters)  # distribution of the last choice, [N]
        self.advice: np.ndarray | None = None  # a router's probabilities for the request, [N]
        self.prompt_hit_rates: np.ndarray | None = None  # of the request that begins next, see `read_prompt`, [N]

    @classmethod
    def option_names(cls, **preset: Any) -> list[str]:
        """Options of this selector, without the shared ones.  preset: options that the selector's name sets."""
        return keyword_options(cls, Selector)

    def advise(self, probs: np.ndarray) -> None:
        """Take a router's probabilities for the next request, [N]; called before `begin`."""
        self.advice = np.array(probs, dtype=np.float64)

    def read_prompt(self, hit_rates: np.ndarray) -> None:
        """Set the drafters' hit rates on the prompt of the next request; called before `begin`, if `needs.prompt`.

        hit_rates: share of the prompt's newest tokens that were among each drafter's proposals, [N]; NaN for a drafter
        that was not judged.
        """
        self.prompt_hit_rates = np.array(hit_rates, dtype=np.float64)

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Start a request; its draws depend on its seed alone, or, without one, on its number."""
        self.requests += 1
        self.rng = np.random.default_rng([self.seed, self.requests] if seed is None else seed)
        if not self.carry:
            self.reset()

    @abstractmethod
    def select(self, context: Context) -> Choice:
        """The drafter of the next cycle."""

    def observe(self, feedback: Feedback) -> None:
        """Learn from the last cycle."""

    def end(self) -> None:
        """End the request."""

    def allowed(self, context: Context) -> np.ndarray:
        """Drafters that may be selected, [N] bool; at least one."""
        if context.mask is None:
            return np.ones(self.num_drafters, dtype=bool)
        mask = np.asarray(context.mask, dtype=bool)
        if mask.shape != (self.num_drafters,) or not mask.any():
            raise ConfigError(f"a mask must allow one of {self.num_drafters} drafters, got {mask.tolist()}")
        return mask

    def best(self, scores: np.ndarray, context: Context) -> Choice:
        """The allowed drafter with the highest score [N]."""
        drafter = best_of(scores, self.allowed(context))
        return self._choice(drafter, one_hot(drafter, self.num_drafters))

    def from_probs(self, weights: np.ndarray, context: Context, rule: str) -> Choice:
        """An allowed drafter by weights [N].  rule: `argmax` takes the likeliest, `sample` draws one."""
        allowed = self.allowed(context)
        probs = restricted(weights, allowed)
        return self._choice(best_of(probs, allowed) if rule == "argmax" else draw(probs, self.rng), probs)

    def _choice(self, drafter: int, probs: np.ndarray) -> Choice:
        self.played_probs = probs
        return Choice(drafter, probs)

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """Add a drafter to the pool.  cost: its seconds per cycle, needed if the others have costs."""
        drafters = pool_names([*self.drafters, f"drafter {self.num_drafters}" if name is None else name])
        if self.costs is not None:
            self.costs = np.append(self.costs, _cost(cost))
        super().add_drafter()
        self.levels = np.append(self.levels, self.depth if levels is None else levels)
        self.drafters = drafters
        self.played_probs = np.append(self.played_probs, 0.0)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; the indices of later ones decrease by one."""
        super().remove_drafter(index)
        del self.drafters[index]
        self.levels = np.delete(self.levels, index)
        self.played_probs = np.delete(self.played_probs, index)
        self.costs = None if self.costs is None else np.delete(self.costs, index)

    def _kind(self) -> dict[str, Any]:
        plain = {key: value for key, value in self.options.items() if isinstance(value, str | int | float | None)}
        costs = None if self.costs is None else self.costs.tolist()
        kind = {"version": STATE_VERSION, "selector": self.name, "drafters": list(self.drafters), "depth": self.depth}
        return kind | {"costs": costs, "options": plain}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next choices depend on, as JSON."""
        draws = {"requests": self.requests, "rng": self.rng.bit_generator.state, "played": self.played_probs.tolist()}
        return self._kind() | draws | super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for key, value in self._kind().items():
            if state.get(key) != value:
                raise ConfigError(
                    f"this state is of a selector with {key} {state.get(key)!r}, but this selector has {value!r}"
                )
        super().load_state_dict(state)
        self.requests = state["requests"]
        self.rng.bit_generator.state = state["rng"]
        self.played_probs = np.array(state["played"])


def one_of(option: str, value: object, choices: Sequence[str]) -> str:
    """The value of an option that takes one of `choices`."""
    return require_name(value, choices, f"{option} named")


def flag(option: str, value: object) -> bool:
    """The value of a boolean option."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{option} must be true or false, got {quote(value)}")
    return bool(value)


def whole_number(option: str, value: Any, least: int, most: float = np.inf) -> int:
    """The value of an option that takes a whole number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        limit = f", at most {most}" if most < np.inf else ""
        raise ConfigError(f"{option} must be a whole number of at least {least}{limit}, got {quote(value)}")
    return int(value)


def at_least(option: str, value: Any, least: float, most: float = np.inf) -> Any:
    """The value of an option that takes a number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value <= most:
        limit = f", at most {most:g}" if most < np.inf else ""
        raise ConfigError(f"{option} must be at least {least:g}{limit}, got {quote(value)}")
    return value


def _cost(cost: Any) -> float:
    if not isinstance(cost, int | float | np.number) or not 0 < cost < np.inf:
        raise ConfigError(f"costs are seconds per cycle of each drafter and must be > 0, got {quote(cost)}")
    return float(cost)
