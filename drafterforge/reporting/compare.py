"""Compares two reports and tells whether the second is significantly worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    name_with,
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
    "device and prompts, a speed-up whose 95 % interval lies below the earlier one, or tokens/s lower by more than 5 % "
    "and significantly. Schedules, and tokens/s without times of each request, are shown but not judged."
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
    judged: bool = False  # whether a loss would have been a regression; mismatches are judged in any case


@dataclass(frozen=True)
class Comparison:
    """Figures of both reports, names of rows of only one, and notes."""

    pairs: list[FigurePair]
    only_before: list[str]
    only_after: list[str]
    notes: list[str]

    @property
    def unjudged(self) -> str:
        """Why neither MAT nor speed could be judged; empty if one of them was."""
        if any(pair.judged for pair in self.pairs):
            return ""
        note = self.notes[0].partition(":")[0] if self.notes else ""
        return note or "no row has the same number of answers and tokens in both reports"

    @property
    def faults(self) -> list[str]:
        """One line for each significant regression."""
        return [f"{pair.row}: {pair.fault}" for pair in self.pairs if pair.fault]


def compare_reports(before: Report, after: Report) -> Comparison:
    """Compare all rows, drafters by domain and schedules in both reports; ArtifactError if they share none."""
    old, new = _keyed(before), _keyed(after)
    shared = [key for key in old if key in new]
    same_device, difference = before.get("device") == after.get("device"), _other_prompts(before, after)
    pairs = [pair for key in shared for pair in _row(before, after, old[key], new[key], _name(key, old), same_device)]
    exact = not difference and any(_same_requests(old[key], new[key]) for key in shared)
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
    notes = [f"different {difference}: MAT and speed are shown, not judged"] if difference else []
    notes += [] if same_device else ["measured on different devices: speed is shown, not judged"]
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
    _, domain, dtype, *_, live, ordinal = key
    extra = [domain] if domain and len({other_key[1] for other_key in rows}) > 1 else []
    extra += [dtype] if dtype and len({other_key[2] for other_key in rows if other_key[-2]}) > 1 else []
    extra += ["replayed"] if not live else []
    extra += [str(ordinal)] if ordinal > 1 else []
    return name_with(rows[key], extra)


def _other_prompts(before: Report, after: Report) -> str:
    """What decides the prompts or their answers and differs; empty: nothing that both reports name."""
    targets = [mapping(report.get("target")).get("fingerprint") for report in (before, after)]
    if targets[0] != targets[1]:
        return "target"
    if key := next((key for key in ("suite", "seed") if before.get(key) != after.get(key)), ""):
        return key
    old, new = _prompts(before), _prompts(after)
    key = next((key for key in old if old[key] != new.get(key)), "") if old and new else ""
    return f"suite.{key}" if key not in ("", "questions") else key


def _prompts(report: Report) -> Mapping[str, Any]:
    """The curve `prompts`; empty in reports that were written without it."""
    return mapping(curves_of(report).get("prompts"))


def _comparable(before: Report, after: Report, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both rows have the same prompts.  Older reports do not name them: then answers and tokens are counted."""
    is_known = _prompts(before) and _prompts(after)
    return not _other_prompts(before, after) and bool(is_known or _same_requests(old, new))


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
    requests, comparable = (_requests(before, old), _requests(after, new)), _comparable(before, after, old, new)
    paired = requests[0] and [tokens for tokens, *_ in requests[0]] == [tokens for tokens, *_ in requests[1]]
    mats = [number(row.get("mat")) for row in (old, new)]
    if None not in mats:
        fault, judged = "", comparable and _same_requests(old, new)
        if judged:
            p = _mat_p(*requests) if paired else 1.0
            if mats[1] < mats[0] * (1 - MAT_TOLERANCE) or (p < SIGNIFICANT and mats[1] < mats[0]):
                fault = f"MAT {mats[1]:.3f} is lower than {mats[0]:.3f} on the same requests"
        yield FigurePair(name, "MAT", f"{mats[0]:.3f}", f"{mats[1]:.3f}", _change(*mats), fault, judged)
    ratios = [number(row.get("speedup")) for row in (old, new)]
    if None not in ratios:
        bounds = [interval(row) for row in (old, new)]
        judged = None not in bounds and same_device and comparable
        apart = judged and bounds[1][1] < bounds[0][0]
        fault = f"speed-up {format_interval(new)} lies below {format_interval(old)}" if apart else ""
        cells = [f"{ratio:.2f}x {format_interval(row)}".rstrip() for ratio, row in zip(ratios, (old, new), strict=True)]
        yield FigurePair(name, "speed-up", *cells, _change(*ratios), fault, judged)
    rates = [number(row.get("tokens_per_s")) for row in (old, new)]
    if None not in rates:
        fault, timed = "", all(seconds for part in requests for *_, seconds in part)
        if judged := bool(paired) and timed and same_device and comparable:
            p = _lower_p(*([tokens / seconds for tokens, _, seconds in part] for part in requests))
            slower = p < SIGNIFICANT and rates[1] < SLOWER * rates[0]
            fault = f"{rates[1]:.1f} tokens/s, {rates[0]:.1f} before (paired p {p:.2g})" if slower else ""
        yield FigurePair(name, "tokens/s", f"{rates[0]:.1f}", f"{rates[1]:.1f}", _change(*rates), fault, judged)


def _requests(report: Report, row: Mapping[str, Any]) -> list[tuple[float, float, float | None]]:
    """Tokens, cycles and seconds of each request of a row; empty unless they add up to the row, or on an axis."""
    if row.get("axis"):  # requests are recorded off the axes only
        return []
    entries = mapping(curves_of(report).get("per_request")).get(str(row.get("method")))
    requests = []
    for entry in entries if isinstance(entries, list) else []:
        figures = numbers(entry[:2]) if isinstance(entry, list) else []
        if len(figures) != 2 or figures[1] < 0:
            return []
        requests.append((figures[0], figures[1], number(entry[2]) if len(entry) > 2 else None))
    sums = [len(requests), sum(tokens for tokens, *_ in requests), sum(cycles for _, cycles, _ in requests)]
    return requests if sums == [number(row.get(key)) for key in ("num_prompts", "num_tokens", "num_cycles")] else []


def _mat_p(before: Sequence[tuple], after: Sequence[tuple]) -> float:
    """`_lower_p` of tokens a cycle; an answer of one token has no cycle, so that it is left out of both."""
    pairs = [
        (tokens / cycles, new_tokens / new_cycles)
        for (tokens, cycles, _), (new_tokens, new_cycles, _) in zip(before, after, strict=True)
        if cycles > 0 and new_cycles > 0
    ]
    return _lower_p([mat for mat, _ in pairs], [mat for _, mat in pairs])


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
                f"{text(drafter)} on {text(domain)}", "MAT", *(f"{m:.3f}" for m in mats), _change(*mats), fault, exact
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
