"""Drafters of a pool that read committed tokens in one pass; most kinds form groups of one.

Axes: N drafters of a group, B rows, A committed tokens, W draft vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.proposer import JudgedPrompt, JudgedProposer, PromptReader, Request, SoloProposer
from drafterforge.errors import ConfigError
from drafterforge.tree.branch import expand_with_proposals
from drafterforge.tree.expand import Growth, Step, expand
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence
from drafterforge.tree.union import Drafts, expand_widths


class TextReading(ABC):
    """N drafters that have read a text of T tokens, and draft from many of its positions, the roots, at once."""

    tokens: Tensor  # [T]
    accepted: Tensor  # whether each token is among the proposals of each drafter, [N, T]; of the first two unknown: 0
    token_ids: Tensor  # target id of every draft id, [N, W]
    draft_ids: Tensor  # draft id of every target id, or -1, [N, V]

    @abstractmethod
    def guesses(self, member: int, roots: Tensor) -> Tensor:
        """Logits of one drafter for the tokens after roots [B], [B, W]."""

    @abstractmethod
    def step(self, member: int, roots: Tensor, num_nodes: int) -> Step:
        """Scores children of drafted nodes below roots [B], see `expand`.  num_nodes: most nodes that it may read."""

    def trees(
        self,
        member: int,
        roots: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        retrieval: RetrievalEvidence | None = None,
        proposals: bool = False,
    ) -> Tree:
        """Trees of one drafter below roots [B]; growth, retrieval, proposals: as for `DrafterGroup.draft`."""
        step, logits = self.step(member, roots, shape.top_k * shape.depth), self.guesses(member, roots)
        grow = expand_with_proposals if proposals else expand
        return grow(self.tokens[roots], logits, shape, step, self.token_ids[member], growth, retrieval)

    def drafts(
        self, member: int, roots: Tensor, top_ks: Sequence[int], truth: Tensor, score_top_k: int, branch: bool
    ) -> Drafts:
        """Proposals of trees of all widths and D levels below roots [B], see `expand_widths`.  truth: [B, D]."""
        depth = truth.shape[1]
        step, logits = self.step(member, roots, 2 * sum(top_ks) * depth), self.guesses(member, roots)
        return expand_widths(logits, top_ks, depth, truth, step, self.token_ids[member], score_top_k, branch)

    def log_q(self, member: int, roots: Tensor) -> Tensor:
        """Log-probability of the token after roots [B], [B]; -inf outside the drafter's vocabulary."""
        ids = self.draft_ids[member, self.tokens[roots + 1]]
        logp = self.guesses(member, roots).float().log_softmax(dim=-1).gather(1, ids.clamp(min=0)[:, None])
        return logp[:, 0].masked_fill(ids < 0, float("-inf"))


class DrafterGroup(ABC):
    """State of N drafters for every row.  Reading of committed tokens may be deferred until it is needed."""

    judges_prompts: ClassVar[bool] = False  # whether the reader of a prompt can judge the drafters

    @abstractmethod
    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`."""

    def prompt_reader(self, judged: JudgedPrompt | None = None) -> PromptReader:
        """Reads the prompt of a row that is to join.  judged: tokens to judge the drafters on, if `judges_prompts`."""
        return PromptReader()

    def join_row(self, reader: PromptReader, text: Tensor, features: Tensor) -> None:
        """As `admit`, once `reader` has read all of the text."""
        self.admit(text, features)

    @abstractmethod
    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""

    @abstractmethod
    def commit(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Queue committed tokens for reading: counts[b] of tokens [B, A], with features [B, A, 3H]."""

    @abstractmethod
    def read(self, truth: Truth | None = None, top_k: Sequence[int] = ()) -> Judgement | None:
        """Let all drafters read unread tokens; with `truth`, judge them on these tokens.

        top_k: number of proposals that count, of each drafter, [N].
        """

    def read_text(self, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> TextReading | None:
        """Let a group without rows read tokens [T] with features [T, 3H]; None: it reads token by token.

        top_k: number of proposals that count, of each drafter, [N].
        """
        return None

    def hits(self, row: int, text: Tensor, features: Tensor, top_k: int) -> list[bool]:
        """Whether the `top_k` best proposals held each of the newest A - 1 tokens of a row, which are read again.

        Of a group of one.  text, features [A, 3H]: as for `PromptReader.read`.  Empty if proposals are not known.
        """
        return []

    @abstractmethod
    def draft(
        self,
        member: int,
        rows: list[int],
        root: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        retrieval: RetrievalEvidence | None = None,
        proposals: bool = False,
    ) -> Tree:
        """Trees of one drafter below the roots [B'] of some rows.

        growth, retrieval: see `expand`; passed only to kinds that are scheduled or part of a hybrid.  proposals: with
        `Tree.proposals`, if the kind knows them.
        """

    def guesses(self, member: int, rows: list[int]) -> Tensor:
        """Logits of one drafter for the token after the roots of some rows, [B', W]; only of scheduled kinds."""
        raise ConfigError("this kind of drafter drafts without a scheduler; leave pool.scheduler= out")

    def remove(self, member: int) -> None:
        """Drop one of several drafters and its state."""
        raise ConfigError("a group of one drafter is removed as a whole")


class SoloGroup(DrafterGroup):
    """A group of one drafter."""

    def __init__(self, proposer: JudgedProposer) -> None:
        self.proposer = proposer
        self.unread: list[list[Tensor]] = []
        self.unread_features: list[list[Tensor]] = []  # of the unread tokens, if the proposer reads features

    def admit(self, text: Tensor, features: Tensor) -> None:
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, judged: JudgedPrompt | None = None) -> PromptReader:
        return self.proposer.prompt_reader()

    def join_row(self, reader: PromptReader, text: Tensor, features: Tensor) -> None:
        self.proposer.join_row(reader, text, features)
        self.unread.append([])
        self.unread_features.append([])

    def keep(self, rows: list[int]) -> None:
        self.proposer.keep(rows)
        self.unread = [self.unread[row] for row in rows]
        self.unread_features = [self.unread_features[row] for row in rows]

    def commit(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        for row, count in enumerate(counts):
            self.unread[row].append(tokens[row, :count])
            if self.proposer.reads_features:
                self.unread_features[row].append(features[row, :count])

    def read(self, truth: Truth | None = None, top_k: Sequence[int] = ()) -> Judgement | None:
        """See `DrafterGroup`; several values in `top_k` judge the one drafter by each of them."""
        if truth is None:
            self.catch_up()
            return None
        tokens, features, counts = self._take_unread()
        guesses = self.proposer.read_with_guesses(tokens, features, counts)
        rows = [list(row[:count]) for row, count in zip(guesses, counts, strict=True)]
        return self.proposer.judge(rows, truth, top_k)

    def catch_up(self) -> None:
        """Read unread tokens."""
        if any(self.unread):
            self.proposer.read(*self._take_unread())

    def _take_unread(self) -> tuple[Tensor, Tensor, list[int]]:
        """Empty the queue: its tokens [B, A] and features [B, A, 3H], padded, and the counts of each row.

        If the proposer reads no features, the tokens stand in for them.
        """
        counts = [sum(map(len, row)) for row in self.unread]
        padded = features = _padded(self.unread)
        if self.proposer.reads_features:
            features = _padded(self.unread_features)
        self.unread, self.unread_features = [[] for _ in counts], [[] for _ in counts]
        return padded, features, counts

    def draft(
        self,
        member: int,
        rows: list[int],
        root: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        retrieval: RetrievalEvidence | None = None,
        proposals: bool = False,
    ) -> Tree:
        self.catch_up()
        draft = self.proposer.draft_with_proposals if proposals else self.proposer.draft_rows
        return draft(rows, root, shape)


def _padded(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """The rows [B, A, ...] of these parts, padded; of a single part, as most often, a view."""
    joined = [row[0] if len(row) == 1 else torch.cat(list(row)) for row in rows]
    return joined[0][None] if len(joined) == 1 else pad_sequence(joined, batch_first=True)


class GroupProposer(SoloProposer):
    """The drafter of a group of one, which reads committed tokens at once."""

    def __init__(self, group: DrafterGroup) -> None:
        self.group = group

    def admit(self, text: Tensor, features: Tensor) -> None:
        self.group.admit(text, features)

    def prompt_reader(self, request: Request | None = None) -> PromptReader:
        return self.group.prompt_reader()

    def join_row(self, reader: PromptReader, text: Tensor, features: Tensor) -> None:
        self.group.join_row(reader, text, features)

    def keep(self, rows: list[int]) -> None:
        self.group.keep(rows)

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        self.group.commit(tokens, features, list(counts))
        self.group.read()

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        return self.group.draft(0, list(range(len(root))), root, shape)
