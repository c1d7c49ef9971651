"""Whether a drafter that was learned from traffic joins: a paired comparison on requests that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
    base_gain: float = 0.0  # of the new drafter over the best one that was not learned from traffic
    first: str = ""  # the first drafter of `drafter=auto`
    first_gain: float = 0.0  # of the new drafter over that one
    incumbent_leaves: bool = False  # the drafter learned before is worse than another one for certain


def paired_gain(candidate: np.ndarray, rivals: dict[str, np.ndarray], confidence: float = CONFIDENCE) -> Gain:
    """The gain of a candidate over the best of its rivals.  candidate, rivals: tokens per cycle of each request, [Q].

    The rival is the best on these requests, which is in the candidate's disfavour.
    """
    rival = max(rivals, key=lambda name: float(np.log(rivals[name]).mean()))
    ratios = np.log(candidate) - np.log(rivals[rival])
    error = float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(ratios) - 1)) * error
    mean = float(ratios.mean())
    return Gain(rival, *(math.expm1(value) for value in (mean, mean - reach, mean + reach)))


def is_worse(incumbent: np.ndarray, rivals: dict[str, np.ndarray]) -> bool:
    """Whether a drafter is worse than the best of its rivals for certain, although that was found on these requests.

    incumbent, rivals: as of `paired_gain`.
    """
    return paired_gain(incumbent, rivals, 1 - (1 - CONFIDENCE) / len(rivals)).high < 0.0  # Bonferroni


def judge_drafter(
    runs: RunsFolder, name: str, rows: Sequence[Answer], incumbent: str = "", learned: Collection[str] = ()
) -> Verdict:
    """Compare a drafter with those of `drafter=auto` on answers, by replaying their cycles.

    incumbent: the drafter that was learned from such requests before; empty: none.
    learned: names of all drafters that were learned from traffic.
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
    candidate = by_drafter.pop(name)
    gain = paired_gain(candidate, by_drafter)
    base = {rival: lengths for rival, lengths in by_drafter.items() if rival not in learned}
    base_gain = paired_gain(candidate, base).mean if base else gain.mean
    first_gain = paired_gain(candidate, {(first := rivals[0]): by_drafter[first]}).mean
    is_known_worse = len(by_drafter) > 1 and bool(incumbent) and is_worse(by_drafter.pop(incumbent), by_drafter)
    return Verdict(gain, base_gain, first, first_gain, is_known_worse)
