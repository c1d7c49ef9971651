"""Compares two reports and tells whether the second is significantly worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.stats import wilcoxon

from drafterforge.errors import ArtifactError
from drafterforge.reporting.noise import join_names
from drafterforge.reporting.reader import (
    count,
    curves_of,
    interval,
    is_live,
    is_strict,
    mapping,
    number,
    numbers,
    records,
    rows_of,
    text,
)
from drafterforge.reporting.report_table import format_number
from drafterforge.reporting.tables import format_interval
from drafterforge.reporting.verdict import lossless_faults

MAT_TOLERANCE = 0.01  # relative decrease of MAT that near ties may cause
SLOWER = 0.95  # a significant decrease of tokens/s below this share is a regression
SIGNIFICANT = 0.05
IDENTITY = ("method", "domain", "dtype", "temperature", "batch_size", "axis", "at")  # keys of a row
MAX_NAMES = 5  # printed rows that only one report has
RULE = (
    "A regression is one of these. More mismatches in float32 or invariant numerics. On the same requests, a MAT lower "
    "by more than 1 %, or significantly lower (paired one-sided Wilcoxon test over requests, p < 0.05). On the same "
    "device, a speed-up whose 95 % interval lies below the earlier one, or tokens/s lower by more than 5 % and "
    "significantly. Schedules, and tokens/s without times of each request, are shown but not judged."
)
Report = Mapping[str, Any]


@dataclass(frozen=True)
class FigurePair:
    """One figure in both reports."""

    row: str
    figure: str
    before: str
    after: str
    change: str = ""
    fault: str = ""  # reason why it is a regression; empty: it is none


@dataclass(frozen=True)
class Comparison:
    """Figures of both reports, names of rows of only one, and notes."""

    pairs: list[FigurePair]
    only_before: list[str]
    only_after: list[str]
    notes: list[str]

    @property
    def faults(self) -> list[str]:
        """One line for each significant regression."""
        return [f"{pair.row}: {pair.fault}" for pair in self.pairs if pair.fault]


def compare_reports(before: Report, after: Report) -> Comparison:
    """Compare all rows, drafters by domain and schedules in both reports; ArtifactError if they share none."""
    old, new = _keyed(before), _keyed(after)
    shared = [key for key in old if key in new]
    same_device = before.get("device") == after.get("device")
    pairs = [pair for key in shared for pair in _row(before, after, old[key], new[key], _name(key, old), same_device)]
    exact = _same_stream(before, after) and any(_same_requests(old[key], new[key]) for key in shared)
    pairs += [*_domains(before, after, exact), *_schedules(before, after)]
    if not pairs:
        raise ArtifactError("the two reports have no row in common; compare reports of the same suite")
    pairs += _batches(before, after)
    pairs += [
        FigurePair(
            _name(key, new),
            "mismatches",
            "",
            format_number(new[key].get("mismatches"), ".0f"),
            fault="mismatches in a new row",
        )
        for key in new
        if key not in old and count(new[key].get("mismatches")) and is_strict(after, new[key])
    ]
    notes = [] if same_device else ["measured on different devices: speed is shown, not judged"]
    if not _same_stream(before, after):
        notes.append("different target, suite or seed: MAT and speed-ups are shown, not judged")
    only_before = [_name(key, old) for key in old if key not in new]
    return Comparison(pairs, only_before, [_name(key, new) for key in new if key not in old], notes)


def _keyed(report: Report) -> dict[tuple, Mapping[str, Any]]:
    """Rows by identity; further rows with an equal identity are numbered."""
    by_key: dict[tuple, Mapping[str, Any]] = {}
    for row in rows_of(report):
        identity = [text(row.get(key)) for key in IDENTITY]
        key, ordinal = (*identity, is_live(row), 1), 1
        while key in by_key:
            ordinal += 1
            key = (*identity, is_live(row), ordinal)
        by_key[key] = row
    return by_key


def _name(key: tuple, rows: Mapping[tuple, Any]) -> str:
    """The method, with the domain, dtype, place on an axis and number that distinguish it from other rows."""
    method, domain, dtype, _, _, axis, at, live, ordinal = key
    extra = [domain] if domain and len({other_key[1] for other_key in rows}) > 1 else []
    extra += [dtype] if dtype and len({other_key[2] for other_key in rows if other_key[-2]}) > 1 else []
    extra += [f"{axis} {at}"] if axis else []
    extra += ["replayed"] if not live else []
    extra += [str(ordinal)] if ordinal > 1 else []
    return f"{method} ({', '.join(extra)})" if extra else method


def _same_stream(before: Report, after: Report) -> bool:
    """Whether both reports have the same target, suite and seed."""
    targets = [mapping(report.get("target")).get("fingerprint") for report in (before, after)]
    return targets[0] == targets[1] and all(before.get(key) == after.get(key) for key in ("suite", "seed"))


def _same_requests(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both rows have equal numbers of prompts and tokens."""
    return all(number(old.get(key)) == number(new.get(key)) is not None for key in ("num_prompts", "num_tokens"))


def _row(
    before: Report, after: Report, old: Mapping[str, Any], new: Mapping[str, Any], name: str, same_device: bool
) -> Iterator[FigurePair]:
    count_before, count_after = (number(row.get("mismatches")) for row in (old, new))
    if count_after is not None:
        worse = count(count_after) > count(count_before) and is_strict(after, new)
        fault = f"{count(count_after)} mismatches, {count(count_before)} before" if worse else ""
        yield FigurePair(
            name, "mismatches", format_number(count_before, ".0f"), format_number(count_after, ".0f"), fault=fault
        )
    requests = _requests(before, old), _requests(after, new)
    paired = requests[0] and [tokens for tokens, *_ in requests[0]] == [tokens for tokens, *_ in requests[1]]
    mats = [number(row.get("mat")) for row in (old, new)]
    if None not in mats:
        fault = ""
        if _same_stream(before, after) and _same_requests(old, new):
            p = _lower_p(*([tokens / cycles for tokens, cycles, _ in part] for part in requests)) if paired else 1.0
            if mats[1] < mats[0] * (1 - MAT_TOLERANCE) or (p < SIGNIFICANT and mats[1] < mats[0]):
                fault = f"MAT {mats[1]:.3f} is lower than {mats[0]:.3f} on the same requests"
        yield FigurePair(name, "MAT", f"{mats[0]:.3f}", f"{mats[1]:.3f}", _change(*mats), fault)
    ratios = [number(row.get("speedup")) for row in (old, new)]
    if None not in ratios:
        bounds = [interval(row) for row in (old, new)]
        apart = None not in bounds and bounds[1][1] < bounds[0][0] and same_device and _same_stream(before, after)
        fault = f"speed-up {format_interval(new)} lies below {format_interval(old)}" if apart else ""
        cells = [f"{ratio:.2f}x {format_interval(row)}".rstrip() for ratio, row in zip(ratios, (old, new), strict=True)]
        yield FigurePair(name, "speed-up", *cells, _change(*ratios), fault)
    rates = [number(row.get("tokens_per_s")) for row in (old, new)]
    if None not in rates:
        fault = ""
        if paired and same_device and all(seconds for part in requests for *_, seconds in part):
            p = _lower_p(*([tokens / seconds for tokens, _, seconds in part] for part in requests))
            slower = p < SIGNIFICANT and rates[1] < SLOWER * rates[0]
            fault = f"{rates[1]:.1f} tokens/s, {rates[0]:.1f} before (paired p {p:.2g})" if slower else ""
        yield FigurePair(name, "tokens/s", f"{rates[0]:.1f}", f"{rates[1]:.1f}", _change(*rates), fault)


def _requests(report: Report, row: Mapping[str, Any]) -> list[tuple[float, float, float | None]]:
    """Tokens, cycles and seconds of each request of a row; empty unless they add up to the row."""
    entries = mapping(curves_of(report).get("per_request")).get(str(row.get("method")))
    requests = []
    for entry in entries if isinstance(entries, list) else []:
        figures = numbers(entry[:2]) if isinstance(entry, list) else []
        if len(figures) != 2 or figures[1] <= 0:
            return []
        requests.append((figures[0], figures[1], number(entry[2]) if len(entry) > 2 else None))
    sums = [len(requests), sum(tokens for tokens, *_ in requests), sum(cycles for _, cycles, _ in requests)]
    return requests if sums == [number(row.get(key)) for key in ("num_prompts", "num_tokens", "num_cycles")] else []


def _lower_p(before: list[float], after: list[float]) -> float:
    """One-sided Wilcoxon signed-rank p of `after` not being lower; 1 if they are equal."""
    return 1.0 if before == after else float(wilcoxon(after, before, alternative="less").pvalue)


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def _domains(before: Report, after: Report, exact: bool) -> Iterator[FigurePair]:
    """MAT of each drafter alone on each domain."""
    old, new = (mapping(curves_of(report).get("mat_by_domain")) for report in (before, after))
    for domain in old:
        for drafter, value in mapping(old[domain]).items():
            mats = number(value), number(mapping(new.get(domain)).get(drafter))
            if None in mats:
                continue
            lower = exact and mats[1] < mats[0] * (1 - MAT_TOLERANCE)
            fault = f"MAT {mats[1]:.3f} is lower than {mats[0]:.3f} on the same requests" if lower else ""
            yield FigurePair(
                f"{text(drafter)} on {text(domain)}", "MAT", *(f"{m:.3f}" for m in mats), _change(*mats), fault
            )


def _schedules(before: Report, after: Report) -> Iterator[FigurePair]:
    old, new = (
        {text(row.get("name")): number(row.get("tokens_per_s")) for row in records(curves_of(report).get("replayed"))}
        for report in (before, after)
    )
    for name, rate_before in old.items():
        if rate_before is not None and (rate_after := new.get(name)) is not None:
            yield FigurePair(
                f"{name} (replayed)",
                "tokens/s",
                f"{rate_before:.2f}",
                f"{rate_after:.2f}",
                _change(rate_before, rate_after),
            )


def _batches(before: Report, after: Report) -> Iterator[FigurePair]:
    """Regressions of the text of live batches."""
    faults_before = lossless_faults(before)
    for fault in lossless_faults(after):
        if "live answers in batches" in fault and fault not in faults_before:
            name, _, why = fault.rpartition(": ")
            yield FigurePair(name, "text in batches", "", "differs", fault=why)


def print_comparison(comparison: Comparison, names: tuple[str, str], console: Console, max_pairs: int = 400) -> None:
    """Print all figures, regressions in red, and the rule."""
    table = Table(title=escape(f"before: {names[0]}; after: {names[1]}"), title_justify="left")
    for heading in ("row", "figure", "before", "after", "change", ""):
        table.add_column(heading, justify="left" if heading in ("row", "figure", "") else "right")
    for pair in comparison.pairs[:max_pairs]:
        cells = [escape(cell) for cell in (pair.row, pair.figure, pair.before, pair.after, pair.change)]
        table.add_row(*cells, "regression" if pair.fault else "", style="bold red" if pair.fault else None)
    console.print(table)
    for title, rows in (("only before", comparison.only_before), ("only after", comparison.only_after)):
        if rows:
            console.print(f"{title}: {escape(join_names(rows, MAX_NAMES))}")
    for note in (*comparison.notes, RULE):
        console.print(escape(note))
