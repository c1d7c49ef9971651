"""Selectors that learn nothing: one drafter, any drafter, the router's, the best in hindsight.  Axes: N drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drafterforge.errors import ConfigError
from drafterforge.selectors.base import Choice, Context, Selector, one_of
from drafterforge.selectors.laws import one_hot
from drafterforge.selectors.naming import known

DRAWS = ("argmax", "sample")


class Static(Selector):
    """Always the same drafter; where the mask forbids it, the first that is allowed."""

    def __init__(self, drafters: Sequence[str], depth: int, *, drafter: str | None = None, **shared: Any) -> None:
        """drafter: its name; by default the first."""
        super().__init__(drafters, depth, **shared)
        self.drafter = self.drafters[0] if drafter is None else known(drafter, self.drafters, "drafter")

    def select(self, context: Context) -> Choice:
        """The drafter."""
        return self.best(one_hot(self.drafters.index(self.drafter), self.num_drafters), context)

    def remove_drafter(self, index: int) -> None:
        """The drafter itself has to stay."""
        if self.drafters[index : index + 1] == [self.drafter]:
            raise ConfigError(f"drafter {self.drafter!r} is the one this selector always picks; it cannot be removed")
        super().remove_drafter(index)


class Random(Selector):
    """Any allowed drafter, all equally likely."""

    def select(self, context: Context) -> Choice:
        """A drafter drawn."""
        return self.from_law(np.ones(self.num_drafters), context, "sample")


class Routed(Selector):
    """What a router says of the prompt, for the whole answer."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        route: Callable[[Sequence[int] | None], Any] | None = None,
        draw: str = "argmax",
        **shared: Any,
    ) -> None:
        """route: maps the prompt's tokens to a law over drafters [N], or to the index of one; None: ask the router."""
        super().__init__(drafters, depth, **shared)
        self.route, self.draw = route, one_of("draw", draw, DRAWS)
        self.reset()

    def blank_rows(self) -> dict[str, Any]:
        """The router's law, [N]; a newcomer gets its share with the next prompt."""
        return {"law": 0.0}

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Ask the router."""
        super().begin(prompt_tokens, seed)
        answer = self.advice if self.route is None else self.route(prompt_tokens)
        if answer is None:
            raise ConfigError("selector=router needs a router: type pool.router=NAME, or give it route=FUNCTION")
        if np.ndim(answer) == 0:
            self.law = one_hot(_index(answer, self.drafters, "route"), self.num_drafters)
            return
        self.law = np.array(answer, dtype=np.float64)
        if self.law.shape != (self.num_drafters,) or not (self.law.min() >= 0 and 0 < self.law.sum() < np.inf):
            raise ConfigError(
                f"route must return an index or {self.num_drafters} probabilities, got {self.law.tolist()}"
            )

    def select(self, context: Context) -> Choice:
        """The router's likeliest allowed drafter, or one drawn from its law."""
        return self.from_law(self.law, context, self.draw)


class Oracle(Selector):
    """The best in hindsight, told beforehand: a yardstick.  `hindsight` finds it in a table of losses."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        best: int | str | Sequence[int] | Callable[[Sequence[int] | None], Any],
        **shared: Any,
    ) -> None:
        """best: a drafter's index or name, or one index per cycle, or a function of the prompt that gives either."""
        super().__init__(drafters, depth, **shared)
        self.source = best
        self.reset()
        if not callable(best):
            self.plan = self._plan(best)

    def blank(self) -> dict[str, Any]:
        """Indices of the drafters to pick, cycle by cycle; the last one stays."""
        return {"plan": [0]}

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Ask for the best drafter of this prompt."""
        super().begin(prompt_tokens, seed)
        self.plan = self._plan(self.source(prompt_tokens) if callable(self.source) else self.source)

    def _plan(self, best: Any) -> list[int]:
        return [_index(entry, self.drafters, "best") for entry in ([best] if np.ndim(best) == 0 else best)]

    def select(self, context: Context) -> Choice:
        """The drafter of this cycle."""
        planned = self.plan[min(context.cycle, len(self.plan) - 1)]
        return self.best(one_hot(planned, self.num_drafters), context)

    def remove_drafter(self, index: int) -> None:
        """Later drafters move up; what was planned for this one falls to the first."""
        super().remove_drafter(index)
        self.plan = [0 if entry == index else entry - (entry > index) for entry in self.plan]


def _index(drafter: Any, names: list[str], option: str) -> int:
    if isinstance(drafter, str):
        return names.index(known(drafter, names, "drafter"))
    if drafter != drafter or int(drafter) != drafter or not 0 <= drafter < len(names):
        raise ConfigError(f"{option} must name one of {len(names)} drafters, counted from 0, got {drafter!r}")
    return int(drafter)
