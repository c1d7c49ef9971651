"""What the engine asks of a drafter at work, whatever its kind.

Axes: B rows (sequences decoded together), A committed tokens, T tree nodes, V vocabulary, H hidden of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from drafterforge.drafters.judging import Judgement, Truth, judge_sets
from drafterforge.tree.grow import Tree, TreeShape

if TYPE_CHECKING:
    from drafterforge.runtime.sampling import Picker


@dataclass(frozen=True)
class Verified:
    """What the target said of a cycle's trees."""

    tree: Tree
    logits: Tensor  # after each node, [B, T, V]
    path: Tensor  # accepted walks, [B, D + 1]
    picker: Picker
    seen: Tensor | None  # [B, V], tokens that a penalty applies to


class Proposer(ABC):
    """A drafter's state for every row; a function of the rows' committed text alone."""

    @abstractmethod
    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row whose text [P + 1] ends with its root; features: [P, 3H] of the tokens before the root."""

    @abstractmethod
    def refresh(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Commit counts[b] of tokens [B, A], whose last is the new root of row b.

        features: [B, A, 3H], the target's one position before each token.
        """

    @abstractmethod
    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B]."""

    @abstractmethod
    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""

    chosen: Sequence[str] = ()  # the drafter of each row's cycle, where there are several
    shapes: Sequence[TreeShape] = ()  # the tree of each row's cycle, where they differ
    select_s: float = 0.0  # seconds spent on choosing drafters, ever
    schedule_s: float = 0.0  # seconds spent on choosing shapes, ever
    verified: Verified | None = None  # how the last trees fared, told before `refresh`

    def plan(self, shape: TreeShape, limits: Sequence[int]) -> TreeShape:
        """Bounds of the trees that the next `draft` makes: as asked for, and no deeper than could count in any row."""
        return TreeShape(shape.num_tokens, min(shape.depth, max(limits)), shape.top_k)


class JudgedProposer(Proposer):
    """A proposer that says what it would have proposed for tokens that were committed, so that a pool can judge it."""

    reads_features: ClassVar[bool] = True  # whether `refresh` reads the target's features

    @abstractmethod
    def refresh_with_guesses(self, tokens: Tensor, features: Tensor, counts: list[int]) -> Sequence[Sequence[Any]]:
        """As `refresh`; returns each row's guesses, one for each committed token, as `judge` reads them."""

    @abstractmethod
    def draft_some(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft`, for some rows, whose roots are [B']."""

    def judge(self, guesses: list[list[Any]], truth: Truth, top_k: Sequence[int], details: bool = False) -> Judgement:
        """Judge each row's guesses, which by default are proposals with probabilities, best first.

        top_k: how many proposals count; with several numbers it is judged by each of them.
        """
        each = {count: judge_sets(guesses, truth, [count], details) for count in dict.fromkeys(top_k)}
        return Judgement.join([each[count] for count in top_k])
