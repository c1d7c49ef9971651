"""What the engine asks of a drafter at work, whatever its kind.

Axes: B rows (sequences decoded together), A committed tokens, H hidden of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.judging import Judgement, Truth, judge_sets
from drafterforge.tree.grow import Tree, TreeShape


class Proposer(ABC):
    """Drafters' state for every row, which is a function of the rows' committed text alone; steps of a cycle."""

    @abstractmethod
    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row whose text [P + 1] ends with its root; features: [P, 3H] of the tokens before the root."""

    @abstractmethod
    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""

    def plan(self, record: CycleRecord) -> None:
        """Choose each row's drafter and tree: by default as asked for, and no deeper than could count in any row."""
        shape = record.shape
        record.plan_uniform(TreeShape(shape.num_tokens, min(shape.depth, max(record.limits)), shape.top_k))

    @abstractmethod
    def draft(self, record: CycleRecord) -> Tree:
        """Trees below the roots, as planned."""

    @abstractmethod
    def refresh(self, record: CycleRecord) -> None:
        """Take over what the cycle committed."""


class SoloProposer(Proposer):
    """One drafter at work."""

    def draft(self, record: CycleRecord) -> Tree:
        """Trees below the roots, as planned."""
        return self.draft_trees(record.root, record.bounds)

    def refresh(self, record: CycleRecord) -> None:
        """Read what the cycle committed."""
        self.read(*record.committed(), record.counts)

    @abstractmethod
    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B]."""

    @abstractmethod
    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        """Read counts[b] of tokens [B, A], whose last is the new root of row b.

        features: [B, A, 3H], the target's one position before each token.
        """


class JudgedProposer(SoloProposer):
    """A proposer that says what it would have proposed for tokens that were committed, so that a pool can judge it."""

    reads_features: ClassVar[bool] = True  # whether `read` reads the target's features

    @abstractmethod
    def read_with_guesses(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> Sequence[Sequence[Any]]:
        """As `read`; returns each row's guesses, one for each committed token, as `judge` reads them."""

    @abstractmethod
    def draft_some(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft_trees`, for some rows, whose roots are [B']."""

    def judge(self, guesses: list[list[Any]], truth: Truth, top_k: Sequence[int], details: bool = False) -> Judgement:
        """Judge each row's guesses, which by default are proposals with probabilities, best first.

        top_k: how many proposals count; with several numbers it is judged by each of them.
        """
        by_top_k = {count: judge_sets(guesses, truth, [count], details) for count in dict.fromkeys(top_k)}
        return Judgement.join([by_top_k[count] for count in top_k])
