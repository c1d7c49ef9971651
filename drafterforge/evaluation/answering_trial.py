"""Answers a few prompts to learn how fast the target answers, and plays the schedule of many answers at that speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from drafterforge.kernels import gpu
from drafterforge.targets.answer import AnswerRow, BatchAnswerer

END = 0  # token of a played answer that ends it
ANSWERING_S = 30.0  # after which the answers of a trial are cut
PLAYED_SHARDS = 8  # at most; others take as long on average


@dataclass(frozen=True)
class AnsweringSpeed:
    """Seconds of a pass, fitted to those of a trial."""

    prefill_s: float  # of a prefill pass
    prefill_token_s: float  # and of each of its tokens, padding included
    step_s: float  # of a pass that decodes one token of each row
    row_s: float  # and of each row


class TrialAnswerer(BatchAnswerer):
    """Answers prompts and times each pass; after `budget_s` seconds it ends the answers under way."""

    def __init__(self, *args: Any, budget_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.budget_s, self.spent_s = budget_s, 0.0
        self.prefills: list[tuple[int, float]] = []  # padded tokens, seconds
        self.steps: list[tuple[int, float]] = []  # rows, seconds
        self.filled: list[tuple[int, int]] = []  # tokens of each prompt and of its answer
        self.lengths: list[tuple[int, bool]] = []  # tokens of each answer, and whether it ended by itself

    def _prefill(self, cache, rows, idle, admitted, prompts):
        began = time.perf_counter()
        new = super()._prefill(cache, rows, idle, admitted, prompts)
        self.prefills.append((len(admitted) * max(len(prompts[index]) for index in admitted), self._since(began)))
        return new

    def _step(self, cache, rows):
        began = time.perf_counter()
        super()._step(cache, rows)
        self.steps.append((len(rows), self._since(began)))
        if self.spent_s > self.budget_s:
            for row in rows:
                row.last = next(iter(self.target.eos_ids), row.last)

    def _keep_capture(self, prompt, row):
        super()._keep_capture(prompt, row)
        self.filled.append((len(prompt), len(row.answer)))
        self.lengths.append((len(row.answer), row.answer[-1] in self.target.eos_ids))

    def _since(self, began: float) -> float:
        gpu.synchronize(self.target.device)
        seconds = time.perf_counter() - began
        self.spent_s += seconds
        return seconds

    def speed(self) -> AnsweringSpeed:
        """The fit; the first pass of each kind is left out, as it includes what happens once."""
        return AnsweringSpeed(*_line(self.prefills), *_line(self.steps))


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a pass and of each of its units, neither below 0, by least squares."""
    units, seconds = np.array(points[1:] or points, dtype=float).T
    if np.ptp(units) < 0.2 * units.max():  # no slope can be fitted
        return 0.0, float(seconds.sum() / units.sum())
    slope, base = np.polyfit(units, seconds, 1)
    if slope < 0:
        return float(seconds.mean()), 0.0
    return (float(base), float(slope)) if base >= 0 else (0.0, float(seconds.sum() / units.sum()))


def expected_lengths(lengths: Sequence[tuple[int, bool]], limit: int) -> list[int]:
    """Lengths of the answers of a trial; those it cut get what answers without end tokens so far still last.

    An answer that is not over after n tokens is expected to end with the mean rate at which answers ended.
    """
    ended, tokens = sum(is_ended for _, is_ended in lengths), sum(count for count, _ in lengths)
    rest = tokens / ended if ended else float("inf")
    return [count if is_ended else int(min(limit, count + rest)) for count, is_ended in lengths]


def answering_seconds(
    prompt_lengths: Sequence[int],
    answer_lengths: Sequence[int],
    batch_size: int,
    shard_size: int,
    speed: AnsweringSpeed,
) -> float:
    """Seconds to answer all prompts of a split: the answerer's own schedule, played with passes that compute nothing.

    prompt_lengths: longest first, as shards are cut.  answer_lengths: drawn from, in turn.
    """
    longest_first = sorted(prompt_lengths, reverse=True)
    shards = [longest_first[first : first + shard_size] for first in range(0, len(longest_first), shard_size)]
    spread = np.linspace(0, len(shards) - 1, min(len(shards), PLAYED_SHARDS)).round().astype(int) if shards else []
    played = [shards[index] for index in spread]
    draws = np.random.default_rng(0)
    seconds = 0.0
    for shard in played:
        player = _Player(batch_size, speed, draws.choice(answer_lengths, len(shard)).tolist())
        player([[END] * length for length in shard], max(answer_lengths), 0)
        seconds += player.seconds
    return seconds * len(longest_first) / max(1, sum(map(len, played)))


class _Player(BatchAnswerer):
    """The schedule of an answerer, with the seconds that its passes would take."""

    def __init__(self, batch_size: int, speed: AnsweringSpeed, lengths: list[int]) -> None:
        cache = SimpleNamespace(keep_rows=lambda rows: None, expect_rows=lambda rows: None)
        super().__init__(SimpleNamespace(new_cache=lambda batch: cache, eos_ids=frozenset((END,))), batch_size)
        self.speed, self.answer_lengths, self.seconds = speed, lengths, 0.0

    def _prefill(self, cache, rows, idle, admitted, prompts):
        padded = len(admitted) * max(len(prompts[index]) for index in admitted)
        self.seconds += self.speed.prefill_s + padded * self.speed.prefill_token_s
        new = [self._extended(AnswerRow(index, len(prompts[index]), -1)) for index in admitted]
        for index, row in zip(idle, new, strict=False):
            rows[index] = row
        rows.extend(new[len(idle) :])
        return new

    def _step(self, cache, rows):
        self.seconds += self.speed.step_s + len(rows) * self.speed.row_s
        for row in rows:
            if not row.done:
                self._extended(row)

    def _extended(self, row):
        row.answer.append(END + 1)
        row.last = END if len(row.answer) >= self.answer_lengths[row.index] else END + 1
        return row
