"""Drafts from every root of an answer with drafters that read its text once.

Axes: N drafters, T tokens of the text, B roots drafted together, H hidden, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.eagle3.propose import draft_levels, level_step
from drafterforge.drafters.eagle3.stack import StackedGroup
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.judging import Truth
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.replay.trace import TraceSpec, levels_left
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask
from drafterforge.tree.merge import RetrievalEvidence
from drafterforge.tree.union import Drafts, expand_widths

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


class ParallelReading:
    """Drafters that read a text in one pass and draft from many of its positions at once.

    A drafter's slot t - 1 pairs token t with the feature before it and predicts token t + 1.
    """

    def __init__(self, group: StackedGroup, text: AnswerText, top_ks: Sequence[int]) -> None:
        """top_ks: proposals of each drafter that count as accepted, [N]."""
        group.admit(text.tokens[:2], text.features[:1])
        first = group.last, group.logits
        following = text.tokens[None, 2:]
        group.commit(following, text.features[None, 1 : text.end - 1], [text.end - 2])
        self.group, self.text, self.accepted = group, text, np.zeros((len(top_ks), text.end))  # [N, T]
        self.accepted[:, 2:] = group.read(Truth(following, None), top_ks).accepted[:, 0].cpu().numpy()
        self.outputs, self.logits = (  # of every slot, [N, T - 1, H] and [N, T - 1, W]
            torch.cat(parts, dim=1) for parts in zip(first, group.outputs, strict=True)
        )

    def trees(
        self,
        member: int,
        roots: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        retrieval: RetrievalEvidence | None = None,
        proposals: bool = False,
    ) -> Tree:
        """Trees of one drafter below roots [B]; growth, retrieval, proposals: as for `draft_levels`."""
        cache, newest = self._at(member, roots, shape.top_k * shape.depth)
        drafter, outputs, logits = self.group.drafters.members[member], self.outputs[member], self.logits[member]
        state = outputs[newest], self.text.tokens[roots], roots, self.text.end - 1, shape, logits[newest]
        return draft_levels(drafter, cache, *state, growth, retrieval, proposals)

    def drafts(self, member: int, roots: Tensor, spec: TraceSpec, branch: bool) -> Drafts:
        """Proposals of trees of all widths and depths of `spec` below roots [B], see `expand_widths`."""
        cache, newest = self._at(member, roots, 2 * sum(spec.top_ks) * spec.depth)
        drafter, truth = self.group.drafters.members[member], self.text.following(roots, spec.depth)
        step = level_step(drafter, cache, self.outputs[member, newest], roots, self.text.end - 1)
        logits, ids = self.logits[member, newest], drafter.token_ids
        return expand_widths(logits, spec.top_ks, spec.depth, truth, step, ids, spec.score_top_k, branch)

    def token_ids(self, member: int) -> Tensor:
        """Target ids of a drafter's vocabulary, [W]."""
        return self.group.drafters.members[member].token_ids

    def log_q(self, member: int, roots: Tensor) -> Tensor:
        """Log-probability of the token after roots [B], [B]; -inf outside the drafter's vocabulary."""
        ids = self.group.draft_ids[member, self.text.tokens[roots + 1]]
        logp = self.logits[member, roots - 1].float().log_softmax(dim=-1).gather(1, ids.clamp(min=0)[:, None])
        return logp[:, 0].masked_fill(ids < 0, float("-inf"))

    def _at(self, member: int, roots: Tensor, num_slots: int) -> tuple[KeyValueCache, Tensor]:
        """A cache with the text and `num_slots` free slots for every root [B], and the slots of the roots, [B]."""
        read = self.text.end - 1
        keys = self.group.cache.data[:, :, member : member + 1, :, :read]
        cache = KeyValueCache(1, len(roots), keys.shape[3], keys.shape[5], keys.dtype, keys.device)
        cache.reserve(read + num_slots)
        cache.data[:, :, :, :, :read] = keys
        return cache, roots - 1


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
