"""Random tables and traces, and a latency profile, for tests."""

from __future__ import annotations

import numpy as np

from drafterforge.replay.table import OutcomeTable
from drafterforge.replay.trace import Trace, Traces, TraceSpec, join
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.schedulers.observation import CHILDREN
from drafterforge.tree.union import MISSING

GRID = ActionGrid("made", (1, 2, 4, 8), (1, 2, 3), (1, 2))
KNOTS = (1, 2, 4, 8)


def table(seed: int = 0, lengths: tuple[int, ...] = (9, 1, 14), grid: ActionGrid = GRID) -> OutcomeTable:
    """Random outcomes that never pass the end of an answer."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    answer_of = np.repeat(np.arange(len(lengths)), lengths)
    ends = starts[answer_of + 1]
    tokens = draw.integers(1, 5, size=(starts[-1], len(grid)))
    tokens = np.minimum(tokens, (ends - np.arange(starts[-1]))[:, None])
    seconds = draw.uniform(0.5, 2.0, size=tokens.shape).astype(np.float32)
    return OutcomeTable(grid, tokens.astype(np.uint8), seconds, starts, answer_of, ends)


def profile(**changes: object) -> LatencyProfile:
    """Costs that rise with every quantity."""
    seconds = {
        "draft": {"call": 0.001, "tree": 0.002, "level, kilotoken": 0.001, "hundred candidates": 0.001}
        | {f"level, top_k {k}": 0.003 + 0.001 * k for k in (1, 2, 3, 5)},
        "refresh": {"pass": 0.004, "token": 0.001, "kilotoken": 0.001},
        "verify": {"kilotoken": 0.01, "node, kilotoken": 0.001}
        | {f"{n} nodes": 0.04 + 0.002 * n for n in (1, 2, 4, 8, 20)},
        "host": {"cycle": 0.001, "node": 0.0001, "level": 0.0002, "token": 0.0001},
    }
    values = {
        "device": "a device",
        "dtype": "float32",
        "target": "tiny",
        "drafter": "a",
        "nodes": (1, 2, 4, 8, 20),
        "top_ks": (1, 2, 3, 5),
        "depth": 5,
        "seconds": seconds,
        "autoregressive": {"token": 0.05, "kilotoken": 0.01},
        "errors": {},
    }
    return LatencyProfile(**{**values, **changes})


def traces(seed: int = 0, lengths: tuple[int, ...] = (12, 30), depth: int = 3, score_top_k: int = 2) -> Traces:
    """Random ranks of a chain that ends at a random level, and random scores."""
    draw = np.random.default_rng(seed)
    answers = []
    for count in lengths:
        roots = count - 1
        ranks = np.full((1, roots, 2, depth * (depth + 1) // 2), MISSING, dtype=np.uint16)
        for row in range(roots):
            alive = draw.integers(0, depth + 1)
            for k in range(2):
                for deep in range(1, depth + 1):
                    for level in range(1, min(deep, alive) + 1):
                        ranks[0, row, k, deep * (deep - 1) // 2 + level - 1] = level * (1 + k)
        scores = -np.sort(draw.exponential(2.0, size=(1, roots, score_top_k + (depth - 1) * score_top_k**2)), axis=2)
        answers.append(
            Trace(
                tokens=np.arange(5 + count, dtype=np.int32),
                begin=5,
                max_new_tokens=count,
                features=draw.normal(size=(roots, 6)).astype(np.float16),
                margins=draw.random(roots).astype(np.float32),
                ranks=ranks,
                scores=scores.astype(np.float16),
                children=-np.sort(draw.exponential(2.0, size=(1, roots, CHILDREN)), axis=2).astype(np.float16),
                log_q=-draw.random((1, roots)).astype(np.float32),
            )
        )
    spec = TraceSpec(("a",), (1, 2), depth, score_top_k)
    return join(spec, answers, ["x", "y"] * (len(lengths) // 2), ["train", "test"] * (len(lengths) // 2))
