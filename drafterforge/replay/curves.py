"""What the figures of a report are drawn from, of what was replayed; see `CURVES` in `reporting.reader`.

Axes: Q answers, N drafters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from drafterforge.replay.selector_play import Cycles, RecordedAnswers
from drafterforge.selectors.base import Selector

Plays = Mapping[str, Sequence[Cycles]]  # method -> cycles of every answer
DIGITS = 4


def regret_curves(contest: RecordedAnswers, plays: Plays) -> dict[str, list[float]]:
    """Cycles above those of each answer's best drafter in hindsight, added up answer by answer."""
    best = contest.static.min(axis=1)
    return {
        method: (np.array([len(cycles) for cycles in played]) - best).cumsum().astype(float).tolist()
        for method, played in plays.items()
    }


def per_request(contest: RecordedAnswers, plays: Plays) -> dict[str, list[list[float | None]]]:
    """Tokens and cycles of every answer; a replay takes no time."""
    tokens = contest.tokens.tolist()
    return {
        method: [[count, len(cycles), None] for count, cycles in zip(tokens, played, strict=True)]
        for method, played in plays.items()
    }


def weights(contest: RecordedAnswers, make: Callable[[], Selector], place: int) -> dict[str, list[float]]:
    """The drafters' shares in a selector's law, cycle by cycle of one answer; place: among the contest's answers."""
    laws = contest.laws(make, place)
    return {name: np.round(law, DIGITS).tolist() for name, law in zip(contest.names, laws.T, strict=True)}


def actions(
    contest: RecordedAnswers, played: Sequence[Cycles], drafters: Collection[str] | None = None
) -> list[dict[str, float]]:
    """How often trees of each depth and size were verified.  drafters: whose; None: all, also of no scheduler's."""
    shapes = Counter(
        (cycle.depth, cycle.num_nodes)
        for cycles in played
        for cycle in cycles
        if drafters is None or contest.names[cycle.drafter] in drafters
    )
    total = shapes.total()
    return [
        {"depth": depth, "num_tokens": nodes, "share": count / total}
        for (depth, nodes), count in sorted(shapes.items())
    ]


def pool_scaling(
    contest: RecordedAnswers,
    selectors: Mapping[str, Mapping[str, Any]],
    orders: int = 8,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """MAT and regret of selectors, given with their options, in pools of 1, 2 .. N of the drafters.

    Drafters join in several orders drawn at random, over which figures are averaged; within a pool they keep their
    places.  Regret is against the best drafter of that pool.  A router's advice is left out.  progress: told after
    each pool that was played.
    """
    draw, count = np.random.default_rng(seed), len(contest.names)
    drawn = [draw.permutation(count) for _ in range(orders)]
    known: dict[tuple[int, ...], dict[str, tuple[float, float]]] = {}
    rows = []
    for size in range(1, count + 1):
        found = defaultdict(list)
        for order in drawn:
            members = tuple(sorted(order[:size].tolist()))
            if members not in known:
                own = {name: _of_members(options, members) for name, options in selectors.items()}
                known[members] = _of_pool(contest.only(members), own)
                progress()
            for method, figures in known[members].items():
                found[method].append(figures)
        for method, figures in found.items():
            mat, regret = np.mean(figures, axis=0)
            rows.append({"method": method, "at": size, "mat": float(mat), "regret_cycles": float(regret)})
    return {"pool size": rows}


def _of_members(options: Mapping[str, Any], members: Sequence[int]) -> dict[str, Any]:
    """A selector's options in a pool of these drafters."""
    if options.get("costs") is None:
        return dict(options)
    return {**options, "costs": [options["costs"][member] for member in members]}


def _of_pool(contest: RecordedAnswers, selectors: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """MAT and regret of every selector, of the best drafter of all answers and of the best of each."""
    alone = contest.alone(int(contest.static.sum(axis=0).argmin()))
    plays = {"best in hindsight": contest.hindsight(), "best drafter": alone}
    plays |= {name: contest.run(contest.maker(name, **options)) for name, options in selectors.items()}
    found = {method: contest.figures(played) for method, played in plays.items()}
    return {method: (one["mat"], one["regret_cycles"]) for method, one in found.items()}
