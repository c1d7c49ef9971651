"""Rows and files of `report.json`; its keys are read by other tools and stay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy.stats import wilcoxon

from drafterforge import __version__
from drafterforge.evaluation.measure import AUTOREGRESSIVE, Method
from drafterforge.evaluation.statistics import bootstrap_ratio
from drafterforge.runtime.batch import Generation

SCHEMA = 1
STEPS = ("prefill", "draft", "verify", "select", "schedule", "host", "total")


def tokens_per_s(generations: Sequence[Generation]) -> float:
    """All tokens over all seconds, prefill included."""
    return sum(len(one.tokens) for one in generations) / sum(one.time_s["total"] for one in generations)


def speedup_interval(found: Sequence[Generation], baseline: Sequence[Generation]) -> list[float]:
    """95 % bootstrap interval of the ratio of totals, prompts resampled in pairs."""
    pairs = [
        (len(one.tokens), one.time_s["total"], len(base.tokens), base.time_s["total"])
        for one, base in zip(found, baseline, strict=True)
    ]
    return [round(bound, 4) for bound in bootstrap_ratio(pairs)]


def paired_p(found: Sequence[Generation], baseline: Sequence[Generation]) -> float | None:
    """Wilcoxon signed-rank p of per-prompt tokens/s, two-sided; None for fewer than six prompts."""
    ours, theirs = ([len(one.tokens) / one.time_s["total"] for one in many] for many in (found, baseline))
    if len(ours) < 6 or ours == theirs:
        return None
    return float(wilcoxon(ours, theirs).pvalue)


def build_row(
    method: Method,
    generations: Sequence[Generation],
    baseline: Sequence[Generation],
    *,
    domain: str,
    mismatches: int,
    dtype: str,
    numerics: str = "fast",
) -> dict[str, Any]:
    """One row: a method on a domain.  `baseline`: autoregressive decoding of the same prompts."""
    cycles = [cycle for one in generations for cycle in one.cycles]
    emitted = sum(cycle.accept_length for cycle in cycles)
    drafted = sum(cycle.depth for cycle in cycles)
    is_baseline = method.name == AUTOREGRESSIVE
    static = method.selector == "static"
    rate = tokens_per_s(generations)
    return {
        "method": method.name,
        "selector": method.selector,
        "scheduler": method.scheduler,
        "drafters": method.drafters,
        "domain": domain,
        "temperature": 0.0,
        "batch_size": 1,
        "num_prompts": len(generations),
        "num_tokens": sum(len(one.tokens) for one in generations),
        "num_cycles": len(cycles),
        "mat": round(emitted / len(cycles), 4) if cycles else 1.0,
        "accept_rate": round((emitted - len(cycles)) / drafted, 4) if drafted else None,
        "tokens_per_s": round(rate, 3),
        "speedup": round(rate / tokens_per_s(baseline), 4),
        "speedup_ci95": None if is_baseline else speedup_interval(generations, baseline),
        "wilcoxon_p": None if is_baseline else paired_p(generations, baseline),
        "mismatches": mismatches,
        "dtype": dtype,
        "numerics": numerics,
        "regret_cycles": 0.0 if static else None,  # one static drafter is its own best in hindsight
        "regret_tokens": 0.0 if static else None,
        "time_s": {step: round(sum(one.time_s.get(step, 0.0) for one in generations), 4) for step in STEPS},
    }


def build_report(
    rows: list[dict[str, Any]],
    *,
    target: dict[str, Any],
    device: str,
    dtype: str,
    numerics: str,
    seed: int,
    suite: str,
    curves: dict[str, Any],
) -> dict[str, Any]:
    """The whole `report.json`."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "drafterforge_version": __version__,
        "target": target,
        "device": device,
        "dtype": dtype,
        "numerics": numerics,
        "seed": seed,
        "suite": suite,
        "rows": rows,
        "curves": curves,
    }


def print_table(report: dict[str, Any], console: Console) -> None:
    """The rows a reader wants first."""
    title = f"{report['suite']}: {report['target']['name']} on {report['device']}"
    table = Table(title=title, title_justify="left")
    for heading in (
        "method",
        "dtype",
        "prompts",
        "MAT",
        "tokens/s",
        "speed-up",
        "95 %",
        "mismatches",
    ):
        table.add_column(heading, justify="left" if heading in ("method", "dtype") else "right")
    for row in report["rows"]:
        interval = row["speedup_ci95"]
        table.add_row(
            row["method"],
            row["dtype"],
            str(row["num_prompts"]),
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "",
            str(row["mismatches"]),
        )
    console.print(table)
