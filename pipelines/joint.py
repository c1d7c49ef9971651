"""Drafters and trees selected together, replayed on held-out answers in tokens per second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from drafterforge.artifacts.folder import open_artifact
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.progress import bar, table_console
from drafterforge.replay.joint_play import JointAnswers, portfolio
from drafterforge.replay.trace import Traces
from drafterforge.reporting.artifact import write_report
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.targets.load import Target

SELECTORS = {
    "hedgespec": {},
    "normalhedge": {},
    "hedgespec, carried over": {"carry": True},
    "ucb1": {},
    "random": {},
}


def select_jointly(
    cfg: TrainPolicyConfig, target: Target, grid: ActionGrid, traces: Traces, profile: LatencyProfile, traces_path: Path
) -> Path:
    """Choose arms on the training answers, and replay selectors over them on the held-out ones."""
    train, test = traces.split("train"), traces.split("test")
    arms = portfolio(train, grid, profile, cfg.policy.arms)
    learned = JointAnswers.of(train, grid, profile, arms).alone().sum(axis=0)
    answers = JointAnswers.of(test, grid, profile, arms)
    alone = answers.alone()
    best, tokens = int(learned.argmin()), answers.num_tokens
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
            progress.advance(shown=name)
    found = {"arms": [arm.name for arm in arms], "replayed": rows, "profile": profile.device, "grid": grid.as_dict()}
    _, path = write_report(
        cfg.runs_dir,
        target,
        f"policy-{cfg.name or 'joint'}",
        suite="drafters and trees together, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=[],
        curves=found,
        config=to_dict(cfg),
        parents=[open_artifact(traces_path, "traces")],
    )
    show(found)
    print(f"wrote {path}")
    return path.parent


def show(found: dict[str, Any]) -> None:
    """Rates, the best first."""
    table = Table(title=f"replayed on held-out answers, priced for {found['profile']}", title_justify="left")
    for heading in ("arm or selector", "tokens/s", "faster than the best arm on"):
        table.add_column(heading, justify="left" if heading.startswith("arm") else "right")
    for row in sorted(found["replayed"], key=lambda row: -row["tokens_per_s"]):
        wins = f"{100 * row['faster_on']:.0f} % of answers" if "faster_on" in row else ""
        table.add_row(row["name"], f"{row['tokens_per_s']:.2f}", wins)
    table_console().print(table)
