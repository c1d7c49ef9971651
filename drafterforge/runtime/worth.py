"""Decides by expected tokens per second: whether rows draft, with which drafters, and how large their trees become.

All decisions compare accepted tokens with seconds, at the rate of tokens per second that decoding reaches anyway.  What
a decision brings and costs is learned from the cycles themselves, so that it follows the text, the temperature and the
load of the machine.  Choices that look worse are tried again after pauses that double as long as they stay worse.
Axes: B rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.limits import DraftLimits
from drafterforge.runtime.arms import ASSUMED_DRAFTING, ArmKnowledge
from drafterforge.runtime.averages import MOST_TIMES, Mean
from drafterforge.runtime.retrieval_yield import RetrievalYield
from drafterforge.runtime.verify_costs import VerifyCosts

SHORTEST_PAUSE, LONGEST_PAUSE = 8, 256  # cycles without drafting before it is tried again
UNLIKELY_PAUSE = 32  # the first of these pauses where costs alone say that drafting does not pay
NEURAL_PAUSE = 32  # drafting cycles without the neural drafter before it is tried again, at most
NEURAL_TRIES = 32  # drafting cycles of a request in which it is tried after many whose prompts it did not read
STALE = 4.0  # cycles that what was learned before such a pause counts for: the machine may have been busy then
ROW_HORIZON, TRAFFIC_HORIZON, COST_HORIZON, RATE_HORIZON = 64.0, 400.0, 50.0, 100.0  # cycles that averages reach back
ASSUMED_TOKENS = (0.5, 0.75, 0.9)  # that chains of 1, 2 and 3 nodes add, until cycles are known
ASSUMED_NEURAL = 0.3  # tokens that the neural drafter adds beyond its seconds, until cycles are known
FEWEST_UNREAD, MOST_UNREAD = 8, 64  # requests in a row whose prompts no drafter reads before one is read as a try
PRIOR = 24.0  # cycles that the averages of earlier requests count for in a new one
LEAST_PROBABILITY = 0.02  # of a node that is looked at
LEAST_COST = 0.1  # of a pass of one node, see `Mean.add_seconds`
DOUBT = 2.5  # `Traffic.doubt` is this over the root of the number of cycles behind the gain
PAUSE_SHARE = 0.25  # of the cycles behind its gain; as many pass before the neural drafter is tried again
LEAST_IGNORANCE = 0.2  # below it a cycle says little about the neural drafter
MEANS = ("net", "neural_gain", "accepted", "expected", "neural_net")  # of `Traffic`


class Traffic:
    """What is known of all requests of one temperature, batch size and kind."""

    def __init__(self, net: float) -> None:
        """net: assumed at first."""
        self.net = Mean(net, 16.0, TRAFFIC_HORIZON)  # tokens that a drafting cycle adds beyond its seconds
        self.neural_gain = Mean(1.0, 16.0, TRAFFIC_HORIZON)  # tokens that the neural drafter adds, over ignorance
        self.accepted = Mean(1.0, 8.0, TRAFFIC_HORIZON)  # tokens of a drafted tree
        self.expected = Mean(1.0, 8.0, TRAFFIC_HORIZON)  # tokens that its probabilities promise
        self.neural_net = Mean(ASSUMED_NEURAL, 8.0, TRAFFIC_HORIZON)  # that it may add beyond its seconds; see `doubt`
        self.retrieval = RetrievalYield()
        self.pause = SHORTEST_PAUSE if net > 0.0 else UNLIKELY_PAUSE
        self.skipped = 0  # cycles since one drafted, counted on from request to request
        self.neural_skipped = 0  # drafting cycles since the neural drafter ran, counted likewise
        self.num_unread = 0  # requests in a row whose prompts no drafter has read
        self.unread_pause = FEWEST_UNREAD  # of these before one is read as a try

    @property
    def doubt(self) -> float:
        """Tokens added to the estimated gain while few cycles are known, where it decides about reading.

        Without it, a drafter that gains nothing in the first requests would hardly be tried again.
        """
        return DOUBT / math.sqrt(self.neural_gain.weight)

    @property
    def neural_pause(self) -> float:
        """Drafting cycles without the neural drafter before it is tried again: more, the better its gain is known."""
        return min(PAUSE_SHARE * self.neural_gain.weight, NEURAL_PAUSE)

    def tries_reading(self, pays: bool) -> bool:
        """Whether a drafter reads the next prompt as a try, where reading does not seem to pay."""
        if pays:
            self.num_unread, self.unread_pause = 0, FEWEST_UNREAD
            return False
        if self.num_unread < self.unread_pause:
            self.num_unread += 1
            return False
        self.num_unread, self.unread_pause = 0, min(2 * self.unread_pause, MOST_UNREAD)
        return True

    def as_prior(self, net: float) -> Traffic:
        """What another kind of requests begins with.  net: assumed for that kind."""
        traffic = Traffic(net)
        traffic.num_unread = FEWEST_UNREAD  # its first request shows what its drafter is worth
        for name in MEANS:
            mean = getattr(self, name)
            setattr(traffic, name, Mean(mean.value, min(mean.weight, PRIOR), mean.horizon))
        traffic.net.value, traffic.retrieval = net, self.retrieval.as_prior()
        return traffic


@dataclass
class RowWorth:
    """What is known of one request at one batch size."""

    traffic: Traffic
    net: Mean
    neural_gain: Mean
    accepted: Mean
    expected: Mean
    skipped: int = 0  # cycles since it drafted last
    pause: int = SHORTEST_PAUSE
    neural_skipped: int = 0  # drafting cycles since its neural drafter ran last
    neural_tries: int = 0  # drafting cycles in which the neural drafter runs even if it does not seem to pay
    drafts: bool = True  # in this cycle
    probes: bool = False  # drafts although it does not seem to pay
    uses_neural: bool = False  # in this cycle
    is_awake: bool = True  # whether a neural drafter has read the text
    promised: float = 0.0  # tokens that the probabilities of retrieval alone promise
    retrieved: float = 0.0  # tokens that retrieval alone would add
    retrieved_nodes: int = 0  # that retrieval alone would propose
    ignorance: float = 1.0

    @property
    def calibration(self) -> float:
        """Accepted tokens for each token that the probabilities of a tree promise."""
        return min(max(self.accepted.value / max(self.expected.value, 1e-6), 0.05), 2.0)


@dataclass
class CycleLimits(DraftLimits):
    """Limits of the trees of one cycle."""

    worth: Worth
    rows: Sequence[RowWorth]  # that draft together
    rate: float  # tokens per second that seconds are charged at
    min_probability: float
    prices: Sequence[float]
    drafter: str = ""
    clock: list[float] = field(default_factory=list)  # when the neural drafter began, and after each level
    reading: float = 0.0  # seconds that the neural drafter read
    catches_up: bool = False  # whether it read more than the tokens of one cycle
    ended: float = 0.0  # when the drafting ended
    seconds: float = 0.0  # that the decisions took
    levels: int = 1  # that the neural drafter has drafted

    def uses_neural(self, row: int, expected: float, ignorance: float, num_nodes: int) -> bool:
        """See `DraftLimits`."""
        began = time.perf_counter()
        state = self.rows[row]
        state.promised, state.ignorance = expected, ignorance
        state.retrieved, state.retrieved_nodes = state.traffic.retrieval.of(expected), num_nodes
        state.uses_neural = state.is_awake and (
            self.worth.neural_net(state, self.rate) > 0.0
            or state.neural_skipped >= state.traffic.neural_pause
            or state.neural_tries > 0
            or state.probes
        )
        self.catches_up |= state.uses_neural and state.skipped + state.neural_skipped > 0
        self.clock[:] = [time.perf_counter()]
        self.seconds += self.clock[0] - began
        return state.uses_neural

    def least_reach(self, rows: Sequence[int]) -> list[float]:
        """See `DraftLimits`."""
        began, worth = time.perf_counter(), self.worth
        share, price = max(worth.level_share.value, 1e-6), self.rate * worth.level_s.value / len(rows)
        # what the next level is expected to bring exceeds its seconds, and those of verifying a node of it
        least = [(price / self.rows[row].calibration + self.min_probability) / share for row in rows]
        self.seconds += time.perf_counter() - began
        return least

    def drafted(self, num_levels: int, reaches: Sequence[Sequence[float]], clock: Sequence[float]) -> None:
        """See `DraftLimits`."""
        began, self.levels = time.perf_counter(), num_levels
        self.clock += clock
        for before, after in pairwise(reaches):
            shares = [min(new / max(old, 1e-6), 1.0) for new, old in zip(after, before, strict=True)]
            self.worth.level_share.add(sum(shares) / len(shares))
        self.seconds += time.perf_counter() - began


class Worth:
    """The state of an engine; its requests share it."""

    def __init__(self, costs: VerifyCosts) -> None:
        self.costs, first = costs, costs.of(1, 1)
        self.arms = ArmKnowledge(first)
        self.traffic: dict[tuple[float, int, str], Traffic] = {}  # temperature, in quarters; rows; kind
        self.neural_s = Mean(0.3 * first, 1.0, COST_HORIZON)  # of a row: drafting, and verifying nodes that it adds
        self.reading_s = Mean(0.1 * first, 1.0, COST_HORIZON)  # of a row, the tokens of one cycle
        self.level_s = Mean(0.06 * first, 1.0, COST_HORIZON)  # of one more level, all rows
        self.level_share = Mean(0.6, 4.0, TRAFFIC_HORIZON)  # reach of a level over that of the one before
        self.num_rows = Mean(1.0, 1.0, ROW_HORIZON)  # decoded together
        self.num_levels = Mean(3.0, 4.0, TRAFFIC_HORIZON)  # that the neural drafter drafts
        self.path: Path | None = None  # where `save_state` writes; None: nowhere
        self.rates: dict[int, tuple[float, float]] = {}  # rows -> tokens and seconds of recent cycles

    def row(self, temperature: float, rows: int, kind: str = "") -> RowWorth:
        """The state of a request among `rows`; it begins with the averages of earlier requests.

        kind: has averages of its own, which start from those of requests without a kind; empty: no kind.
        """
        key = (round(temperature * 4) / 4, rows, kind)
        if key not in self.traffic:
            self.traffic[key] = self._first_traffic(key)
        traffic = self.traffic[key]
        means = traffic.net, traffic.neural_gain, traffic.accepted, traffic.expected
        priors = [Mean(mean.value, PRIOR, ROW_HORIZON) for mean in means]
        skipped = {"skipped": traffic.skipped, "neural_skipped": traffic.neural_skipped}
        return RowWorth(traffic, *priors, pause=traffic.pause, **skipped)

    def forget_kinds(self, kinds: Container[str]) -> None:
        """Forget what is known of kinds of requests but these."""
        self.traffic = {key: traffic for key, traffic in self.traffic.items() if not key[2] or key[2] in kinds}

    def _first_traffic(self, key: tuple[float, int, str]) -> Traffic:
        """Before the first request of a temperature, batch size and kind."""
        # more rows make drafting dearer, and a higher temperature makes it worse: no more than what that brought
        easier = [
            traffic.net.value
            for (temperature, rows, kind), traffic in self.traffic.items()
            if temperature <= key[0] and rows <= key[1] and kind == key[2]
        ]
        if not key[2]:
            return Traffic(min([self._assumed_net(key[1]), *easier]))
        rest = self.row(*key[:2]).traffic
        return rest.as_prior(min([rest.net.value, *easier]))

    def _assumed_net(self, rows: int) -> float:
        """Tokens that drafting adds beyond its seconds, before any cycle is known: of chains, by their length."""
        seconds = np.array(self.costs.of_trees(rows, len(ASSUMED_TOKENS) + 1))
        verifying, drafting = seconds[1:] - seconds[0], ASSUMED_DRAFTING * self.costs.of(1, 1)
        return float((np.array(ASSUMED_TOKENS) - self.rate(rows) / rows * (verifying + drafting)).max())

    def rate(self, rows: int) -> float:
        """Tokens per second of a batch of `rows`: what recent cycles reached, at least that of plain decoding."""
        plain = rows / self.costs.of(rows, rows)
        tokens, seconds = self.rates.get(rows, (0.0, 0.0))
        return max(plain, tokens / seconds) if seconds else plain

    def doubt_neural(self, traffic: Traffic) -> None:
        """Let the next cycles with the neural drafter outweigh what earlier ones have shown."""
        seconds = self.neural_s, self.reading_s, self.level_s, self.arms.read_s
        for mean in (*seconds, traffic.neural_net, traffic.neural_gain):
            mean.weight = min(mean.weight, STALE)

    def reading_pays(self, row: RowWorth, num_tokens: int, num_new: float, rows: int) -> bool:
        """Whether the neural drafter should read a text.

        num_tokens: of the text.  num_new: tokens that the answer is expected to get.  rows: of the batch.
        """
        # without the neural drafter, rows would draft from retrieval if that pays, else decode plainly
        gain = min(row.traffic.net.value, row.traffic.neural_net.value)
        cycles = num_new / (1.0 + row.accepted.value)
        return gain * cycles / self.rate(rows) > num_tokens * self.arms.read_s.value

    def plan(self, rows: Sequence[RowWorth]) -> None:
        """Decide which rows draft in the next cycle."""
        for row in rows:
            row.uses_neural, row.promised, row.retrieved, row.retrieved_nodes = False, 0.0, 0.0, 0
        # One probing row lengthens the pass of all rows, so all that do not draft probe together.
        due = any(row.net.value <= 0.0 and row.skipped >= row.pause for row in rows)
        for row in rows:
            row.probes = row.net.value <= 0.0 and due
            row.drafts = row.net.value > 0.0 or row.probes

    @property
    def neural_cycle_s(self) -> float:
        """Seconds that the neural drafter costs a row where it drafts in every cycle.

        Tokens that it did not read while it did not draft are left out: otherwise it would look dearer the less it
        drafts, and would never come back.
        """
        return self.neural_s.value + self.reading_s.value

    def neural_net(self, row: RowWorth, rate: float) -> float:
        """Estimated tokens that the neural drafter adds in this cycle, less those that its seconds cost.

        Known even if it has not read the text: retrieval's ignorance is enough.  rate: tokens per second.
        """
        return row.neural_gain.value * row.ignorance - rate * self.neural_cycle_s

    @property
    def levels(self) -> int:
        """Levels that the neural drafter drafts in most cycles."""
        return max(round(self.num_levels.value), 1)

    def limits(self, drafting: Sequence[RowWorth], num_rows: int, num_tokens: int, drafter: str = "") -> CycleLimits:
        """Limits of the trees of rows that one drafter drafts for.

        num_rows: all rows.  num_tokens: of the largest tree.
        """
        rate = self.rate(num_rows)
        calibration = min(row.calibration for row in drafting)
        seconds = self.costs.of_trees(num_rows, num_tokens)
        prices = [rate * (more - seconds[0]) / (num_rows * calibration) for more in seconds]
        least = min((price / nodes for nodes, price in enumerate(prices[1:], start=1)), default=1.0)
        return CycleLimits(self, drafting, rate, min(max(least, LEAST_PROBABILITY), 0.5), prices, drafter)

    def learn(self, rows: Sequence[RowWorth], record: CycleRecord, limits: Sequence[CycleLimits] = ()) -> None:
        """Learn from a finished cycle.  limits: of its drafted trees."""
        batch, count = record.tree.tokens.shape
        self.num_rows.add(batch)
        passing = record.seconds["verify"] + record.seconds["host"]
        pass_s = self.costs.of(batch * count, batch)
        self.costs.learn(batch * count, batch, passing)
        tokens, passing = sum(map(len, record.emitted)), min(passing, MOST_TIMES * pass_s)
        beside = sum(record.seconds[step] for step in ("draft", "select", "schedule"))
        most = MOST_TIMES * max(pass_s, batch * self.neural_cycle_s)
        seconds, catch_up_s = passing + min(beside, most), self._catch_up_s(record, limits)
        decay = 1.0 - 1.0 / RATE_HORIZON
        old_tokens, old_seconds = self.rates.get(batch, (0.0, 0.0))
        self.rates[batch] = (decay * old_tokens + tokens, decay * old_seconds + seconds)
        drafting = [index for index, row in enumerate(rows) if row.drafts]
        rate = self.rate(batch)
        plain_s = passing * self.costs.of(batch, batch) / self.costs.of(batch * count, batch)
        extra_s = max(passing + min(beside - catch_up_s, most) - plain_s, 0.0)
        for index, row in enumerate(rows):
            if row.drafts:
                added = record.counts[index] - 1.0
                self._learn_row(row, added, added - rate * extra_s / len(drafting))
                if row.neural_tries <= NEURAL_TRIES // 2:  # before, its seconds are learned anew
                    optimistic = self.neural_net(row, rate) + row.traffic.doubt * row.ignorance
                    row.traffic.neural_net.add(max(optimistic, 0.0))
                if row.promised > 0.0 and not row.uses_neural:
                    row.traffic.retrieval.learn(row.promised, added)
                if record.tree.expected is not None:
                    for state in (row, row.traffic):
                        state.accepted.add(added)
                        state.expected.add(record.tree.expected[index])
            else:
                row.skipped += 1
                row.traffic.skipped = row.skipped
        for part in limits:
            if neural := [row for row in part.rows if row.uses_neural]:
                self._learn_neural_costs(neural, record, part, max(row.retrieved_nodes for row in rows))

    def _catch_up_s(self, record: CycleRecord, limits: Sequence[CycleLimits]) -> float:
        """Seconds in which drafters wake, or read what was decoded while they paused: no cost of drafting always."""
        parts = [(part.reading, sum(row.uses_neural for row in part.rows)) for part in limits if part.catches_up]
        return record.seconds["refresh"] + sum(max(read - rows * self.reading_s.value, 0.0) for read, rows in parts)

    def _learn_row(self, row: RowWorth, added: float, net: float) -> None:
        """Learn from the tree of a row.  added: tokens accepted.  net: of them, those that exceed their seconds."""
        for mean in (row.net, row.traffic.net):
            mean.add(net)
        if row.net.value > 0.0:
            row.pause = SHORTEST_PAUSE
        elif row.probes or row.skipped:
            row.pause = min(2 * row.pause, LONGEST_PAUSE)
        row.traffic.pause = row.pause
        row.skipped = row.traffic.skipped = 0
        row.neural_skipped = row.traffic.neural_skipped = 0 if row.uses_neural else row.neural_skipped + 1
        row.neural_tries = max(row.neural_tries - 1, 0)
        if row.uses_neural and row.ignorance >= LEAST_IGNORANCE:
            gain = (added - row.retrieved) / row.ignorance
            for mean in (row.neural_gain, row.traffic.neural_gain):
                mean.add(gain)

    def _learn_neural_costs(
        self, neural: Sequence[RowWorth], record: CycleRecord, limits: CycleLimits, retrieved: int
    ) -> None:
        """Learn the seconds of the neural drafter and of a level.  retrieved: nodes of a row by retrieval."""
        batch, count = record.tree.tokens.shape
        least_s = LEAST_COST * self.costs.of(1, 1)
        alone = min(1 + retrieved, count)  # nodes of a row without the neural drafter
        verifying = (self.costs.of(batch * count, batch) - self.costs.of(batch * alone, batch)) / batch
        drafting = (limits.ended - limits.clock[0] - limits.reading) / len(neural)
        self.neural_s.add_seconds(drafting + verifying, least_s)
        if not limits.catches_up:
            self.reading_s.add_seconds(limits.reading / len(neural), least_s)
        self.num_levels.add(limits.levels)
        # drafters are compared by trees of as many levels
        missing_s = (self.num_levels.value - limits.levels) * self.level_s.value / len(neural)
        self.arms.add_drafting(limits.drafter, max(drafting + missing_s, LEAST_COST * drafting))
        if len(limits.clock) > 2:
            self.level_s.add_seconds((limits.clock[-1] - limits.clock[1]) / (len(limits.clock) - 2), least_s)
