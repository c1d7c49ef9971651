"""Replays selectors whose arms are pairs of drafter and tree on held-out answers, in tokens per second."""

from __future__ import annotations

from typing import Any

import numpy as np

from drafterforge.config.progress import bar
from drafterforge.replay.joint_play import JointAnswers, portfolio
from drafterforge.replay.trace import Traces
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.latency import LatencyProfile

SELECTORS = {
    "hedgespec": {},
    "normalhedge": {},
    "hedgespec, carried over": {"carry": True},
    "ucb1": {},
    "random": {},
}


def replay_joint_selection(traces: Traces, grid: ActionGrid, profile: LatencyProfile, num_arms: int) -> dict[str, Any]:
    """Choose arms on the training answers and replay selectors over them on the held-out ones; curves of a report."""
    train, test = traces.split("train"), traces.split("test")
    arms = portfolio(train, grid, profile, num_arms)
    train_seconds = JointAnswers.of(train, grid, profile, arms).alone().sum(axis=0)
    answers = JointAnswers.of(test, grid, profile, arms)
    alone = answers.alone()
    best, tokens = int(train_seconds.argmin()), answers.num_tokens
    rows: list[dict[str, Any]] = [
        {"name": f"{arm.name} alone", "tokens_per_s": tokens / total}
        for arm, total in zip(arms, alone.sum(axis=0), strict=True)
    ]
    name = f"best arm of the training answers, {arms[best].name}"
    rows.append({"name": name, "tokens_per_s": tokens / alone[:, best].sum()})
    rows.append({"name": "best arm of each answer in hindsight", "tokens_per_s": tokens / alone.min(axis=1).sum()})
    with bar("replaying selectors", len(SELECTORS)) as progress:
        for name, options in SELECTORS.items():
            seconds = answers.play(answers.maker(name.split(",")[0], **options))
            wins = float(np.mean(seconds < alone[:, best]))
            rows.append({"name": name, "tokens_per_s": tokens / seconds.sum(), "faster_on": wins})
            progress.advance(status=name)
    return {"arms": [arm.name for arm in arms], "replayed": rows, "grid": grid.as_dict()}
