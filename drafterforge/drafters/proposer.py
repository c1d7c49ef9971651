"""The interface between the engine and a drafter while it decodes, for all kinds.

Axes: B rows (sequences decoded together), A committed tokens, H hidden of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.judging import Judgement, Truth, judge_sets
from drafterforge.tree.grow import Tree, TreeShape

MOST_JUDGED = 128  # maximum number of judged tokens: the prompt's last 127 and the answer's first


class JudgedPrompt(NamedTuple):
    """Which tokens of a prompt drafters are judged on while they read it."""

    first: int  # index of the first one, see `first_judged`; all later ones are judged too
    top_k: Sequence[int]  # number of proposals that count, of each drafter, [N]


def first_judged(num_tokens: int) -> int:
    """Index of the first judged token, at least 2: no logits precede token 1.  num_tokens: of the prompt."""
    return max(num_tokens + 1 - MOST_JUDGED, 2)


class PromptReader:
    """Reads a prompt in parts before its row joins; this default reads nothing, `Proposer.admit` reads it all."""

    def read(self, text: Tensor, features: Tensor) -> None:
        """Read the next part.

        text: the E prompt tokens that the target has read, and the next one, [E + 1].  features: of the last A of these
        E tokens, which are this part, [A, 3H].
        """

    def judge(self, text: Tensor, features: Tensor, top_k: int) -> list[bool]:
        """As `read`; whether the `top_k` best proposals held each token, [A].  This default knows no proposals."""
        self.read(text, features)
        return []

    def hit_rates(self) -> Tensor | None:
        """Share of the judged tokens that were among each drafter's proposals, [N]; None: no drafter was judged."""
        return None


class Request(NamedTuple):
    """What is known of a row before its prompt is read."""

    num_tokens: int  # of the prompt
    max_new_tokens: int
    temperature: float


class Proposer(ABC):
    """The steps of a cycle and the drafters' state for every row, a function of its committed text alone."""

    @abstractmethod
    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row whose text [P + 1] ends with its root; features: [P, 3H] of the tokens before the root."""

    def prompt_reader(self, request: Request | None = None) -> PromptReader:
        """A reader for the prompt of a new row."""
        return PromptReader()

    def join_row(self, reader: PromptReader, text: Tensor, features: Tensor) -> None:
        """As `admit`, after `reader` has read the complete text."""
        self.admit(text, features)

    @abstractmethod
    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""

    @property
    def keeps_features(self) -> bool:
        """Whether a drafter can join without the target's features of the texts of the rows."""
        return False

    def plan(self, record: CycleRecord) -> None:
        """Choose each row's drafter and tree; by default the requested tree, at most as deep as any row can use."""
        shape = record.shape
        record.plan_uniform(TreeShape(shape.num_tokens, min(shape.depth, max(record.limits)), shape.top_k))

    def selection_probs(self) -> dict[str, float]:
        """Probability of each drafter in the last cycle, mean over its rows; empty for a single drafter."""
        return {}

    @abstractmethod
    def draft(self, record: CycleRecord) -> Tree:
        """Draft the planned trees below the roots."""

    @abstractmethod
    def refresh(self, record: CycleRecord) -> None:
        """Update the state with the committed tokens."""

    def observe(self, record: CycleRecord) -> None:  # noqa: B027  most proposers do not learn
        """Learn from a finished cycle and the seconds of its steps."""


class SoloProposer(Proposer):
    """A proposer with one drafter."""

    def draft(self, record: CycleRecord) -> Tree:
        """See `Proposer`."""
        return self.draft_trees(record.root, record.bounds)

    def refresh(self, record: CycleRecord) -> None:
        """See `Proposer`."""
        self.read(*record.committed(), record.counts)

    @abstractmethod
    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B]."""

    @abstractmethod
    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        """Read counts[b] of tokens [B, A]; the last one is the new root of row b.

        features: the target's at the position before each token, [B, A, 3H].
        """


class JudgedProposer(SoloProposer):
    """A proposer that also reports what it would have proposed for committed tokens, so a pool can judge it."""

    reads_features: ClassVar[bool] = True  # whether `read` reads the target's features

    @abstractmethod
    def read_with_guesses(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> Sequence[Sequence[Any]]:
        """As `read`; returns each row's guesses for its committed tokens, in the form that `judge` takes."""

    @abstractmethod
    def draft_rows(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft_trees`, for some rows, whose roots are [B']."""

    def draft_with_proposals(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft_rows`, with `Tree.proposals`; by default without, or with those that `as_tree` adds."""
        return self.draft_rows(rows, root, shape)

    def judge(self, guesses: list[list[Any]], truth: Truth, top_k: Sequence[int]) -> Judgement:
        """Judge each row's guesses; by default a guess is a dict of proposals and probabilities, best first.

        top_k: number of proposals that count; the result has one entry for each value.
        """
        by_top_k = {count: judge_sets(guesses, truth, [count]) for count in dict.fromkeys(top_k)}
        return Judgement.join([by_top_k[count] for count in top_k])
