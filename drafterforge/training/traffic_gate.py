"""Whether a drafter that was learned from traffic joins: a paired comparison on requests that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from drafterforge.assembly.defaults import default_drafters
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.names import domain_of
from drafterforge.data.answers import Answer
from drafterforge.replay.answer_recorder import STATIC, AnswerRecorder
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.shapes import default_shape

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Gain:
    """Tokens per cycle of a drafter relative to the best other one: mean over requests, and its interval."""

    rival: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What a comparison of drafters means for a kind of traffic."""

    gain: Gain  # of the new drafter
    incumbent_leaves: bool = False  # the drafter learned before is worse than another one for certain


def paired_gain(candidate: np.ndarray, rivals: dict[str, np.ndarray]) -> Gain:
    """The gain of a candidate.  candidate, rivals: tokens per cycle of each request, [Q]."""
    rival = max(rivals, key=lambda name: float(np.log(rivals[name]).mean()))
    ratios = np.log(candidate) - np.log(rivals[rival])
    error = float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(ratios) - 1)) * error
    mean = float(ratios.mean())
    return Gain(rival, *(math.expm1(value) for value in (mean, mean - reach, mean + reach)))


def judge_drafter(runs: RunsFolder, name: str, rows: Sequence[Answer], incumbent: str = "") -> Verdict:
    """Compare a drafter with those of `drafter=auto` on answers, by replaying their cycles.

    incumbent: the drafter that was learned from such requests before; empty: none.
    """
    rivals = [rival for rival in map(domain_of, default_drafters(runs)) if rival != name]
    rivals += [incumbent] if incumbent and incumbent not in rivals else []
    pool = Pool(open_pool(runs.folder, runs.target, [*rivals, name]), "static")
    shape = default_shape(runs.target.device, runs.target.dtype)
    recorder, lengths = AnswerRecorder(runs.target, pool, shape), []
    for row in rows:
        ids, begin = row.input_ids, row.prompt_tokens
        recorded = recorder.record(Generation(ids[:begin], ids[begin:], stop_reason="length"))[STATIC]
        lengths.append([recorded.num_tokens / recorded.cycles(number) for number in range(len(pool.names))])
    by_drafter = dict(zip(pool.names, np.array(lengths).T, strict=True))
    gain = paired_gain(by_drafter.pop(name), by_drafter)
    if len(by_drafter) < 2 or not incumbent:
        return Verdict(gain)
    return Verdict(gain, paired_gain(by_drafter.pop(incumbent), by_drafter).high < 0.0)
