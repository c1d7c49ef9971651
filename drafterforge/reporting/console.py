"""Tables that commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from drafterforge.config.evaluation import ALL
from drafterforge.config.progress import say, table_console
from drafterforge.evaluation.methods import INVARIANT
from drafterforge.reporting.auto_tables import auto_tables
from drafterforge.reporting.noise import noise_of
from drafterforge.reporting.reader import is_baseline, name_with, overall_rows, temperature_of, text
from drafterforge.reporting.report_table import ReportTable
from drafterforge.reporting.tables import OPTIONS_LEGEND, format_interval, names_trees
from drafterforge.reporting.verdict import summarize
from drafterforge.schedulers.actions import TREE_LEGEND
from drafterforge.schedulers.latency import STEPS, LatencyProfile

CONTEXT = 256  # tokens of context for the cost of an autoregressive token in the table of a profile
MAT_LEGEND = "MAT: mean tokens emitted per cycle"
LEGEND = f"{MAT_LEGEND}; speed-up: tokens/s over autoregressive (plain) decoding, with its 95 % interval"
INVARIANT_LEGEND = (
    f"{INVARIANT}: decoding without a drafter in invariant numerics, whose text every drafter must reproduce"
)
REPLAYED = "replayed on held-out answers, seconds from the latency profile of {}"


def titled(title: str, legend: str = "") -> Table:
    """An empty table with a title above and a legend below, both on the left."""
    return Table(title=title, title_justify="left", caption=legend or None, caption_justify="left")


def legend_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The meaning of the columns and of the names of methods in these rows."""
    methods = [row["method"] for row in rows]
    legends = {LEGEND: True, INVARIANT_LEGEND: INVARIANT in methods, TREE_LEGEND: names_trees(methods)}
    return "; ".join(legend for legend, applies in legends.items() if applies)


def print_report(report: dict[str, Any], pool_selector: str) -> None:
    """Print the tables of `eval`."""
    console = table_console()
    _matrix(report, console)
    _selectors(report, pool_selector, console)
    _live(report, console)
    for part in auto_tables(report):
        if part.cells:
            console.print(_printed(part))
    _live_against_replay(report)


def print_verdict(report: Mapping[str, Any]) -> None:
    """Print whether decoding was lossless, what to run, and signs that the times are noisy."""
    summary = summarize(report)
    print(f"{summary.headline}; {summary.details[0]}.")
    for sentence in summary.sentences:
        print(sentence)
    print_noise(report)


def print_noise(report: Mapping[str, Any]) -> None:
    for sign in noise_of(report):
        print(f"noisy: {sign}")


def _matrix(report: dict[str, Any], console: Console) -> None:
    matrix = report["curves"].get("mat_by_domain")
    if not matrix:
        return
    drafters = list(next(iter(matrix.values())))
    table = titled("MAT by drafter and domain of the answer", f"{MAT_LEGEND}; *: best of the domain")
    for heading in ("drafter", *matrix):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    best = {domain: max(row.values()) for domain, row in matrix.items()}
    for name in drafters:
        cells = [f"{row[name]:.2f}{'*' if row[name] == best[domain] else ''}" for domain, row in matrix.items()]
        table.add_row(name, *cells)
    console.print(table)


def _selectors(report: dict[str, Any], pool_selector: str, console: Console) -> None:
    rows = sorted((row for row in overall_rows(report) if row["source"] == "replay"), key=lambda row: -row["mat"])
    if not rows:
        return
    caption = (
        f"{MAT_LEGEND}; of hindsight: MAT relative to the best drafter of each request; regret: cycles per request "
        "more than with it; on the best: share of cycles drafted by it; switches: changes of drafter per cycle; p: "
        f"one-sided Wilcoxon test over requests, not corrected, small where {pool_selector} has a higher MAT; "
        f"{OPTIONS_LEGEND}"
    )
    table = titled("drafters and selectors, replayed on the same answers", caption)
    headings = ("method", "MAT", "of hindsight", "regret, cycles", "on the best", "switches", "p", "options")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "options") else "right")
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
    live = [row for row in overall_rows(report) if row["source"] == "live"]
    single, scaled = ([row for row in live if bool(row.get("axis")) == is_scaled] for is_scaled in (False, True))
    if single:
        console.print(_timed(single, f"live, one request at a time, methods in turns{_sampled(single)}"))
    _by_domain(report, console)
    for axis in dict.fromkeys(row["axis"] for row in scaled if "auto" not in report["curves"]):
        of_axis = [row for row in scaled if row["axis"] == axis]
        points = [row | {"domain": f"{row['at']:g}", "method": name_with(row, without=axis)} for row in of_axis]
        console.print(_timed(points, f"live, by {axis}", axis))


def _sampled(rows: Sequence[Mapping[str, Any]]) -> str:
    """The end of a title whose rows were sampled."""
    return f", temperature {temperature:g}" if (temperature := temperature_of(rows)) else ""


def _printed(part: ReportTable) -> Table:
    table = titled(part.title, part.note)
    for index, heading in enumerate(part.headings):
        table.add_column(heading, justify="left" if index < part.name_columns else "right")
    for cells in part.cells:
        table.add_row(*cells)
    return table


def _timed(rows: list[dict[str, Any]], title: str, axis: str = "") -> Table:
    """A table of timed rows.  axis: the varied quantity; its values are in `domain`."""
    legend = (
        f"{legend_of(rows)}; p: two-sided paired Wilcoxon test against autoregressive, Holm-corrected; select: "
        "choosing the drafter; MB: peak memory beyond the weights; mismatches: answers that differ from autoregressive "
        "decoding in the same numerics"
    )
    table = titled(title, "" if axis else legend)
    headings = ("method", "MAT", "tokens/s", "speed-up", "95 %", "p", "select, ms/cycle", "MB", "mismatches")
    for heading in (*headings[:1], *([axis] if axis else []), *headings[1:]):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        times = row["time_s"]
        select = 1e3 * times["select"] / max(row["num_cycles"], 1)
        p, peak_mb = row["wilcoxon_p_holm"], row["peak_mb"]
        table.add_row(
            row["method"],
            *([row["domain"]] if axis else []),
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            format_interval(row),
            "" if p is None else f"{p:.1g}",
            f"{select:.2f}" if times["verify"] else "",  # other programs do not time their steps
            "" if peak_mb is None else f"{peak_mb:.0f}",
            "" if row["mismatches"] is None else str(row["mismatches"]),
        )
    return table


def _by_domain(report: dict[str, Any], console: Console) -> None:
    rows = [row for row in report["rows"] if row["source"] == "live" and not row.get("axis") and row["domain"] != ALL]
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    if len(domains) < 2:
        return
    table = titled("speed-up by domain")
    for heading in ("method", *domains):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method in dict.fromkeys(row["method"] for row in rows if not is_baseline(row)):
        speedups = {row["domain"]: row["speedup"] for row in rows if row["method"] == method}
        table.add_row(method, *(f"{speedups[domain]:.2f}x" for domain in domains))
    console.print(table)


def _live_against_replay(report: dict[str, Any]) -> None:
    checks = report["curves"].get("live")
    if not checks:
        return
    mismatches = [mismatch for check in checks for mismatch in check["other_text"]]
    margins = ", ".join(f"{mismatch['margin']:.1e}" for mismatch in mismatches)
    other_cycles = sum(check["requests_with_other_cycles"] for check in checks)
    at = f" (at margins {margins})" if mismatches else ""
    say(f"live decoding against replay: {len(mismatches)} texts{at} and {other_cycles} cycle counts differ")


def print_table(report: dict[str, Any], console: Console) -> None:
    """Print the main columns of all rows."""
    title = f"{report['suite']}: {report['target']['name']} on {report['device']}"
    table = titled(title, legend_of(report["rows"]))
    domains = [text(row.get("domain")) for row in report["rows"]]
    has_domains = len(set(domains)) > 1
    left = ("domain", "method", "dtype") if has_domains else ("method", "dtype")
    for heading in (*left, "prompts", "MAT", "tokens/s", "speed-up", "95 %", "mismatches"):
        table.add_column(heading, justify="left" if heading in left else "right")
    for row, domain in zip(report["rows"], domains, strict=True):
        table.add_row(
            *([domain] if has_domains else []),
            row["method"],
            row["dtype"],
            str(row["num_prompts"]),
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            format_interval(row),
            str(row["mismatches"]),
        )
    console.print(table)


def print_router(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the accuracy of a router on held-out prompts, over all labels and by label."""
    table = titled("router, held-out prompts", "ECE: expected calibration error of the confidence")
    measured = "mat" in rows[0]
    headings = ("prompts", "count", "accuracy", "95 %", "ECE", "confidence")
    for heading in (*headings, *(("MAT", "best MAT") if measured else ())):
        table.add_column(heading, justify="left" if heading == "prompts" else "right")
    for row in rows:
        low, high = row["accuracy_ci95"]
        table.add_row(
            row["prompts"] + (", unseen rephrasing" if row.get("unseen_kind") else ""),
            str(row["num_prompts"]),
            f"{row['accuracy']:.1%}",
            f"{low:.1%} - {high:.1%}",
            f"{row['ece']:.3f}",
            f"{row['confidence']:.2f}",
            *((f"{row['mat']:.2f}", f"{row['best_mat']:.2f}") if measured else ()),
        )
    by_label = titled("accuracy by label")
    by_label.add_column("label")
    for row in rows:
        by_label.add_column(row["prompts"], justify="right")
    for label in rows[0]["by_label"]:
        shares = [row["by_label"].get(label) for row in rows]
        by_label.add_row(label, *("" if share is None else f"{share:.0%}" for share in shares))
    table_console().print(table)
    table_console().print(by_label)


def print_joint_selection(curves: Mapping[str, Any]) -> None:
    """Print replayed tokens/s, best first."""
    table = titled(REPLAYED.format(curves["profile"]))
    for heading in ("arm or selector", "tokens/s", "faster than the best arm"):
        table.add_column(heading, justify="left" if heading.startswith("arm") else "right")
    for row in sorted(curves["replayed"], key=lambda row: -row["tokens_per_s"]):
        wins = f"on {100 * row['faster_on']:.0f} % of answers" if "faster_on" in row else ""
        table.add_row(row["name"], f"{row['tokens_per_s']:.2f}", wins)
    table_console().print(table)


def print_profile(profile: LatencyProfile) -> None:
    """Print the cost of a cycle and the prediction errors."""
    table = titled(f"milliseconds on {profile.device}, {profile.dtype}")
    for heading in ("step", "terms", "held-out error"):
        table.add_column(heading)
    for step in STEPS:
        cells = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in profile.seconds[step].items() if value > 1e-6)
        error = profile.errors.get(step)
        table.add_row(step, cells, "" if error is None else f"{100 * error:.1f} %")
    token_s = float(profile.token_s(np.array([CONTEXT]))[0])
    table.add_row(f"autoregressive token at {CONTEXT}", f"{1e3 * token_s:.2f}", "")
    table.add_row("an answer", "scaled by probes just before and after it", f"{100 * profile.errors['total']:.1f} %")
    scale = profile.errors["autoregressive_scale"]
    table.add_row("", f"scaled by {scale:.3f}, from all probes", f"{100 * profile.errors['total_unscaled']:.1f} %")
    table_console().print(table)


def print_replayed_schedules(rows: Sequence[dict[str, Any]], device: str) -> None:
    """Print replayed schedules."""
    table = titled(REPLAYED.format(device), f"{MAT_LEGEND}; {TREE_LEGEND}")
    for heading in ("schedule", "MAT", "tokens/s", "over best static", "trees used"):
        table.add_column(heading, justify="left" if heading == "schedule" else "right")
    static = next(row["tokens_per_s"] for row in rows if row["name"].startswith("best static tree"))
    for row in rows:
        mat = "" if row["mat"] is None else f"{row['mat']:.2f}"
        gain = f"{100 * (row['tokens_per_s'] / static - 1):+.1f} %"
        table.add_row(row["name"], mat, f"{row['tokens_per_s']:.2f}", gain, str(row["actions"] or ""))
    table_console().print(table)


def format_gain(ratio: float, bounds: Sequence[float] | None) -> str:
    """A ratio of speeds as a gain in percent, with its 95 % interval."""
    text = f"{100 * (ratio - 1):+.1f} %"
    return text if bounds is None else f"{text} ({' .. '.join(f'{100 * (bound - 1):+.1f}' for bound in bounds)})"


def print_live_schedules(rows: Sequence[dict[str, Any]]) -> None:
    """Print schedules that were decoded live."""
    if not rows:
        return
    legend = (
        "over best static: with a 95 % interval; p: one-sided test of being faster than it; policy: its share of the "
        "time of a cycle"
    )
    table = titled(f"live, one request at a time{_sampled(rows)}", f"{LEGEND}; {TREE_LEGEND}; {legend}")
    for heading in ("method", "MAT", "tokens/s", "speed-up", "95 %", "over best static", "p", "policy", "mismatches"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        p = row["p_over_best_static"]
        table.add_row(
            row["method"],
            f"{row['mat']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}x",
            format_interval(row),
            format_gain(row["over_best_static"], row.get("over_best_static_ci95")),
            "" if p is None else f"{p:.1g}",
            f"{100 * row['policy_share']:.2f} %",
            str(row["mismatches"]),
        )
    table_console().print(table)
