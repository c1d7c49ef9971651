"""Selection for one request of a pool: which drafter its next cycle is drafted by, and what its selector learns.

Axes: N drafters, A committed tokens, H hidden of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    feature: Tensor  # [3H] the target's, one position before the root
    text: Tensor  # the last tokens, root included
    cycles: int = 0
    tokens: int = 0  # of the answer
    choice: str = ""  # the drafter of this cycle
    limit: int = 0  # levels that could count in this cycle
    shape: TreeShape | None = None  # of this cycle
    scheduled: TreeShape | None = None  # what the scheduler last chose
    kept: int = 0  # cycles for which that stands
    unjudged: list[Feedback] = field(default_factory=list)  # cycles whose positions no evaluation has covered

    def select(self, names: Sequence[str], limit: int) -> None:
        """Choose the drafter of the next cycle, in which `limit` levels could count."""
        choice = self.selector.select(Context(self.cycles, self.tokens))
        self.choice, self.limit = names[choice.drafter], limit

    def commit(self, drafter: int, tokens: Tensor, features: Tensor, divergence: float | None, keep_text: bool) -> None:
        """Take over a cycle's tokens [A] and features [A, 3H].  drafter: number of the one that drafted."""
        count = len(tokens)
        self.feature = features[-1]
        if keep_text:
            self.text = torch.cat((self.text, tokens))[-TEXT_WINDOW:]
        self.unjudged.append(Feedback(drafter, self.position, count, self.shape.depth, divergence=divergence))
        self.position, self.tokens, self.cycles = self.position + count, self.tokens + count, self.cycles + 1

    def observe(self, evaluation: Evaluation | None) -> None:
        """Tell the selector every cycle that it was not told of, the newest with the evaluation."""
        *earlier, newest = self.unjudged or [None]
        for feedback in earlier:
            self.selector.observe(feedback)
        if newest is not None:
            self.selector.observe(replace(newest, evaluation=evaluation))
        self.unjudged = []


def evaluations_of(
    judgement: Judgement, order: Sequence[int], rows: Sequence[PoolRow], counts: Sequence[int]
) -> list[Evaluation]:
    """What each row's selector is told of its last counts[b] tokens.  order: the drafters' rows in the judgement."""
    gamma, accepted = torch.stack((judgement.gamma, judgement.accepted))[:, list(order)].cpu().double().numpy()
    return [
        Evaluation(row.position - count, gamma[:, place, :count], accepted[:, place, :count])
        for place, (row, count) in enumerate(zip(rows, counts, strict=True))
    ]
