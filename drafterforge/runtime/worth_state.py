"""What an engine's decisions have learned, as a file: a server begins where the one before it ended.

Seconds are stored in passes of one node, so that the load of the machine at that time is not carried over.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.errors import ArtifactError
from drafterforge.runtime.averages import Mean
from drafterforge.runtime.retrieval_yield import PROMISED
from drafterforge.runtime.worth import LONGEST_PAUSE, MEANS, SHORTEST_PAUSE, Traffic, Worth

YIELDS = ("promised", "added")  # of a `RetrievalYield`


@dataclass(frozen=True)
class MeanState:
    """A `Mean`."""

    value: float
    weight: float


@dataclass(frozen=True)
class TrafficState:
    """A `Traffic`, the rate that its batch size reached, and its key."""

    temperature: float
    rows: int
    kind: str
    net: MeanState
    neural_gain: MeanState
    accepted: MeanState
    expected: MeanState
    neural_net: MeanState
    pause: int
    promised: list[MeanState]  # of retrieval, by range
    added: list[MeanState]


@dataclass(frozen=True)
class RateState:
    """The tokens that recent cycles of a batch size made, in how many passes of one node per row."""

    rows: int
    tokens: float
    passes: float


@dataclass(frozen=True)
class GainState:
    """A `GainHistory` and its key."""

    drafter: str
    reference: str
    advised: bool
    gain: MeanState
    square: MeanState


@dataclass(frozen=True)
class WorthState:
    """A `Worth` with its `ArmKnowledge`; seconds in passes of one node."""

    neural: MeanState
    reading: MeanState
    level: MeanState
    read: MeanState
    level_share: MeanState
    num_levels: MeanState
    num_rows: MeanState
    noise: MeanState
    answer_tokens: MeanState
    draft: dict[str, MeanState]  # by drafter
    gains: list[GainState]
    traffic: list[TrafficState]
    rates: list[RateState]


def means_of(worth: Worth) -> dict[str, tuple[Mean, float]]:
    """The single means of a state by name, and the unit of each."""
    single, arms = worth.costs.of(1, 1), worth.arms
    seconds = {"neural": worth.neural_s, "reading": worth.reading_s, "level": worth.level_s, "read": arms.read_s}
    counts = {
        "level_share": worth.level_share,
        "num_levels": worth.num_levels,
        "num_rows": worth.num_rows,
        "noise": arms.noise,
        "answer_tokens": arms.answer_tokens,
    }
    return {name: (mean, single) for name, mean in seconds.items()} | {
        name: (mean, 1.0) for name, mean in counts.items()
    }


def save_state(worth: Worth, path: Path) -> None:
    """Write what `worth` has learned to a file that is either complete or absent."""
    single, arms = worth.costs.of(1, 1), worth.arms
    requests = [
        TrafficState(
            *key,
            *(_state(getattr(traffic, name)) for name in MEANS),
            pause=traffic.pause,
            promised=[_state(mean) for mean in traffic.retrieval.promised],
            added=[_state(mean) for mean in traffic.retrieval.added],
        )
        for key, traffic in sorted(worth.traffic.items())
    ]
    rates = [
        RateState(rows, tokens, seconds / worth.costs.of(rows, rows))
        for rows, (tokens, seconds) in sorted(worth.rates.items())
    ]
    state = WorthState(
        **{name: _state(mean, unit) for name, (mean, unit) in means_of(worth).items()},
        draft={name: _state(mean, single) for name, mean in sorted(arms.draft_s.items())},
        gains=[
            GainState(*key, _state(history.gain), _state(history.square)) for key, history in sorted(arms.gains.items())
        ],
        traffic=requests,
        rates=rates,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_json_atomic(path, asdict(state))


def load_state(worth: Worth, path: Path) -> None:
    """Begin `worth` with a saved state; ArtifactError, and no change, if there is none or it is damaged."""
    state = parse_as(WorthState, _with_new_keys(read_json(path)), str(path))
    _check(state, path)
    single, arms = worth.costs.of(1, 1), worth.arms
    for name, (mean, unit) in means_of(worth).items():
        _restore(mean, getattr(state, name), unit)
    for name, saved in state.draft.items():
        arms.add_drafting(name, 0.0)
        _restore(arms.draft_s[name], saved, single)
    for saved in state.gains:
        history = arms.history(saved.drafter, saved.reference, saved.advised)
        _restore(history.gain, saved.gain)
        _restore(history.square, saved.square)
    for saved in state.traffic:
        traffic = Traffic(0.0)
        for name in MEANS:
            _restore(getattr(traffic, name), getattr(saved, name))
        for name in YIELDS:
            for mean, stored in zip(getattr(traffic.retrieval, name), getattr(saved, name), strict=False):
                _restore(mean, stored)
        traffic.pause = saved.pause
        worth.traffic[saved.temperature, saved.rows, saved.kind] = traffic
    for rate in state.rates:
        worth.rates[rate.rows] = (rate.tokens, rate.passes * worth.costs.of(rate.rows, rate.rows))


def _with_new_keys(values: Any) -> Any:
    """A state with the keys that those of earlier versions lack."""
    if not isinstance(values, dict) or not isinstance(saved := values.get("traffic"), list):
        return values
    new = {"kind": "", **{name: [] for name in YIELDS}}
    return values | {"traffic": [new | entry if isinstance(entry, dict) else entry for entry in saved]}


def _check(state: WorthState, path: Path) -> None:
    means = [getattr(saved, name) for saved in state.traffic for name in MEANS]
    yields = [mean for saved in state.traffic for name in YIELDS for mean in getattr(saved, name)]
    means += [mean for saved in state.gains for mean in (saved.gain, saved.square)]
    positive = [value for value in vars(state).values() if isinstance(value, MeanState)] + list(state.draft.values())
    valid = (
        all(mean.weight > 0 for mean in (*means, *yields, *positive))
        and all(mean.value > 0 for mean in positive)
        and all(mean.value >= 0 for mean in yields)
        and all(mean.value > 0 for saved in state.traffic for mean in saved.promised)
        and all(len(getattr(saved, name)) in (0, len(PROMISED)) for saved in state.traffic for name in YIELDS)
        and all(saved.rows > 0 and SHORTEST_PAUSE <= saved.pause <= LONGEST_PAUSE for saved in state.traffic)
        and all(rate.rows > 0 and rate.tokens >= 0 and rate.passes > 0 for rate in state.rates)
    )
    if not valid:
        raise ArtifactError(f"{path} is damaged (a value is out of range); delete it")


def _state(mean: Mean, unit: float = 1.0) -> MeanState:
    return MeanState(float(mean.value) / unit, float(mean.weight))


def _restore(mean: Mean, saved: MeanState, unit: float = 1.0) -> None:
    mean.value, mean.weight = saved.value * unit, min(saved.weight, mean.horizon)
