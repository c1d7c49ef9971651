"""Selectors that do not learn: one drafter, a random one, the router's, the best in hindsight.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError
from drafterforge.selectors.base import Choice, Context, Selector, one_of
from drafterforge.selectors.naming import require_name
from drafterforge.selectors.probabilities import one_hot

DRAWS = ("argmax", "sample")


class Static(Selector):
    """Always one drafter; if the mask excludes it, the first that is allowed."""

    def __init__(self, drafters: Sequence[str], depth: int, *, drafter: str | None = None, **shared: Any) -> None:
        """drafter: its name; None: the first of the pool."""
        super().__init__(drafters, depth, **shared)
        self.drafter = self.drafters[0] if drafter is None else require_name(drafter, self.drafters, "drafter")

    def select(self, context: Context) -> Choice:
        """The drafter, if it is allowed."""
        return self.best(one_hot(self.drafters.index(self.drafter), self.num_drafters), context)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; ConfigError for the one that is always selected."""
        if self.drafters[index : index + 1] == [self.drafter]:
            raise ConfigError(f"drafter {self.drafter!r} is the one that selector=static selects; it cannot be removed")
        super().remove_drafter(index)


class Random(Selector):
    """A random allowed drafter, all equally likely."""

    def select(self, context: Context) -> Choice:
        """A random drafter."""
        return self.from_probs(np.ones(self.num_drafters), context, "sample")


class Routed(Selector):
    """The drafter that a router advises for the prompt, in all cycles of the answer."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        route: Callable[[Sequence[int] | None], Any] | None = None,
        draw: str = "argmax",
        **shared: Any,
    ) -> None:
        """route: maps the prompt's tokens to probabilities [N] or a drafter's index; None: the router's advice."""
        super().__init__(drafters, depth, **shared)
        self.route, self.draw = route, one_of("draw", draw, DRAWS)
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """The prompt's probabilities, [N]; 0 for a new drafter until the next prompt."""
        return {"prompt_probs": 0.0}

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Start a request with the router's probabilities."""
        super().begin(prompt_tokens, seed)
        advice = self.advice if self.route is None else self.route(prompt_tokens)
        if advice is None:
            raise ConfigError("selector=router needs a router: type pool.router=NAME, or give it route=FUNCTION")
        if np.ndim(advice) == 0:
            self.prompt_probs = one_hot(_index(advice, self.drafters, "route"), self.num_drafters)
            return
        self.prompt_probs = np.array(advice, dtype=np.float64)
        if self.prompt_probs.shape != (self.num_drafters,) or not (
            self.prompt_probs.min() >= 0 and 0 < self.prompt_probs.sum() < np.inf
        ):
            raise ConfigError(
                f"route must return an index or {self.num_drafters} probabilities, got {self.prompt_probs.tolist()}"
            )

    def select(self, context: Context) -> Choice:
        """The likeliest allowed drafter, or one drawn from the probabilities."""
        return self.from_probs(self.prompt_probs, context, self.draw)


class Oracle(Selector):
    """The best drafter in hindsight, given beforehand, as an upper bound; see `hindsight`."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        best: int | str | Sequence[int] | Callable[[Sequence[int] | None], Any],
        **shared: Any,
    ) -> None:
        """best: a drafter's index or name, one index per cycle, or a function of the prompt that returns either."""
        super().__init__(drafters, depth, **shared)
        self.source = best
        self.reset()
        if not callable(best):
            self.plan = self._plan(best)

    def blank(self) -> dict[str, Any]:
        """Index of the drafter of each cycle; the last one also serves all later cycles."""
        return {"plan": [0]}

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Start a request with its best drafters."""
        super().begin(prompt_tokens, seed)
        self.plan = self._plan(self.source(prompt_tokens) if callable(self.source) else self.source)

    def _plan(self, best: Any) -> list[int]:
        return [_index(entry, self.drafters, "best") for entry in ([best] if np.ndim(best) == 0 else best)]

    def select(self, context: Context) -> Choice:
        """The drafter of this cycle."""
        planned = self.plan[min(context.cycle, len(self.plan) - 1)]
        return self.best(one_hot(planned, self.num_drafters), context)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; its cycles go to the first drafter."""
        super().remove_drafter(index)
        self.plan = [0 if entry == index else entry - (entry > index) for entry in self.plan]


def _index(drafter: Any, names: list[str], option: str) -> int:
    if isinstance(drafter, str):
        return names.index(require_name(drafter, names, "drafter"))
    if drafter != drafter or int(drafter) != drafter or not 0 <= drafter < len(names):
        raise ConfigError(f"{option} must name one of {len(names)} drafters, counted from 0, got {drafter!r}")
    return int(drafter)
