"""HedgeSpec as its theorem has it: NormalHedge, untuned, with copies for delayed feedback and drawn choices.

Feedback about a position arrives after up to 2 K further ones.  BOLD (Joulani, Gyorgy, Szepesvari 2013) reduces this to
learning without delay: every round is played by a copy of the learner that awaits no feedback, a new one if all do.
So each copy sees its rounds in turn, and at most 2 K + 1 copies share T rounds: the regret is
(2 K + 1) R(T / (2 K + 1)) for a learner with regret R(T).
The paper's experiments feed one learner as feedback arrives instead, which is `normalhedge` here.  The paper draws from
the distribution; `normalhedge` plays its most likely drafter, so equal requests decode alike.
What the paper leaves open and we fix: every emitted position is a round, as in its losses, but only the copy of a
cycle's first position chooses a drafter; state does not pass from request to request.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from drafterforge.selectors.base import Choice, Context, Feedback
from drafterforge.selectors.full_information import FullInformation
from drafterforge.selectors.learners import Learner

OPTIONS = ("objective", "granularity", "estimator")


class HedgeSpecPaper(FullInformation):
    """Copies of NormalHedge; `copies` grows to at most 2 K + 1."""

    def __init__(self, drafters: Sequence[str], depth: int, **shared: Any) -> None:
        """shared: options of every selector, and `OPTIONS`, see `FullInformation`."""
        self.copies: list[Learner] = []
        super().__init__(drafters, depth, learner="normalhedge", draw="sample", **shared)

    @classmethod
    def option_names(cls, **preset: Any) -> list[str]:
        """The options that vary within the paper."""
        return list(OPTIONS)

    def blank(self) -> dict[str, Any]:
        """Positions that await feedback, each with the index of its copy."""
        return super().blank() | {"waiting": []}

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.copies = []

    def free_copy(self) -> int:
        """Index of the first copy that awaits no feedback; a new one if all do."""
        busy = {copy for _, copy in self.waiting}
        index = next(index for index in range(len(self.copies) + 1) if index not in busy)
        if index == len(self.copies):
            self.copies.append(deepcopy(self.learner))
        return index

    @property
    def probs(self) -> np.ndarray:
        """Distribution of the next choice, [N]."""
        return self.copies[self.free_copy()].probs

    def select(self, context: Context) -> Choice:
        """A drafter drawn by the first free copy."""
        return self.from_probs(self.probs, context, self.draw)

    def observe(self, feedback: Feedback) -> None:
        """Let free copies await the feedback of the emitted positions; the first of them chose the drafter."""
        if self.num_drafters == 1:  # nothing to learn, and no evaluation ever empties the queue
            return
        self.queue.add_cycle(feedback.position, self.played_probs)
        by_token = self.queue.granularity == "token"
        for position in range(feedback.position, feedback.position + (feedback.accept_length if by_token else 1)):
            self.waiting.append([position, self.free_copy()])
        if feedback.evaluation is not None:
            rounds, copies = self.queue.extend(feedback.evaluation), dict(self.waiting)
            for position, loss in zip(rounds.positions.tolist(), self._losses(rounds), strict=True):
                self.copies[copies[position]].update(loss, awake=~np.isnan(loss))
            self.waiting = [entry for entry in self.waiting if entry[0] >= self.queue.start]

    def end(self) -> None:
        """End the request; drops incomplete rounds."""
        super().end()
        self.waiting = []

    def add_drafter(self, name: str | None = None, cost: float | None = None, levels: int | None = None) -> None:
        """Add a drafter to every copy."""
        super().add_drafter(name, cost, levels)
        for copy in self.copies:
            copy.add_drafter()

    def remove_drafter(self, index: int) -> None:
        """Remove a drafter from every copy."""
        super().remove_drafter(index)
        for copy in self.copies:
            copy.remove_drafter(index)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next choices depend on, as JSON."""
        return super().state_dict() | {"copies": [copy.state_dict() for copy in self.copies]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.copies = [deepcopy(self.learner) for _ in state["copies"]]
        for copy, saved in zip(self.copies, state["copies"], strict=True):
            copy.load_state_dict(saved)
