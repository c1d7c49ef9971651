"""Curves of a report from replays; see `CURVES` in `reporting.reader`.

Axes: Q answers, N drafters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from drafterforge.replay.selector_play import Cycles, RecordedAnswers
from drafterforge.selectors.base import Selector
from drafterforge.selectors.hindsight import signal_strength

Plays = Mapping[str, Sequence[Cycles]]  # method -> cycles of every answer
DIGITS = 4
ORDERS = ("stationary", "drifting", "adversarial")  # of requests, see `in_order`
MOST_REQUESTS = 32  # of one order
BAND = (0.1, 0.9)  # quantiles


def regret_curves(recorded: RecordedAnswers, plays: Plays) -> dict[str, list[float]]:
    """Cumulative cycles above those of each answer's best drafter in hindsight."""
    best = recorded.static.min(axis=1)
    return {
        method: (np.array([len(cycles) for cycles in played]) - best).cumsum().astype(float).tolist()
        for method, played in plays.items()
    }


def regret_by_order(
    recorded: RecordedAnswers,
    selectors: Mapping[str, Mapping[str, Any]],
    draws: int = 4,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Cumulative regret of selectors that carry what they learned from request to request, in three orders.

    Regret is in cycles, against the best drafter of each request in hindsight.  Each draw takes some of the requests
    and orders them; `mean`, `low` and `high` are over draws, one point per request.  progress: called after each draw.
    """
    rng, best = np.random.default_rng(seed), recorded.static.argmin(axis=1)
    curves: dict[str, dict[str, list[np.ndarray]]] = {order: defaultdict(list) for order in ORDERS}
    for _ in range(draws):
        requests = rng.permutation(len(best))[:MOST_REQUESTS]
        for order in ORDERS:
            part = recorded.select(requests[in_order(best[requests], order)].tolist())
            for name, options in selectors.items():
                played = part.run(part.maker(name, **{**options, "carry": True}))
                curves[order][name].append(np.cumsum(list(map(len, played)) - part.static.min(axis=1)))
        progress()
    return {
        order: {
            name: {
                "mean": np.mean(regrets, axis=0).round(DIGITS).tolist(),
                "low": np.quantile(regrets, BAND[0], axis=0).round(DIGITS).tolist(),
                "high": np.quantile(regrets, BAND[1], axis=0).round(DIGITS).tolist(),
            }
            for name, regrets in by_name.items()
        }
        for order, by_name in curves.items()
    }


def in_order(best: np.ndarray, order: str) -> list[int]:
    """Indices of requests with best drafters `best` [Q], which are in random order.

    stationary: as they are.  drifting: those with the same best drafter in a row.  adversarial: the best drafter
    changes with every request, as far as possible.
    """
    groups = [np.flatnonzero(best == drafter).tolist() for drafter in dict.fromkeys(best.tolist())]
    if order == "stationary":
        return list(range(len(best)))
    if order == "drifting":
        return [request for group in groups for request in group]
    indices: list[int] = []
    last: list[int] = []
    while any(groups):
        last = max((group for group in groups if group and (group is not last)), key=len, default=last)
        indices.append(last.pop(0))
    return indices


def reward_signals(recorded: RecordedAnswers) -> list[dict[str, Any]]:
    """How well each reward of bandits tells the best drafter from the others: MetaSD's signal strength R.

    Samples are the cycles of every drafter at every position, so R does not depend on a selector.  The best and the
    second drafter are those with the fewest cycles; `signal` is R of the second, `median` the median R of all others.
    `agrees`: whether the reward, too, is highest for the best drafter.  Empty without recorded rewards or rivals.
    """
    best, *rivals = np.argsort(recorded.static.sum(axis=0), kind="stable").tolist()
    rows = []
    for reward, samples in _rewards(recorded).items() if rivals else ():
        strengths = signal_strength(samples, best)
        rows.append(
            {
                "reward": reward,
                "best": recorded.names[best],
                "second": recorded.names[rivals[0]],
                "signal": round(float(strengths[rivals[0]]), DIGITS),
                "median": round(float(np.median(strengths[rivals])), DIGITS),
                "agrees": bool(samples.mean(axis=1).argmax() == best),
            }
        )
    return rows


def _rewards(recorded: RecordedAnswers) -> dict[str, np.ndarray]:
    """Each reward of `Bandit` at every position at which all drafters draft, [N, R]."""
    outcomes = [answer.outcomes[0] for answer in recorded.counterfactuals]
    if any(table.coverage is None or table.overlap is None for table in outcomes):
        return {}
    levels = max(1, *recorded.counterfactuals[0].depths)
    arrays = {
        "divergence": [table.overlap for table in outcomes],
        "efficiency": [(table.accept_length - 1) / levels for table in outcomes],
        "coverage": [table.coverage for table in outcomes],
    }
    drafts = np.concatenate([table.depth for table in outcomes], axis=1).min(axis=0) > 0
    return {reward: np.concatenate(parts, axis=1)[:, drafts] for reward, parts in arrays.items() if drafts.any()}


def per_request(recorded: RecordedAnswers, plays: Plays) -> dict[str, list[list[float | None]]]:
    """Tokens and cycles of every answer, without seconds."""
    tokens = recorded.tokens.tolist()
    return {
        method: [[count, len(cycles), None] for count, cycles in zip(tokens, played, strict=True)]
        for method, played in plays.items()
    }


def weights(recorded: RecordedAnswers, make: Callable[[], Selector], answer: int) -> dict[str, list[float]]:
    """A selector's probability of each drafter, cycle by cycle of one answer."""
    columns = recorded.distributions(make, answer).T
    return {name: np.round(column, DIGITS).tolist() for name, column in zip(recorded.names, columns, strict=True)}


def actions(
    recorded: RecordedAnswers, played: Sequence[Cycles], drafters: Collection[str] | None = None
) -> list[dict[str, float]]:
    """Shares of trees by depth and size.  drafters: whose trees; None: all, also of drafters without a scheduler."""
    shapes = Counter(
        (cycle.depth, cycle.num_nodes)
        for cycles in played
        for cycle in cycles
        if drafters is None or recorded.names[cycle.drafter] in drafters
    )
    total = shapes.total()
    return [
        {"depth": depth, "num_tokens": nodes, "share": count / total}
        for (depth, nodes), count in sorted(shapes.items())
    ]


def pool_scaling(
    recorded: RecordedAnswers,
    selectors: Mapping[str, Mapping[str, Any]],
    orders: int = 8,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """MAT and regret of selectors, given with their options, in pools of 1, 2, 4, 8 .. and all N of the drafters.

    Drafters are added in several random orders, over which figures are averaged; within a pool they keep their order.
    Regret is against the best drafter of that pool.  Router advice is not used.  progress: called after each pool of
    each order.
    """
    rng, count = np.random.default_rng(seed), len(recorded.names)
    permutations = [rng.permutation(count) for _ in range(orders)]
    by_pool: dict[tuple[int, ...], dict[str, tuple[float, float]]] = {}
    rows = []
    for size in pool_sizes(count):
        averaged = defaultdict(list)
        for permutation in permutations:
            members = tuple(sorted(permutation[:size].tolist()))
            if members not in by_pool:
                options = {name: _of_members(options, members) for name, options in selectors.items()}
                by_pool[members] = _of_pool(recorded.of_drafters(members), options)
            progress()
            for method, figures in by_pool[members].items():
                averaged[method].append(figures)
        for method, figures in averaged.items():
            mat, regret = np.mean(figures, axis=0)
            rows.append({"method": method, "at": size, "mat": float(mat), "regret_cycles": float(regret)})
    return {"pool size": rows}


def pool_sizes(count: int) -> list[int]:
    """The powers of two below the number of drafters, and the number."""
    return [1 << power for power in range((count - 1).bit_length())] + [count]


def _of_members(options: Mapping[str, Any], members: Sequence[int]) -> dict[str, Any]:
    """A selector's options in a pool of these drafters."""
    if options.get("costs") is None:
        return dict(options)
    return {**options, "costs": [options["costs"][member] for member in members]}


def _of_pool(recorded: RecordedAnswers, selectors: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """MAT and regret of each selector, of the best drafter overall and of the best of each answer."""
    alone = recorded.alone(int(recorded.static.sum(axis=0).argmin()))
    plays = {"best in hindsight": recorded.hindsight(), "best drafter": alone}
    plays |= {name: recorded.run(recorded.maker(name, **options)) for name, options in selectors.items()}
    figures = {method: recorded.figures(played) for method, played in plays.items()}
    return {method: (figure["mat"], figure["regret_cycles"]) for method, figure in figures.items()}
