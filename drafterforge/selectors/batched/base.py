"""The interface of selectors that serve many requests at once.

Axes: S slots, B rows of a batch, N drafters, K levels of the deepest cycle, P = K + 1 positions, F sums per drafter.

A request holds a slot from `begin` to `end`.  Every step calls `observe` and then `choose` with the slots of its rows.
No method but `state_dict` and `load_state_dict` waits for the device or loops over rows.  `observe` and `choose` change
tensors in place, so a CUDA graph can capture them.  Rows that pad a batch use a spare slot with `counts` 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.selectors.base import STATE_VERSION, Selector

TINY = 1e-300  # probability that makes drafters equally likely where all have 0, and changes no other probability
REAL = torch.float64


class BatchedSelector(ABC):
    """Selects the drafters of many requests; each gets the choices that `rule` makes for it alone.

    totals: sums that a slot's request has learned, [S, F, N].  rounds: number of them, [S].
    arms: drafter of the last choice, [S].  played: distribution of the last choice, [S, N].
    """

    def __init__(
        self,
        rule: Selector,
        num_slots: int,
        device: torch.device | str = "cpu",
        *,
        num_totals: int = 0,
        decay: float | Tensor = 1.0,
    ) -> None:
        """rule: the selector of one request, whose options count here.

        decay: factor of `totals` in each round, of all sums or of each, [F, 1].
        """
        self.rule, self.device = rule, torch.device(device)
        self.num_drafters, self.depth, self.decay = rule.num_drafters, rule.depth, decay
        self.generator = None  # the meta device has none
        if self.device.type != "meta":
            self.generator = torch.Generator(self.device).manual_seed(rule.seed)
        self.indices = torch.arange(self.num_drafters, device=self.device)
        self.totals = self._zeros(num_slots, num_totals, self.num_drafters)
        self.rounds = self._zeros(num_slots)
        self.arms = torch.zeros(num_slots, dtype=torch.int64, device=self.device)
        self.played = self._zeros(num_slots, self.num_drafters)
        self.played[:, 0] = 1.0
        # What requests begin with: now, [F, N] and a number, and in the past, [S, F, N] and [S].
        self.carried_totals, self.carried_rounds = self._zeros(num_totals, self.num_drafters), self._zeros()
        self.initial_totals, self.initial_rounds = self.totals.clone(), self.rounds.clone()
        self.speeds = self._zeros(self.num_drafters)
        self.costs = rule.costs

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=REAL, device=self.device)

    @property
    def costs(self) -> Tensor | None:
        """Seconds per cycle of each drafter, [N]; given, tokens per second are maximised, not tokens per cycle."""
        return self._costs

    @costs.setter
    def costs(self, costs: Tensor | Sequence[float] | None) -> None:
        self._costs = None if costs is None else torch.as_tensor(costs, dtype=REAL, device=self.device)
        if self._costs is not None and self._costs.shape != (self.num_drafters,):
            raise ConfigError(
                f"costs needs a number for each of {self.num_drafters} drafters, got {list(self._costs.shape)}"
            )
        # Share of the best possible outcome that a token of each drafter is, see `estimators.length_loss`.
        self.speeds.fill_(1 / (self.depth + 1))
        if self._costs is not None:
            self.speeds.mul_(self._costs.amin() / self._costs)

    def begin(self, slots: Tensor, advice: Tensor | None = None) -> None:
        """Start requests in `slots` [B].  advice: a router's probabilities, [B, N], for selectors with `prior`."""
        self.totals.index_copy_(0, slots, self.carried_totals.expand(len(slots), -1, -1))
        self.rounds.index_copy_(0, slots, self.carried_rounds.expand(len(slots)))
        if self.rule.carry:
            self.initial_totals.index_copy_(0, slots, self.carried_totals.expand(len(slots), -1, -1))
            self.initial_rounds.index_copy_(0, slots, self.carried_rounds.expand(len(slots)))

    @abstractmethod
    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Drafter of each row's next cycle, [B].  allowed: drafters that may be selected, [B, N] bool, at least one."""

    def observe(self, slots: Tensor, hits: Tensor, counts: Tensor, depths: Tensor) -> None:
        """Learn from the last cycle of each row.

        hits: whether each drafter's proposal is the committed token, bool or finite probabilities, [B, N, P]; positions
        from `counts` on are ignored.  counts: committed tokens, [B]; 0: the row learns nothing.  depths: levels that
        the cycle drafted, [B]; 0: none.
        """
        return None

    def drop(self, slots: Tensor) -> None:
        """Forget incomplete rounds of `slots` [B], whose next positions do not continue the last ones."""
        return None

    def end(self, slots: Tensor) -> None:
        """End requests; with `carry`, later ones begin with what these have learned, in the order of `slots` [B]."""
        if not self.rule.carry:
            return
        rounds = self.rounds.index_select(0, slots) - self.initial_rounds.index_select(0, slots)
        initial = self.initial_totals.index_select(0, slots)
        learned = self.totals.index_select(0, slots) - initial * self.decay ** rounds[:, None, None]
        later = rounds.sum() - rounds.cumsum(0)  # rounds of the requests after each
        self.carried_totals.mul_(self.decay ** rounds.sum()).add_(
            (learned * self.decay ** later[:, None, None]).sum(dim=0)
        )
        self.carried_rounds.add_(rounds.sum())

    def probs(self, slots: Tensor) -> Tensor:
        """Distribution of each row's last choice, [B, N]; one-hot for a deterministic rule."""
        return self.played.index_select(0, slots)

    def best(self, slots: Tensor, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """The allowed drafter with the highest score [B, N], the first of equal ones, [B]."""
        arms = (scores if allowed is None else torch.where(allowed, scores, -torch.inf)).argmax(dim=-1)
        return self._record(slots, arms, (arms[:, None] == self.indices).to(REAL))

    def from_probs(self, slots: Tensor, weights: Tensor, allowed: Tensor | None, draw: str) -> Tensor:
        """An allowed drafter by weights [B, N], [B].  draw: `argmax` takes the likeliest, `sample` draws one."""
        if allowed is not None:
            weights = torch.where(allowed, weights + TINY, 0.0)
        probs = weights / weights.sum(dim=-1, keepdim=True)
        scores = probs
        if draw == "sample":  # the least of exponential times with rates `probs`
            scores = probs / torch.empty_like(probs).exponential_(generator=self.generator)
        return self._record(slots, scores.argmax(dim=-1), probs)

    def _record(self, slots: Tensor, arms: Tensor, probs: Tensor) -> Tensor:
        self.arms.index_copy_(0, slots, arms)
        self.played.index_copy_(0, slots, probs)
        return arms

    def _kind(self) -> dict[str, Any]:
        rule = self.rule
        options = {key: value for key, value in rule.options.items() if isinstance(value, str | int | float | None)}
        return {
            "version": STATE_VERSION,
            "selector": rule.name,
            "depth": rule.depth,
            "drafters": rule.drafters,
            "options": options,
        }

    def state_dict(self) -> dict[str, Any]:
        """What later requests begin with, as JSON."""
        return self._kind() | {"totals": self.carried_totals.tolist(), "rounds": self.carried_rounds.item()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for key, value in self._kind().items():
            if state.get(key) != value:
                raise ConfigError(
                    f"this state is of a selector with {key} {state.get(key)!r}, but this selector has {value!r}"
                )
        self.carried_totals.copy_(torch.tensor(state["totals"], dtype=REAL).view_as(self.carried_totals))
        self.carried_rounds.fill_(state["rounds"])


def unavailable(rule: Selector, option: str, value: object, remedy: str) -> ConfigError:
    """The error for an option that only the selector of one request has."""
    return ConfigError(f"selector={rule.name} cannot have {option}={value} for many requests at once; {remedy}")
