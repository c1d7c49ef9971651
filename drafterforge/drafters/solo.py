"""A drafter that stacks with no other, as a part of a pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.causal_lm.propose import CausalLMProposer
from drafterforge.drafters.judging import Judgement, Truth, draft_id_table, judge, judge_sets
from drafterforge.drafters.retrieval.propose import RetrievalProposer
from drafterforge.tree.grow import Tree, TreeShape


class SoloProposer:
    """One drafter's state for every row.  Axes: B rows, A committed tokens."""

    def __init__(self, proposer: CausalLMProposer | RetrievalProposer) -> None:
        self.proposer = proposer
        self.unread: list[list[Tensor]] = []
        self.tell = False  # whether the guesses of unread tokens will be asked for
        self.guesses: list[list] = []  # of each row, for the tokens read since the last judgement
        if isinstance(proposer, CausalLMProposer):
            size = proposer.model.config.vocab_size
            self.token_ids = torch.arange(size, device=proposer.model.device)[None]
            self.draft_ids = draft_id_table(self.token_ids, size)

    def admit(self, text: Tensor, features: Tensor) -> None:
        """Add a row, see `Proposer`."""
        self.proposer.admit(text, features)
        self.unread.append([])
        self.guesses.append([])

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        self.proposer.keep(rows)
        self.unread, self.guesses = [self.unread[row] for row in rows], [self.guesses[row] for row in rows]

    def commit(self, tokens: Tensor, features: Tensor, counts: list[int], tell: bool) -> None:
        """Remember what is to be read, counts[b] of tokens [B, A], and whether it may be judged."""
        self.tell = tell
        for row, count in enumerate(counts):
            self.unread[row].append(tokens[row, :count])

    def read(self, truth: Truth | None = None, top_k: Sequence[int] = (), details: bool = False) -> Judgement | None:
        """Read what is unread; judge the drafter since it was last asked to, if the truth is given.

        top_k: how many of its proposals count, one number; retrieval takes several, and is judged by each of them.
        """
        self._flush()
        guesses, self.guesses = self.guesses, [[] for _ in self.guesses]
        if truth is None:
            return None
        if isinstance(self.proposer, RetrievalProposer):
            each = {count: judge_sets(guesses, truth, [count], details) for count in dict.fromkeys(top_k)}
            return Judgement.join([each[count] for count in top_k])
        logits = pad_sequence([torch.stack(row) for row in guesses], batch_first=True)[None]
        return judge(logits, self.token_ids, self.draft_ids, truth, top_k, details)

    def _flush(self) -> None:
        """Read what is unread, and keep the guesses if they may be judged."""
        if not any(self.unread):
            return
        tokens = [torch.cat(row) for row in self.unread]
        counts = [len(part) for part in tokens]
        padded = pad_sequence(tokens, batch_first=True)
        self.unread = [[] for _ in tokens]
        if not self.tell:
            self.proposer.refresh(padded, padded, counts)
            return
        for row, found, count in zip(self.guesses, self.proposer.refresh_and_tell(padded, counts), counts, strict=True):
            row.extend(found[:count])

    def draft(self, member: int, rows: list[int], root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B'] of some rows."""
        self._flush()
        return self.proposer.draft_some(rows, root, shape)
