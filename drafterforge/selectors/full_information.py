"""HedgeSpec: after every cycle the pool pass evaluates each drafter, and a learner follows the losses."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from drafterforge.selectors.base import Choice, Context, Feedback, Needs, Selector, at_least, flag, one_of, whole_number
from drafterforge.selectors.calibration import Calibration
from drafterforge.selectors.delay import GRANULARITIES, DelayQueue, Rounds
from drafterforge.selectors.estimators import ESTIMATORS, expected_length, geometric_length, length_loss
from drafterforge.selectors.fixed import DRAWS
from drafterforge.selectors.learners import LEARNERS, Learner

OBJECTIVES = ("length", "token")
MOST_PRIOR = 1000  # most rounds of advice or of a prompt; each is one update when a request begins


class FullInformation(Selector):
    """A learner on complete rounds; its regrets refer to the distribution that each cycle's choice came from."""

    def __init__(
        self,
        drafters: Sequence[str],
        depth: int,
        *,
        learner: str = "normalhedge",
        granularity: str = "token",
        objective: str = "length",
        estimator: str = "plugin",
        draw: str = "argmax",
        calibration: bool = False,
        hybrid: bool = False,
        skip: float | None = None,
        skip_cycles: int = 8,
        prior: int = 0,
        prompt_rounds: int = 0,
        seed: int = 0,
        carry: bool = False,
        costs: Sequence[float] | None = None,
        levels: Sequence[int] | None = None,
        **learner_options: Any,
    ) -> None:
        """granularity: every `token` starts a round, or every cycle (`chunk`).  estimator: see `estimators`.

        objective: accept `length`, or acceptance of the next `token`.  draw: `argmax` takes the likeliest drafter,
        `sample` draws one.  calibration: correct deep levels, see `calibration`.
        hybrid (ours; HedgeSpec only names it): incomplete rounds count by their first position; with costs, by the
        length estimated from it and the drafter's recent mean rate.
        skip: once the learner gives a drafter this probability, `skip_cycles` cycles go without evaluation.
        prior: rounds that a router's advice counts for when a request starts.
        prompt_rounds (ours): rounds of the hit rates on the prompt with which a request begins, without `prior` rounds.
        """
        super().__init__(drafters, depth, seed=seed, carry=carry, costs=costs, levels=levels)
        self.objective = one_of("objective", objective, OBJECTIVES)
        self.estimator = one_of("estimator", estimator, ESTIMATORS)
        self.draw = one_of("draw", draw, DRAWS)
        self.hybrid, self.skip_cycles = flag("hybrid", hybrid), whole_number("skip_cycles", skip_cycles, 1)
        self.prior = whole_number("prior", prior, 0, MOST_PRIOR)
        self.prompt_rounds = whole_number("prompt_rounds", prompt_rounds, 0, MOST_PRIOR)
        self.skip = None if skip is None else at_least("skip", skip, 0, 1)
        self.learner: Learner = LEARNERS[one_of("learner", learner, list(LEARNERS))](
            self.num_drafters, **learner_options
        )
        reach = 1 if objective == "token" else depth
        granularity = one_of("granularity", granularity, GRANULARITIES)
        self.queue = DelayQueue(self.num_drafters, reach, granularity, self.levels)
        self.calibration = Calibration(self.num_drafters, depth) if flag("calibration", calibration) else None
        self.played = self.learner.played(self.played_probs)  # in the last choice, see `Learner`
        self.parts = {"learner": self.learner, "queue": self.queue}
        self.parts |= {"calibration": self.calibration} if self.calibration else {}
        self.reset()

    @classmethod
    def option_names(cls, **preset: Any) -> list[str]:
        """Options of the selector and of its learner."""
        options = [
            name for name in super().option_names() if name not in ("learner", "seed", "carry", "costs", "levels")
        ]
        return options + LEARNERS[preset["learner"]].option_names()

    def blank(self) -> dict[str, Any]:
        """Further cycles without evaluation."""
        return {"cycles_to_skip": 0}

    @property
    def needs(self) -> Needs:
        """An evaluation unless skipped; hit rates on prompts with `prompt_rounds`.  A single drafter needs neither."""
        several = self.num_drafters > 1
        return Needs(evaluation=several and self.cycles_to_skip == 0, prompt=several and self.prompt_rounds > 0)

    def present_learner(self) -> Learner:
        """The learner of the next choice: with `hybrid`, it also knows the incomplete rounds."""
        if not self.hybrid:
            return self.learner
        learner = copy(self.learner)
        rounds = self.queue.open_rounds()
        self._learn(learner, rounds, self._open_losses(rounds))
        return learner

    @property
    def probs(self) -> np.ndarray:
        """Distribution of the next choice, [N]."""
        return self.present_learner().probs

    def select(self, context: Context) -> Choice:
        """The likeliest allowed drafter, or one drawn from `probs`."""
        learner = self.present_learner()
        choice = self.from_probs(learner.probs, context, self.draw)
        self.played = learner.played(choice.probs)
        return choice

    def observe(self, feedback: Feedback) -> None:
        """Queue the cycle; learn from the rounds that its evaluation completes."""
        self.cycles_to_skip = max(self.cycles_to_skip - 1, 0)
        if self.num_drafters > 1:  # else no evaluation ever empties the queue
            self.queue.add_cycle(feedback.position, self.played)
            if self.calibration and feedback.depth > 0:
                self.calibration.add_cycle(feedback)
        if feedback.evaluation is not None:
            rounds = self.queue.extend(feedback.evaluation)
            if self.calibration:
                self.calibration.extend(feedback.evaluation)
            self._learn(self.learner, rounds, self._losses(rounds))
            if self.skip is not None and len(rounds.positions) and self.learner.probs.max() >= self.skip:
                self.cycles_to_skip = self.skip_cycles

    def _losses(self, rounds: Rounds) -> np.ndarray:
        """Losses [R, N] of complete rounds; NaN where a drafter was not evaluated."""
        gamma, accepted = rounds.gamma, rounds.accepted
        if self.calibration:
            factors = self.calibration.factors[:, : self.queue.depth]
            gamma, accepted = np.minimum(gamma * factors, 1.0), np.minimum(accepted * factors, 1.0)
        drafted = np.arange(gamma.shape[-1]) < np.maximum(self.levels, self.objective == "token")[:, None]
        length = expected_length(gamma * drafted, accepted * drafted, self.estimator)
        if self.objective == "length":
            return length_loss(length, self.depth, self.costs)
        if self.costs is None:
            return 2.0 - length
        return length_loss(geometric_length(length - 1.0, self.levels), self.depth, self.costs)

    def _open_losses(self, rounds: Rounds) -> np.ndarray:
        """Losses [R, N] of incomplete rounds, estimated from their first position.

        Costs need a length: levels after the first count with the drafter's recent mean rate.  Powers of the single
        measured 0 or 1 would make all drafters equal, so the cheapest would win.
        """
        if self.costs is None:
            return self._rate_losses(rounds.gamma[..., 0])
        sampled = self.estimator == "ratio"
        first, rates = (rounds.accepted if sampled else rounds.gamma)[..., 0], self.queue.rates()[sampled]
        if self.calibration:
            factors = self.calibration.factors
            first = np.minimum(first * factors[:, 0], 1.0)
            rates = np.minimum(rates * factors[:, min(1, self.depth - 1)], 1.0)
        return self._rate_losses(first, rates)

    def _rate_losses(self, first: np.ndarray, rates: np.ndarray | None = None) -> np.ndarray:
        """Losses [..., N] by the rates at which the first level is accepted and, with costs, deeper ones."""
        if self.costs is None:
            return 1.0 - first
        length = 1.0 + first * (self.levels > 0) * geometric_length(rates, np.maximum(self.levels - 1, 0))
        return length_loss(length, self.depth, self.costs)

    @staticmethod
    def _learn(learner: Learner, rounds: Rounds, losses: np.ndarray) -> None:
        for loss, probs, begins in zip(losses, rounds.probs, rounds.begins.tolist(), strict=True):
            learner.update(loss, probs, ~np.isnan(loss), begins)

    def end(self) -> None:
        """End the request; drops incomplete rounds."""
        self.queue.reset()
        if self.calibration:
            self.calibration.cycles = []

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        for part in self.parts.values():
            part.reset()

    def begin(self, prompt_tokens: Sequence[int] | None = None, seed: int | None = None) -> None:
        """Start a request with rounds of a router's advice, else of the drafters' hit rates on the prompt."""
        super().begin(prompt_tokens, seed)
        self.end()
        rates, self.prompt_hit_rates = self.prompt_hit_rates, None
        if self.advice is not None and self.prior:
            for _ in range(self.prior):
                self.learner.update(1.0 - self.advice)
        elif rates is not None:
            losses = self._rate_losses(rates, rates)
            for _ in range(self.prompt_rounds):
                self.learner.update(losses, awake=~np.isnan(losses))

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """Add a drafter in the learner's neutral state; it sleeps in incomplete rounds."""
        super().add_drafter(name, cost, levels)
        self.played = np.insert(self.played, self.num_drafters - 1, 0.0, axis=-1)
        for part in self.parts.values():
            part.add_drafter()
        self.queue.levels[-1] = min(self.levels[-1], self.queue.depth)

    def remove_drafter(self, index: int) -> None:
        """Remove drafter `index`; the state of the others stays."""
        super().remove_drafter(index)
        self.played = np.delete(self.played, index, axis=-1)
        for part in self.parts.values():
            part.remove_drafter(index)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next choices depend on, as JSON."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        return super().state_dict() | {"parts": parts, "played_by_learner": self.played.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.played = np.array(state["played_by_learner"])
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
