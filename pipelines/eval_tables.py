"""The tables of `eval` that a reader wants first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from drafterforge.pipelines.console import say, table_console


def show(report: dict[str, Any], own: str) -> None:
    """Print them; own: the pool's selector."""
    console = table_console()
    _matrix(report, console)
    _selectors(report, own, console)
    _live(report, console)
    _beside_replay(report)


def _matrix(report: dict[str, Any], console: Console) -> None:
    matrix = report["curves"].get("mat_by_domain")
    if not matrix:
        return
    drafters = list(next(iter(matrix.values())))
    table = Table(title="MAT by drafter and domain of the answer", title_justify="left")
    for heading in ("drafter", *matrix):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    best = {domain: max(row.values()) for domain, row in matrix.items()}
    for name in drafters:
        cells = [f"{row[name]:.2f}{'*' if row[name] == best[domain] else ''}" for domain, row in matrix.items()]
        table.add_row(name, *cells)
    console.print(table)


def _selectors(report: dict[str, Any], own: str, console: Console) -> None:
    rows = sorted((row for row in report["rows"] if row["source"] == "replay"), key=lambda row: -row["mat"])
    if not rows:
        return
    told_p = (
        f"p: one-sided Wilcoxon over requests, small where {own}'s MAT is higher than the row's by more than chance"
    )
    table = Table(title="selectors, replayed on the same answers", caption=told_p, title_justify="left")
    headings = ("method", "MAT", "of hindsight", "regret, cycles", "on the best", "switches", "p", "constants")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "constants") else "right")
    for row in rows:
        p = row["p_selector_no_better"]
        table.add_row(
            row["method"],
            f"{row['mat']:.3f}",
            f"{row['of_hindsight']:.3f}",
            f"{row['regret_cycles']:.2f}",
            f"{row['share_on_best']:.2f}",
            f"{row['switches_per_cycle']:.2f}",
            "" if p is None else f"{p:.1g}",
            ", ".join(f"{key}={value}" for key, value in row["options"].items()),
        )
    console.print(table)


def _live(report: dict[str, Any], console: Console) -> None:
    live = [row for row in report["rows"] if row["source"] == "live"]
    if not live:
        return
    several = len({row["domain"] for row in live}) > 1
    table = Table(title="live, one request at a time, methods taking turns", title_justify="left")
    headings = ("method", "domain", "MAT", "tokens/s", "speed-up", "95 %", "select ms a cycle", "mismatches")
    for heading in headings if several else (one for one in headings if one != "domain"):
        table.add_column(heading, justify="left" if heading in ("method", "domain") else "right")
    for row in live:
        select = 1e3 * row["time_s"]["select"] / max(row["num_cycles"], 1)
        bounds = row["speedup_ci95"]
        table.add_row(
            row["method"],
            *([row["domain"]] if several else []),
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "",
            f"{select:.2f}",
            "" if row["mismatches"] is None else str(row["mismatches"]),
        )
    console.print(table)


def _beside_replay(report: dict[str, Any]) -> None:
    found = report["curves"].get("live")
    if not found:
        return
    other = [text for one in found for text in one["other_text"]]
    margins = ", ".join(f"{text['margin']:.1e}" for text in other)
    differing = sum(one["requests_with_other_cycles"] for one in found)
    at = f" (at margins {margins})" if other else ""
    say(f"live runs: {len(other)} texts{at} and {differing} cycle counts differ from the replay")
