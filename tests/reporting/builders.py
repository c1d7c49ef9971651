"""Reports for tests, built by hand."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

TIMES = {"prefill": 1.0, "draft": 2.0, "verify": 6.0, "select": 0.2, "schedule": 0.1, "host": 0.3, "total": 9.6}


def live_row(method: str, speedup: float, bounds: list[float] | None, **more: Any) -> dict[str, Any]:
    """A timed row."""
    row = {"method": method, "selector": "static", "scheduler": "static", "drafters": ["sql"], "domain": "mixed"}
    row |= {"temperature": 0.0, "batch_size": 1, "num_prompts": 8, "num_tokens": 800, "num_cycles": 400, "mat": 2.0}
    row |= {"tokens_per_s": 20 * speedup, "speedup": speedup, "speedup_ci95": bounds, "wilcoxon_p": 0.01}
    return row | {"mismatches": 0, "dtype": "float32", "numerics": "fast", "time_s": TIMES, "source": "live"} | more


def replay_row(method: str, selector: str, mat: float, **more: Any) -> dict[str, Any]:
    """A replayed row."""
    row = {"method": method, "selector": selector, "scheduler": "static", "drafters": ["sql", "math"], "mat": mat}
    row |= {"domain": "mixed", "source": "replay", "num_prompts": 8, "num_tokens": 800, "num_cycles": int(800 / mat)}
    return row | {"of_hindsight": 0.9, "regret_cycles": 1.5, "options": {"c": 0.5}} | more


def full_report(**more: Any) -> dict[str, Any]:
    """A report with data for every table and figure."""
    return deepcopy(
        {
            "schema": 1,
            "created": "2026-01-01T00:00:00+00:00",
            "drafterforge_version": "0.1.0",
            "target": {"name": "tiny", "fingerprint": "f00d", "revision": None},
            "device": "cpu",
            "dtype": "float32",
            "numerics": "fast",
            "seed": 0,
            "suite": "mixed",
            "rows": [
                live_row("autoregressive", 1.0, None, selector="none", mat=1.0),
                live_row("sql alone", 1.3, [1.2, 1.4]),
                live_row("hedgespec over the pool", 1.8, [1.6, 2.0], mat=2.6, selector="hedgespec"),
                replay_row("sql alone", "static", 2.0),
                replay_row("best in hindsight", "oracle", 2.5),
                replay_row("hedgespec", "hedgespec", 2.6),
            ],
            "curves": {
                "mat_by_domain": {"sql": {"sql": 2.5, "math": 1.8}, "math": {"sql": 1.7, "math": 2.4}},
                "live": [
                    {
                        "method": "sql",
                        "num_cycles": 400,
                        "replayed_cycles": 400,
                        "requests_with_other_cycles": 0,
                        "other_text": [],
                    }
                ],
                "mismatches": [],
                "replayed": [
                    {"name": "default tree 10/3/4", "mat": 2.3, "tokens_per_s": 26.0, "actions": 1},
                    {"name": "best static tree 8/3/4", "mat": 2.2, "tokens_per_s": 26.5, "actions": 1},
                    {"name": "policy planner", "mat": 2.1, "tokens_per_s": 27.8, "actions": 19},
                    {"name": "perfect foresight", "mat": None, "tokens_per_s": 38.0, "actions": None},
                ],
                "profile": "cpu",
                "per_request": {
                    "hedgespec over the pool": [[100, cycles, 2.5] for cycles in (45, 55, 40, 60, 52, 48, 49, 51)]
                },
                "regret_curves": {"hedgespec": [0.0, -1.0, -2.0], "ucb1": [0.0, 1.0, 3.0]},
                "weights": {"sql": [0.5, 0.7, 0.2], "math": [0.5, 0.3, 0.8]},
                "scaling": {
                    "pool size": [
                        {"method": "hedgespec", "at": at, "speedup": 1.5 + 0.01 * at, "regret_cycles": 3 / at}
                        for at in (1, 2, 4)
                    ]
                },
                "actions": [{"depth": 1, "num_tokens": 4, "share": 0.25}, {"depth": 3, "num_tokens": 8, "share": 0.75}],
            },
        }
    ) | deepcopy(more)


FIGURES = {
    "speedups",
    "domains",
    "selectors",
    "regret",
    "weights",
    "schedules",
    "cost",
    "actions",
    "times",
    "scaling-0-speedup",
    "scaling-0-regret_cycles",
}
