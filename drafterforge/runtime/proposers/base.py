"""What the engine asks of a drafter, whatever its kind.

Axes: B rows (sequences decoded together), A committed tokens, H hidden of the target.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from drafterforge.tree.grow import Tree, TreeShape


class Proposer(Protocol):
    """A drafter's state for every row; a function of the rows' committed text alone."""

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row whose text [P + 1] ends with its root; features: [P, 3H] of the tokens before the root."""

    def refresh(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Commit counts[b] of tokens [B, A], whose last is the new root of row b.

        features: [B, A, 3H], the target's one position before each token.
        """

    def draft(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B]."""

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
