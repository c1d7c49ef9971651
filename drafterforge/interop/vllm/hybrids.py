"""Drafters that look up text where that is worth more than their own draft, and are judged as such.

The worth of a chain is the number of its tokens that are expected to be accepted.  A neural drafter states the
probability of its first token, a drafter that looks up the sum of its tokens' probabilities; each is multiplied by what
earlier chains of that drafter were worth for one of these.
Axes: N drafters that vLLM runs, L that look up, A = N + L, B requests, S slots, P most rows that a cycle commits.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRIOR = 1.6, 1.0  # accepted tokens for one stated, of drafters that vLLM runs and of those that look up
PRIOR_CYCLES = 4.0  # stated tokens that the prior counts for
KEEP = 0.995  # factor of what was learned, in each cycle


class Hybrids:
    """What chains are worth, and whose chain each drafter takes."""

    def __init__(self, num_drafters: int, num_arms: int, num_slots: int, device: torch.device) -> None:
        """num_drafters: N.  num_arms: A."""
        self.num_drafters = num_drafters
        self.indices = torch.arange(num_arms, device=device)
        # Tokens that chains stated and that were accepted, [2, A].
        self.totals = torch.full((2, num_arms), PRIOR_CYCLES, device=device)
        self.totals[1] *= torch.where(self.indices < num_drafters, *PRIOR)
        self.arms = torch.zeros(num_slots, dtype=torch.long, device=device)  # whose chain each slot verifies, [S]
        self.pending = torch.zeros(num_slots, device=device)  # what it stated; 0: nothing is learned, [S]
        self.sources = self.worths = self.totals  # of the last `combine`, [A, B] each

    def combine(self, guesses: Tensor, worths: Tensor, allowed: Tensor) -> Tensor:
        """Let drafters take the guesses of those that look up, where these are worth more; returns guesses [A, B, P].

        guesses: next token at each row, [A, B, P].  worths: what its chain states, [A, B, P].  allowed: drafters that
        each request may use, [B, A].
        """
        count, worth = self.num_drafters, worths * self._factors()[:, None, None]
        best, which = torch.where(allowed.T[count:, :, None], worth[count:], 0.0).max(dim=0)  # [B, P] each
        takes = best > worth[:count]
        combined = torch.where(takes, guesses[count:].gather(0, which[None]), guesses[:count])
        chains = torch.where(takes[:, :, -1], count + which[:, -1], self.indices[:count, None])
        self.sources = torch.cat((chains, self.indices[count:, None].expand(-1, chains.shape[1])))
        self.worths = worths[:, :, -1]
        return torch.cat((combined, guesses[count:]))

    def learn(self, slots: Tensor, accepted: Tensor) -> None:
        """Learn what the chains that were verified were worth.  accepted: tokens, [B]; -1: nothing was drafted."""
        stated = self.pending[slots]
        outcomes = torch.stack((stated, accepted.to(stated.dtype))) * ((accepted >= 0) & (stated > 0))
        self.totals.mul_(KEEP).index_add_(1, self.arms[slots], outcomes)

    def choose(self, slots: Tensor, choice: Tensor, complete: bool) -> Tensor:
        """Whose chain is verified, [B].

        choice: drafter of each request, [B].  complete: drafters that vLLM runs draft K tokens.
        """
        arms = self.sources.gather(0, choice[None])[0]
        stated = self.worths.gather(0, arms[None])[0]
        self.arms.index_copy_(0, slots, arms)
        counts = stated if complete else torch.where(arms < self.num_drafters, 0.0, stated)
        self.pending.index_copy_(0, slots, counts)
        return arms

    def choose_lookup(self, slots: Tensor, worths: Tensor, allowed: Tensor) -> Tensor:
        """The drafter whose looked-up chain is verified, [B]; 0: none looked up any.

        worths: what the chains of drafters that look up state, [L, B].  allowed: see `combine`.
        """
        count = self.num_drafters
        stated = torch.where(allowed.T[count:], worths, 0.0)
        which = (stated * self._factors()[count:, None]).argmax(dim=0)
        stated = stated.gather(0, which[None])[0]
        self.arms.index_copy_(0, slots, torch.where(stated > 0, count + which, self.arms[slots]))
        self.pending.index_copy_(0, slots, stated)
        return torch.where(stated > 0, count + which, 0)

    def _factors(self) -> Tensor:
        """Accepted tokens for one stated token, [A]."""
        return self.totals[1] / self.totals[0]
