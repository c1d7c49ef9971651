"""Replays an engine on recorded greedy answers: it drafts and decides as live, but the target verifies nothing.

The target reads each recorded text once.  A cycle accepts what the text confirms, and its verification takes the known
seconds of its number of nodes; drafting and decisions take the seconds they take.
Axes: B rows, T tree nodes, S tokens of prompt and answer, H hidden of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.errors import DrafterforgeError
from drafterforge.runtime.acceptance import pack
from drafterforge.runtime.batch import Batch
from drafterforge.runtime.engine import Engine, proposer_of
from drafterforge.runtime.rows import Generation, Mark, Row
from drafterforge.runtime.sampling import GREEDY
from drafterforge.runtime.stopping import StopRule
from drafterforge.runtime.verify_costs import VerifyCosts
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.grow import ancestor_mask


@dataclass
class RecordedRow(Row):
    """A row whose answer is known."""

    following: Tensor | None = None  # the recorded token after each position, -1 after the last, [S]
    features: Tensor | None = None  # of the target at each position, [S, 3H]


class ReplayedBatch(Batch):
    """A batch of recorded answers; its cycles equal live ones if no decision depends on the clock."""

    def __init__(self, engine: Engine, costs: VerifyCosts) -> None:
        """costs: seconds of verification and commit, which cycles do not change."""
        super().__init__(engine.target, proposer_of(engine.drafter, engine.shape, engine.target.tokenizer))
        self.costs, self.cache = costs, NoKeys()

    def admit_recorded(self, prompt: list[int], tokens: Sequence[int], rule: StopRule) -> RecordedRow:
        """Read a text, and add its row unless the answer has a single token."""
        text = torch.tensor([*prompt, *tokens], device=self.target.device)
        begin, positions = len(prompt), torch.arange(len(text), device=text.device)
        features = self.target.forward(text[None], positions[None], None)[1][0]
        following = torch.cat((text[1:], text.new_full((1,), -1)))
        row = RecordedRow(
            Generation(list(prompt)), rule, GREEDY, self.now(), begin, following=following, features=features
        )
        reader = self._reader(row)
        row.take(list(tokens[:1]))
        for start in range(0, begin, self.prefill_chunk):  # as live, so that seconds of reading are learned alike
            end = min(start + self.prefill_chunk, begin)
            if end < begin or not row.answer.stop_reason:
                reader.read(text[: end + 1], features[start:end])
        if not row.answer.stop_reason:
            self.rows.append(row)
            self.proposer.join_row(reader, text[: begin + 1], features[:begin])
            self.root = torch.cat((self.root, text[begin : begin + 1]))
        return row

    def verify(self, record: CycleRecord) -> None:
        """Accept the drafted tokens that the recorded texts confirm."""
        tree, depth = record.tree, record.bounds.depth
        confirmed, features = [], []
        for row, levels in zip(self.rows, tree.levels, strict=True):
            positions = (row.length + levels).clamp(max=len(row.following) - 1)
            confirmed.append(row.following[positions])
            features.append(row.features[positions])
        tokens, record.features = torch.stack(confirmed), torch.stack(features)
        record.path, counts = accepted_path(tree, tokens, ancestor_mask(tree.parents, depth), depth)
        record.next_tokens = tokens.gather(1, record.path).clamp(min=0)  # after the end any token is cut off
        record.packed = pack(tree, record.path, counts, record.next_tokens)

    def charge(self, record: CycleRecord, marks: Sequence[Mark]) -> None:
        """See `Batch`; verification and commit take their known seconds."""
        super().charge(record, marks)
        batch, count = record.tree.tokens.shape
        record.seconds |= {"verify": self.costs.of(batch * count, batch), "host": 0.0}

    def keep(self, rows: list[int]) -> None:
        """See `Batch`."""
        super().keep(rows)
        self.cache = NoKeys()


class NoKeys:
    """The cache of a target that verifies nothing."""

    def move_rows(self, rows: list[int], sources: list[int], destinations: list[int]) -> None:
        """Nothing to move."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Nothing to keep."""


def replay_answer(
    engine: Engine, prompt: list[int], tokens: Sequence[int], costs: VerifyCosts, max_new_tokens: int
) -> Generation:
    """The replayed answer of a greedy prompt that was decoded alone.

    engine: learns from the replayed cycles as from live ones.  tokens: the recorded answer.  max_new_tokens: its limit.
    """
    _, rule = engine.read(prompt, max_new_tokens)
    with torch.inference_mode():
        batch = ReplayedBatch(engine, costs)
        row = batch.admit_recorded(prompt, tokens, rule)
        while batch.rows:
            batch.cycle(engine.shape)
    if row.answer.tokens != list(tokens):
        raise DrafterforgeError(
            f"a recorded answer has {len(tokens)} tokens, its replay {len(row.answer.tokens)}; the answer must be "
            f"complete, and max_new_tokens={max_new_tokens} its limit"
        )
    return row.answer
