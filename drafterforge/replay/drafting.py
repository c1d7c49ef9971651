"""The text of an answer, from every root of which drafters draft.

Axes: T tokens of the text, B roots drafted together, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.judging import Truth
from drafterforge.replay.trace import levels_left
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask

ROOTS = 64  # roots drafted together


@dataclass(frozen=True)
class AnswerText:
    """A prompt with its answer; roots are the positions begin .. T - 2."""

    tokens: Tensor  # [T]
    features: Tensor  # [T, 3H]
    begin: int  # position of the answer's first token
    max_new_tokens: int  # limit of the answer

    @property
    def end(self) -> int:
        """T."""
        return len(self.tokens)

    def batches(self, shape: TreeShape) -> Iterator[tuple[list[int], TreeShape]]:
        """Batches of roots with their trees; as in live decoding, trees are no deeper than tokens are left."""
        if shape.depth == 0 or shape.num_tokens == 1:
            return
        left = levels_left(self.max_new_tokens, np.arange(self.end - 1 - self.begin))
        full = self.begin + int((left >= shape.depth).sum())  # roots before it have room for all levels
        for start in range(self.begin, full, ROOTS):
            yield list(range(start, min(start + ROOTS, full))), shape
        for root in range(full, self.end - 1):
            if left[root - self.begin] > 0:
                yield [root], TreeShape(shape.num_tokens, int(left[root - self.begin]), shape.top_k)

    def following(self, roots: Tensor, depth: int) -> Tensor:
        """The tokens after roots [B], [B, depth]; -1 after the end of the text."""
        padded = torch.cat((self.tokens, self.tokens.new_full((depth,), -1)))
        return padded[roots[:, None] + 1 + torch.arange(depth, device=roots.device)]

    def accept_lengths(self, roots: Sequence[int], trees: Tree, depth: int) -> np.ndarray:
        """Accept lengths of cycles with trees of `depth` levels below roots [B], [B]."""
        index = torch.tensor(roots, device=self.tokens.device)
        following = self.following(index, depth + 1).gather(1, trees.levels)
        return accepted_path(trees, following, ancestor_mask(trees.parents, depth), depth)[1].cpu().numpy()


def read_stepwise(
    group: DrafterGroup, text: AnswerText, shape: TreeShape, visit: Callable[[int, TreeShape], None]
) -> np.ndarray:
    """Let a drafter read token by token; visit(root, shape) is called where it drafts, after it has read the root.

    Returns whether each token is among the drafter's `shape.top_k` proposals, [T].
    """
    accepted = np.zeros(text.end)
    shapes = {root: cut for roots, cut in text.batches(shape) for root in roots}
    group.admit(text.tokens[: text.begin + 1], text.features[: text.begin])
    for root in range(text.begin, text.end - 1):
        if root in shapes:
            visit(root, shapes[root])
        following = text.tokens[None, root + 1 : root + 2]
        group.commit(following, text.features[None, root : root + 1], [1])
        accepted[root + 1] = group.read(Truth(following, None), [shape.top_k]).accepted[0, 0, 0].item()
    return accepted
