"""Selection for one request of a pool: the drafter of its next cycle, and the feedback that its selector learns from.

Axes: N drafters, A committed tokens, H hidden of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drafterforge.drafters.judging import Judgement
from drafterforge.schedulers.observation import TEXT_WINDOW
from drafterforge.selectors.base import Context, Evaluation, Feedback, Selector
from drafterforge.tree.grow import TreeShape


@dataclass
class PoolRow:
    """A request, its selector, and the tree of its cycle."""

    selector: Selector
    position: int  # absolute position of the next token to be committed
    feature: Tensor  # [3H] of the target, one position before the root
    text: Tensor  # the last tokens, root included
    cycles: int = 0
    tokens: int = 0  # of the answer
    choice: str = ""  # the drafter of this cycle
    limit: int = 0  # levels whose tokens could belong to the answer, at most those of the selector
    shape: TreeShape | None = None  # of this cycle
    scheduled: TreeShape | None = None  # what the scheduler last chose
    hold_cycles: int = 0  # further cycles for which that choice is kept
    feedback: Feedback | None = None  # of this cycle, without its evaluation

    def select(self, names: Sequence[str], limit: int) -> None:
        """Select the drafter of the next cycle.  limit: levels whose tokens could belong to the answer."""
        choice = self.selector.select(Context(self.cycles, self.tokens))
        # a drafter that has joined since may draft deeper than the selector's rewards allow
        self.choice, self.limit = names[choice.drafter], min(limit, self.selector.depth)

    def commit(
        self,
        drafter: int,
        tokens: Tensor,
        feature: Tensor,
        keep_text: bool,
        coverage: float | None,
        overlap: float | None,
    ) -> None:
        """Add a cycle's tokens [A], and the feature before the last, [3H].  drafter: index of that of the cycle.

        coverage, overlap: of its draft, if measured, see `Feedback`.
        """
        count = len(tokens)
        self.feature = feature
        if keep_text:
            self.text = torch.cat((self.text, tokens))[-TEXT_WINDOW:]
        self.feedback = Feedback(drafter, self.position, count, self.shape.depth, coverage, overlap)
        self.position, self.tokens, self.cycles = self.position + count, self.tokens + count, self.cycles + 1

    def observe(self, evaluation: Evaluation | None) -> None:
        """Pass the committed cycle to the selector, with the evaluation if there is one."""
        self.selector.observe(replace(self.feedback, evaluation=evaluation))


def evaluations_of(
    judgement: Judgement, order: Sequence[int], rows: Sequence[PoolRow], counts: Sequence[int]
) -> list[Evaluation]:
    """Evaluations of each row's last counts[b] tokens.  order: rows of the judgement, by index of the drafter."""
    gamma, accepted = torch.stack((judgement.gamma, judgement.accepted))[:, list(order)].cpu().double().numpy()
    return [
        Evaluation(row.position - count, gamma[:, index, :count], accepted[:, index, :count])
        for index, (row, count) in enumerate(zip(rows, counts, strict=True))
    ]
