"""Which drafter a request uses: what is known of each, and whether another one is worth the reading that it costs.

The gain of a drafter is the logarithm of its accept length over that of the pool's first drafter, on the same tokens.
It is measured only after the drafter has read the text, which takes seconds; a drafter is therefore woken if what its
measurement is expected to bring outweighs these seconds (the knowledge gradient of Frazier, Powell and Dayanik, 2008).
Beliefs are normal distributions whose variance grows with every token, so that drift is noticed (a Kalman filter).
There is no guarantee against adversarial texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from drafterforge.runtime.averages import Mean

ADVISED_SPREAD, SPREAD = 0.15, 0.05  # standard deviation of an unknown gain, of the drafter that is advised and others
PRIOR_REQUESTS, REQUEST_HORIZON = 4.0, 200.0  # requests that the prior counts for, and that averages reach back
DRIFT_TOKENS = 512.0  # tokens after which a gain is as unknown as at first
FIRST_COMPARISON = 16  # tokens of an answer before drafters are compared; then at twice as many, and so on
WINDOW = 128  # most tokens that drafters are compared on
ASSUMED_DRAFTING = 0.25  # seconds of drafting, in those of a pass of one node, until cycles are known
LEAST_ROUNDS = 8  # positions that a comparison needs


@dataclass
class Belief:
    """A normal distribution of the gain of one drafter in one request."""

    mean: float
    variance: float

    def update(self, value: float, variance: float) -> None:
        """Learn from a measurement with an error of this variance."""
        weight = self.variance / (self.variance + variance)
        self.mean += weight * (value - self.mean)
        self.variance *= 1.0 - weight


@dataclass
class GainHistory:
    """Gains of one drafter in earlier requests."""

    gain: Mean
    square: Mean

    @classmethod
    def unknown(cls, spread: float) -> GainHistory:
        """Before the first request."""
        values = 0.0, spread**2
        return cls(*(Mean(value, PRIOR_REQUESTS, REQUEST_HORIZON) for value in values))

    def prior(self) -> Belief:
        """The belief that a new request begins with."""
        variance = max(self.square.value - self.gain.value**2, 1e-6)
        return Belief(self.gain.value, variance * (1.0 + 1.0 / self.gain.weight))

    def add(self, gain: float, error: float) -> None:
        """Add a measured gain.  error: variance of its error, subtracted so that only requests' differences count."""
        self.gain.add(gain)
        self.square.add(gain**2 - error)


class ArmKnowledge:
    """What all requests of an engine have shown of its drafters."""

    def __init__(self, pass_s: float) -> None:
        """pass_s: seconds of a target pass of one node."""
        self.gains: dict[tuple[str, str, bool], GainHistory] = {}  # of a drafter over another; whether it was advised
        self.draft_s: dict[str, Mean] = {}  # seconds in which each drafter drafts for a row, as many levels as usual
        self.assumed_read_s, self.assumed_draft_s = 0.01 * pass_s, ASSUMED_DRAFTING * pass_s
        self.read_s = Mean(self.assumed_read_s, 1.0, REQUEST_HORIZON)  # seconds in which a drafter reads a token
        self.noise = Mean(1.0, 1.0, REQUEST_HORIZON)  # variance of a comparison, times its tokens
        self.answer_tokens = Mean(64.0, 1.0, REQUEST_HORIZON)

    def history(self, name: str, reference: str, advised: bool) -> GainHistory:
        """Gains of a drafter over another one in requests in which it was, or was not, advised."""
        return self.gains.setdefault((name, reference, advised), GainHistory.unknown(spread_of(advised)))

    def expect(self, name: str, reference: str, gain: float, num_requests: int) -> None:
        """Begin with a gain that was measured elsewhere, on requests in which the drafter would be advised.

        What requests have shown here is kept.
        """
        key = name, reference, True
        if key not in self.gains:
            square = gain**2 + spread_of(True) ** 2
            weight = PRIOR_REQUESTS + num_requests
            self.gains[key] = GainHistory(*(Mean(value, weight, REQUEST_HORIZON) for value in (gain, square)))

    def extra_s(self, name: str, reference: str) -> float:
        """Seconds by which drafting with one drafter takes longer; 0 until both have drafted."""
        if name not in self.draft_s or reference not in self.draft_s:
            return 0.0
        return self.draft_s[name].value - self.draft_s[reference].value

    def add_reading(self, seconds: float) -> None:
        """Learn in how many seconds a drafter reads a token."""
        self.read_s.add_seconds(seconds, self.assumed_read_s)

    def add_drafting(self, name: str, seconds: float) -> None:
        """Learn how long a drafter drafts for a row; at first it is assumed to take as long as the others."""
        if name not in self.draft_s:
            assumed_s = np.median([mean.value for mean in self.draft_s.values()] or [self.assumed_draft_s])
            self.draft_s[name] = Mean(float(assumed_s), PRIOR_REQUESTS, REQUEST_HORIZON)
        self.draft_s[name].add_seconds(seconds, self.assumed_read_s)


@dataclass(frozen=True)
class Stakes:
    """What a choice is about in one request."""

    remaining_s: float  # seconds that the rest of the answer takes, other rows aside
    cycle_s: float  # seconds of a cycle
    neural_share: float  # of cycles in which the neural drafter drafts


class RowArms:
    """Beliefs about the drafters of one request."""

    def __init__(self, knowledge: ArmKnowledge, names: Sequence[str], advised: str = "") -> None:
        """names: the first one is the reference of gains, and drafts at first.  advised: by a router; empty: none."""
        self.knowledge, self.advised, self.incumbent = knowledge, advised, names[0]
        self.beliefs = {names[0]: Belief(0.0, 0.0)}
        for name in names[1:]:
            self.add(name)
        self.next_turn = 0  # tokens of the answer
        self.known_tokens = 0  # tokens of the answer that the variances take into account

    @property
    def names(self) -> list[str]:
        """All drafters, the reference first."""
        return list(self.beliefs)

    def add(self, name: str) -> None:
        """Add a drafter."""
        self.beliefs[name] = self._history(name).prior()

    def remove(self, name: str) -> None:
        """Remove a drafter that is neither the reference nor the incumbent."""
        del self.beliefs[name]

    def _history(self, name: str) -> GainHistory:
        return self.knowledge.history(name, self.names[0], name == self.advised)

    def is_due(self, num_tokens: int) -> bool:
        """Whether to ask now for a drafter to wake, after so many tokens of the answer; the next turn is later."""
        if num_tokens < self.next_turn:
            return False
        self.next_turn = max(2 * self.next_turn, FIRST_COMPARISON)
        return True

    def lead(self, name: str, cycle_s: float) -> float:
        """Expected relative gain in speed of a drafter over the incumbent.  cycle_s: seconds of a cycle."""
        gain = self.beliefs[name].mean - self.beliefs[self.incumbent].mean
        return gain - self.knowledge.extra_s(name, self.incumbent) / cycle_s

    def best(self, cycle_s: float) -> str:
        """The drafter that is expected to be the fastest.  cycle_s: seconds of a cycle."""
        return max(self.names, key=lambda name: self.lead(name, cycle_s))

    def challenger(self, num_tokens: int, unread: dict[str, int], stakes: Stakes) -> str:
        """The drafter that is worth waking now; empty: none.

        num_tokens: of the answer.  unread: tokens that each sleeping drafter would have to read.
        """
        self._drift(num_tokens)
        error = self.knowledge.noise.value / max(min(num_tokens, WINDOW), 1)
        best, best_s = "", 0.0
        for name, count in unread.items():
            variance = self.beliefs[name].variance + self.beliefs[self.incumbent].variance
            spread = variance / math.sqrt(variance + error) if num_tokens >= LEAST_ROUNDS else 0.0
            gain = expected_gain(self.lead(name, stakes.cycle_s), spread) * stakes.neural_share
            seconds = gain * stakes.remaining_s - count * self.knowledge.read_s.value
            if seconds > best_s:
                best, best_s = name, seconds
        return best

    def compare(self, name: str, lengths: np.ndarray, reference: np.ndarray) -> None:
        """Learn from accept lengths [n] of a drafter and of the incumbent, from the same n positions."""
        gain, error = measured_gain(lengths, reference)
        self.knowledge.noise.add(error * len(lengths))
        means = {drafter: self.beliefs[drafter].mean for drafter in (name, self.incumbent)}
        variances = {drafter: self.beliefs[drafter].variance for drafter in means}
        for drafter, rival, lead in ((name, self.incumbent, gain), (self.incumbent, name, -gain)):
            if drafter != self.names[0]:
                self.beliefs[drafter].update(means[rival] + lead, variances[rival] + error)
            if drafter == name or rival == self.names[0]:
                self._learn(drafter, means[rival] + lead, error)

    def _learn(self, name: str, gain: float, error: float) -> None:
        if name != self.names[0]:
            self._history(name).add(gain, error)

    def _drift(self, num_tokens: int) -> None:
        """Know less after further tokens."""
        share = (num_tokens - self.known_tokens) / DRIFT_TOKENS
        self.known_tokens = num_tokens
        for name in self.names[1:]:
            belief, most = self.beliefs[name], spread_of(name == self.advised) ** 2
            belief.variance = max(belief.variance, min(belief.variance + share * most, most))


def spread_of(advised: bool) -> float:
    """Standard deviation of the gain of a drafter of which nothing is known."""
    return ADVISED_SPREAD if advised else SPREAD


def expected_gain(lead: float, spread: float) -> float:
    """Expected gain of choosing after a measurement: E[max(0, lead + spread Z)] of a standard normal Z."""
    if spread <= 0.0:
        return max(lead, 0.0)
    z = lead / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return spread * (density + z * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))


def measured_gain(lengths: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Logarithm of the ratio of mean accept lengths [n], and the variance of its error.

    Accept lengths of neighbouring positions overlap: as many positions as a mean accept length count once.
    """
    mean = float(reference.mean())
    difference = lengths - reference
    error = (float(difference.var()) + 0.01) / mean**2 * mean / len(lengths)
    return math.log(float(lengths.mean()) / mean), error


def accept_lengths(hits: Sequence[bool], levels: int) -> np.ndarray:
    """Accept lengths of trees of `levels` levels at all positions whose levels are known, [n - levels + 1].

    hits: whether the proposals at each position hold the committed token, [n].
    """
    if len(hits) < levels:
        return np.ones(0)
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(hits, dtype=float), levels)
    return 1.0 + np.cumprod(windows, axis=1).sum(axis=1)


def common_lengths(first: Iterable[bool], second: Iterable[bool], levels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Accept lengths of two drafters at the newest positions that both know; None if there are too few."""
    hits = list(first), list(second)
    count = min(*map(len, hits), WINDOW)
    lengths = tuple(accept_lengths(part[-count:] if count else [], levels) for part in hits)
    return lengths if len(lengths[0]) >= LEAST_ROUNDS else None
