"""Which drafters would have proposed the tokens that were committed: full information without the target's logits.

vLLM flattens the rows of all requests.  A row holds a token and the target's features of the position before it, so
the drafter's guess at a row is the next token.  The guess at a request's newest row is judged in the next cycle.
Axes: N drafters, B requests, R flattened rows, K drafted tokens, P = K + 1 most rows that a cycle commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """The newest P rows of each request, the newest last."""

    rows: Tensor  # index of the flattened row, [B, P]; the first row of the request where it has fewer
    valid: Tensor  # whether it is a row of its own, [B, P]


def newest_rows(starts: Tensor, ends: Tensor, width: int) -> Window:
    """The window of requests whose rows are starts [B] .. ends [B], both included."""
    rows = ends[:, None] - torch.arange(width - 1, -1, -1, device=ends.device)
    return Window(torch.maximum(rows, starts[:, None]), rows >= starts[:, None])


class Judged(NamedTuple):
    """Judged positions of each request, oldest first; the rest is padding."""

    hits: Tensor  # whether the drafter's guess was the token, [B, N, P]
    counts: Tensor  # [B]
    gaps: Tensor  # whether positions before the first one were never judged, [B]


@dataclass
class Guesses:
    """What every slot's drafters guess next.  S slots."""

    tokens: Tensor  # [S, N]
    positions: Tensor  # position of the guessed token, [S]; -1: there is no guess
    judged: Tensor  # the last position that was judged, [S]

    @staticmethod
    def empty(num_slots: int, num_drafters: int, device: torch.device) -> Guesses:
        none = torch.full((num_slots,), -1, dtype=torch.long, device=device)
        return Guesses(none[:, None].repeat(1, num_drafters), none.clone(), none.clone())

    def begin(self, slots: Tensor, num_prompt_tokens: Tensor) -> None:
        """Start requests [B]: the first token of an answer comes from the prompt's pass, so nobody guessed it."""
        self.positions.index_fill_(0, slots, -1)
        self.judged.index_copy_(0, slots, num_prompt_tokens)

    def judge(self, slots: Tensor, window: Window, guesses: Tensor, inputs: Tensor, positions: Tensor) -> Judged:
        """Judge the tokens of the window that were not judged before, and keep the newest guesses.

        guesses: next token at each row, [N, B, P].  inputs: the token of each row, [B, P].  positions: of these
        tokens in the text, [B, P].
        """
        first = torch.cat((window.valid[:, :1], window.valid[:, 1:] & ~window.valid[:, :-1]), dim=1)
        before = torch.where(first, self.tokens[slots].T[:, :, None], guesses.roll(1, dims=2))  # guesses of each token
        is_guessed = ~first | (self.positions[slots][:, None] == positions)
        judged = self.judged[slots][:, None]
        fresh = window.valid & is_guessed & (positions > judged)
        counts = fresh.sum(dim=1)
        hits = (before == inputs).transpose(0, 1) & fresh[:, None]
        width = inputs.shape[1]
        order = (width - counts[:, None] + torch.arange(width, device=counts.device)) % width
        hits = hits.gather(2, order[:, None].expand_as(hits))
        newest = positions[:, -1]
        gaps = (counts > 0) & (newest - counts > judged[:, 0])
        self.tokens.index_copy_(0, slots, guesses[:, :, -1].T)
        self.positions.index_copy_(0, slots, newest + 1)
        self.judged.index_copy_(0, slots, torch.maximum(newest, judged[:, 0]))
        return Judged(hits, counts, gaps)

    def forget(self, slots: Tensor) -> None:
        """Drop the guesses of requests [B] in whose cycle no drafter guessed."""
        self.positions.index_fill_(0, slots, -1)
