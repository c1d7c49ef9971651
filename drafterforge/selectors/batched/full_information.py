"""HedgeSpec for many requests: learners that follow the losses of all drafters.

Axes: B rows, N drafters, K levels, P = K + 1 positions of a cycle, D measurements of a round (K, or 1 for the objective
`token`), Q = D - 1 positions in the queue, R rounds, F sums per drafter, M distributions that a
learner plays.

A round starts at each position and needs the D measurements from there on, see `selectors.delay`.  The queue of a slot
holds its last Q positions, aligned to the right.  A window of D positions starts at each position of the queue and of a
cycle.  It is a complete round if it was open and nothing that is still unknown can change it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from drafterforge.selectors.batched.base import REAL, BatchedSelector, unavailable
from drafterforge.selectors.batched.learners import batched_learner
from drafterforge.selectors.full_information import FullInformation


def round_weights(is_round: Tensor, discounts: Tensor) -> Tensor:
    """Weights of windows, and of all rounds before them, [B, F, R + 1].  is_round: [B, R] bool.  discounts: [F]."""
    later = is_round.sum(dim=1, keepdim=True) - is_round.cumsum(dim=1)  # rounds after each window
    weights = discounts[:, None] ** later[:, None] * is_round[:, None]
    return torch.cat((weights, discounts[:, None] ** is_round.sum(dim=1)[:, None, None]), dim=2)


class BatchedFullInformation(BatchedSelector):
    """Learners on complete rounds; regrets refer to the distribution that each cycle's choice came from."""

    def __init__(self, rule: FullInformation, num_slots: int, device: torch.device | str = "cpu") -> None:
        """rule: the selector of one request, whose options count here; `estimator` does not matter at temperature 0."""
        if rule.calibration is not None:
            raise unavailable(rule, "calibration", "true", "leave it out")
        if rule.skip is not None:
            raise unavailable(rule, "skip", rule.skip, "leave it out")
        if rule.queue.granularity != "token":
            raise unavailable(rule, "granularity", rule.queue.granularity, "type granularity=token")
        self.learner = batched_learner(rule.learner, torch.device(device))
        self.discounts = torch.tensor(self.learner.discounts, dtype=REAL, device=device)
        super().__init__(rule, num_slots, device, num_totals=len(self.discounts), decay=self.discounts[:, None])
        self.draw, self.prior, self.by_token = rule.draw, rule.prior, rule.objective == "token"
        self.queue_size = size = rule.queue.depth - 1
        self.hybrid = rule.hybrid and size > 0
        # What was played in the last choice, [S, M N].
        self.played_rows = self.played.repeat(1, self.learner.num_played)
        # Hits at each position, what its cycle played, and whether it begins one, [S, C, Q]; 0 where there is none.
        self.channels = [self.num_drafters, self.played_rows.shape[1], 1]
        self.queue = self._zeros(num_slots, sum(self.channels), size)
        self.filled = torch.zeros(num_slots, dtype=torch.int64, device=self.device)  # open rounds, the last positions
        self.offsets = torch.arange(size + self.depth + 1, device=self.device)
        levels = torch.tensor(rule.levels.tolist(), device=self.device)[:, None]
        level = torch.arange(self.depth + 1, device=self.device)
        self.drafts = (level[1:] <= levels).to(REAL)  # whether each drafter drafts a level, [N, K]
        self.emits = (level <= levels).to(REAL)  # whether it can emit so many further tokens, [N, K + 1]
        self.powers = level.to(REAL)
        self.shallow = bool((rule.levels < self.depth).any())

    def begin(self, slots: Tensor, advice: Tensor | None = None) -> None:
        """Start requests; advice counts for `prior` rounds."""
        super().begin(slots, advice)
        self.drop(slots)
        if advice is None or not self.prior:
            return
        is_round = torch.ones(len(slots), 1, dtype=torch.bool, device=self.device)
        gains = advice.to(REAL)[..., None]
        begins = torch.ones_like(gains[:, :1])
        for _ in range(self.prior):
            totals, rounds = self.totals.index_select(0, slots), self.rounds.index_select(0, slots)
            played = self.learner.played(totals, self.learner.probs(totals, rounds))
            self._learn(slots, is_round, played[..., None], gains, begins)

    def choose(self, slots: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The likeliest allowed drafters, or drawn by their probabilities."""
        totals, rounds = self.totals.index_select(0, slots), self.rounds.index_select(0, slots)
        if self.hybrid:
            filled = self.filled.index_select(0, slots)
            hits, played, begins = self.queue.index_select(0, slots).split(self.channels, dim=1)
            is_round = self.offsets[: self.queue_size] >= self.queue_size - filled[:, None]
            totals = self._after(totals, is_round, played, self._open_gains(hits, filled), begins)
            rounds += filled
        arms = self.from_probs(slots, self.learner.probs(totals, rounds), allowed, self.draw)
        self.played_rows.index_copy_(0, slots, self.learner.played(totals, self.probs(slots)))
        return arms

    def observe(self, slots: Tensor, hits: Tensor, counts: Tensor, depths: Tensor) -> None:
        """Queue the positions of the cycles; learn from the rounds that they complete."""
        filled, played = self.filled.index_select(0, slots), self.played_rows.index_select(0, slots)
        begins = (torch.arange(hits.shape[2], device=self.device) == 0).to(REAL).expand(len(slots), 1, -1)
        latest = torch.cat((hits.to(REAL), played[..., None].expand(-1, -1, hits.shape[2]), begins), dim=1)
        queue = torch.cat((self.queue.index_select(0, slots), latest), dim=2)  # [B, C, Q + P]
        hits, played, begins = queue.split(self.channels, dim=1)
        end, start = self.queue_size + counts[:, None], self.queue_size - filled[:, None]
        is_known = self.offsets < end
        is_judged = self._are_judged(torch.where(is_known[:, None], hits, 1.0), end - self.offsets)
        is_open = (self.offsets >= start) & is_known
        is_round = is_open & (is_judged | (self.offsets < start)).cumprod(dim=1).bool()
        gains = self._gains(self._windows(torch.where(is_known[:, None], hits, 0.0), 0.0))
        self._learn(slots, is_round, played, gains, begins)
        if self.queue_size:
            filled = filled + counts - is_round.sum(dim=1)
            positions = self.offsets[: self.queue_size]
            columns = (counts[:, None] + positions)[:, None].expand(-1, sum(self.channels), -1)
            open_positions = (positions >= self.queue_size - filled[:, None])[:, None]
            self.queue.index_copy_(0, slots, queue.gather(2, columns) * open_positions)
            self.filled.index_copy_(0, slots, filled)

    def _windows(self, hits: Tensor, unknown: float) -> Tensor:
        """The window that starts at each position, [B, N, R, D].  unknown: value after the last position."""
        return pad(hits, (0, self.queue_size), value=unknown).unfold(2, self.queue_size + 1, 1)

    def _are_judged(self, hits: Tensor, num_known: Tensor) -> Tensor:
        """Whether nothing unknown can change the window at each position, [B, R]; see `DelayQueue`.

        hits: [B, N, R], 1 where unknown.  num_known: positions from there on, [B, R].
        """
        missed = self._windows(hits, 1.0).prod(dim=-1) == 0
        levels = self.drafts[:, : self.queue_size + 1].sum(dim=1)
        return (missed | (levels[:, None] <= num_known[:, None])).all(dim=1)

    def drop(self, slots: Tensor) -> None:
        """Forget incomplete rounds."""
        self.queue.index_fill_(0, slots, 0.0)
        self.filled.index_fill_(0, slots, 0)

    def _learn(self, slots: Tensor, is_round: Tensor, played: Tensor, gains: Tensor, begins: Tensor) -> None:
        """Learn from rounds; see `_after`."""
        totals = self._after(self.totals.index_select(0, slots), is_round, played, gains, begins)
        self.totals.index_copy_(0, slots, totals)
        self.rounds.index_add_(0, slots, is_round.sum(dim=1).to(REAL))

    def _after(self, totals: Tensor, is_round: Tensor, played: Tensor, gains: Tensor, begins: Tensor) -> Tensor:
        """Sums [B, F, N] after further rounds.  is_round: which windows are, [B, R] bool.

        played: in each round, see `BatchedLearner.played`, [B, M N, R].  gains: negative losses and a constant,
        [B, N, R].  begins: 1 where a cycle begins at the round, else 0, [B, 1, R].
        """
        gaps = gains.amax(dim=1, keepdim=True) - gains
        losses = (played.unflatten(1, (-1, self.num_drafters)) * gaps[:, None]).sum(dim=2)  # [B, M, R]
        terms = torch.cat((self.learner.summands(losses, gaps, begins), totals[..., None]), dim=-1)
        return torch.matmul(terms, round_weights(is_round, self.discounts)[..., None])[..., 0]

    def _gains(self, hits: Tensor) -> Tensor:
        """Gains [B, N, R] of rounds with `hits` [B, N, R, D]."""
        if self.by_token:
            if self._costs is None:
                return hits[..., 0]
            return self._lengths(hits[..., 0], self.emits) * self.speeds[:, None]
        if self.shallow:
            hits = hits * self.drafts[:, None]
        lengths = hits.cumprod(dim=-1).sum(dim=-1)
        return (lengths if self._costs is None else lengths + 1.0) * self.speeds[:, None]

    def _open_gains(self, hits: Tensor, filled: Tensor) -> Tensor:
        """Gains [B, N, Q] of incomplete rounds by their first position, see `FullInformation`.  hits: [B, N, Q]."""
        if self._costs is None:
            return hits
        rates = hits.sum(dim=-1) / filled.clamp(min=1)[:, None]
        further = self._lengths(rates, self.drafts)  # tokens after the first, if that is accepted, [B, N]
        return (1.0 + hits * further[..., None]) * self.speeds[:, None]

    def _lengths(self, rates: Tensor, terms: Tensor) -> Tensor:
        """Tokens of cycles whose levels are accepted at `rates` [B, N, ...]: the powers that `terms` [N, L] counts."""
        powers = rates[..., None] ** self.powers[: terms.shape[1]]
        return (powers * (terms if rates.ndim == 2 else terms[:, None])).sum(dim=-1)
