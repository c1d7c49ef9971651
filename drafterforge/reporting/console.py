"""The tables that commands print when they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from drafterforge.config.progress import say, table_console
from drafterforge.evaluation.rows import ALL
from drafterforge.reporting.noise import noise_of
from drafterforge.reporting.reader import whole_rows
from drafterforge.reporting.verdict import summarize


def print_report(report: dict[str, Any], pool_selector: str) -> None:
    """The tables of `eval`."""
    console = table_console()
    _matrix(report, console)
    _selectors(report, pool_selector, console)
    _live(report, console)
    _beside_replay(report)


def print_verdict(report: Mapping[str, Any]) -> None:
    """What to run, and the signs that the times are noisy."""
    for line in summarize(report).sentences[:1]:
        print(line)
    print_noise(report)


def print_noise(report: Mapping[str, Any]) -> None:
    """The signs that the times are noisy, if there are any."""
    for sign in noise_of(report):
        print(f"noisy: {sign}")


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


def _selectors(report: dict[str, Any], pool_selector: str, console: Console) -> None:
    rows = sorted((row for row in whole_rows(report) if row["source"] == "replay"), key=lambda row: -row["mat"])
    if not rows:
        return
    caption = (
        f"p: one-sided Wilcoxon over requests, small where {pool_selector} has a significantly higher MAT than the row"
    )
    table = Table(title="selectors, replayed on the same answers", caption=caption, title_justify="left")
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
    live = [row for row in whole_rows(report) if row["source"] == "live"]
    plain, along = ([row for row in live if bool(row.get("axis")) == varied] for varied in (False, True))
    if plain:
        console.print(_timed(plain, "live, one request at a time, methods taking turns"))
    _by_domain(report, console)
    for axis in dict.fromkeys(row["axis"] for row in along):
        here = [row | {"domain": f"{row['at']:g}"} for row in along if row["axis"] == axis]
        console.print(_timed(here, f"live, by {axis}", axis))


def _timed(rows: list[dict[str, Any]], title: str, axis: str = "") -> Table:
    """Rows against the clock; axis: what was varied, whose values stand as their domains."""
    table = Table(title=title, title_justify="left")
    headings = ("method", "MAT", "tokens/s", "speed-up", "95 %", "p", "select ms a cycle", "MB", "mismatches")
    for heading in (*headings[:1], *([axis] if axis else []), *headings[1:]):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        select = 1e3 * row["time_s"]["select"] / max(row["num_cycles"], 1)
        bounds, p, held = row["speedup_ci95"], row["wilcoxon_p_holm"], row["peak_mb"]
        table.add_row(
            row["method"],
            *([row["domain"]] if axis else []),
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "",
            "" if p is None else f"{p:.1g}",
            f"{select:.2f}",
            "" if held is None else f"{held:.0f}",
            "" if row["mismatches"] is None else str(row["mismatches"]),
        )
    return table


def _by_domain(report: dict[str, Any], console: Console) -> None:
    """Speed-ups of every method, domain by domain."""
    rows = [row for row in report["rows"] if row["source"] == "live" and not row.get("axis") and row["domain"] != ALL]
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    if len(domains) < 2:
        return
    table = Table(title="speed-up by domain", title_justify="left")
    for heading in ("method", *domains):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method in dict.fromkeys(row["method"] for row in rows if row["speedup_ci95"]):
        found = {row["domain"]: row["speedup"] for row in rows if row["method"] == method}
        table.add_row(method, *(f"{found[domain]:.2f}x" for domain in domains))
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
