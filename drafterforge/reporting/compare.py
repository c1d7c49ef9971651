"""Two reports side by side, and whether the second one is significantly worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.stats import wilcoxon

from drafterforge.errors import ArtifactError
from drafterforge.reporting.noise import named
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
from drafterforge.reporting.tables import range_of, shown
from drafterforge.reporting.verdict import failed

MAT_TOLERANCE = 0.01  # share by which MAT may fall: near ties move a cycle or two in a thousand
SLOWER = 0.95  # tokens/s of paired requests below this share of the earlier ones are slower, if p says so
SIGNIFICANT = 0.05
MOST_NAMES = 5  # of rows that only one report has
RULE = (
    "A regression is: more mismatches in float32 or invariant numerics; MAT on the same requests lower by more than "
    "1 %, or by a paired one-sided Wilcoxon test of each request (p < 0.05); on the same device, a speed-up whose "
    "95 % interval lies below the earlier one, or tokens/s lower by more than 5 % by that test. Tokens/s without times "
    "of each request and schedules are shown, not judged."
)
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """One figure of both reports."""

    row: str
    figure: str
    before: str
    after: str
    change: str = ""
    fault: str = ""  # why it is a regression


@dataclass(frozen=True)
class Comparison:
    """What both reports have, and what only one has."""

    pairs: list[Pair]
    gone: list[str]
    new: list[str]
    notes: list[str]

    @property
    def faults(self) -> list[str]:
        """Every significant regression, a line each."""
        return [f"{pair.row}: {pair.fault}" for pair in self.pairs if pair.fault]


def compare_reports(before: Report, after: Report) -> Comparison:
    """Every row, drafter by domain and schedule that both reports have; ArtifactError if there is none."""
    old, new = _keyed(before), _keyed(after)
    both = [key for key in old if key in new]
    same_device = before.get("device") == after.get("device")
    pairs = [pair for key in both for pair in _row(before, after, old[key], new[key], _name(key, old), same_device)]
    exact = _same_stream(before, after) and any(_same_requests(old[key], new[key]) for key in both)
    pairs += [*_domains(before, after, exact), *_schedules(before, after)]
    if not pairs:
        raise ArtifactError("the two reports have no row in common; compare reports of the same suite")
    pairs += _batches(before, after)
    pairs += [
        Pair(
            _name(key, new), "mismatches", "", shown(new[key].get("mismatches"), ".0f"), fault="mismatches in a new row"
        )
        for key in new
        if key not in old and count(new[key].get("mismatches")) and is_strict(after, new[key])
    ]
    notes = [] if same_device else ["measured on different devices, so that speed is shown and not judged"]
    if not _same_stream(before, after):
        notes.append("other target, suite or seed, so that MAT and speed-ups are shown and not judged")
    gone = [_name(key, old) for key in old if key not in new]
    return Comparison(pairs, gone, [_name(key, new) for key in new if key not in old], notes)


def _keyed(report: Report) -> dict[tuple, Mapping[str, Any]]:
    """Rows by what they measured; a second row of the same kind has its number."""
    found: dict[tuple, Mapping[str, Any]] = {}
    for row in rows_of(report):
        what = [text(row.get(key)) for key in ("method", "domain", "dtype", "temperature", "batch_size")]
        key, place = (*what, is_live(row), 1), 1
        while key in found:
            place += 1
            key = (*what, is_live(row), place)
        found[key] = row
    return found


def _name(key: tuple, rows: Mapping[tuple, Any]) -> str:
    """The method, with what tells it from other rows."""
    method, domain, dtype, *_, live, place = key
    extra = [domain] if domain and len({other[1] for other in rows}) > 1 else []
    extra += [dtype] if dtype and len({other[2] for other in rows if other[5]}) > 1 else []
    extra += ["replayed"] if not live else []
    extra += [str(place)] if place > 1 else []
    return f"{method} ({', '.join(extra)})" if extra else method


def _same_stream(before: Report, after: Report) -> bool:
    """Whether both asked the same target the same things."""
    targets = [mapping(one.get("target")).get("fingerprint") for one in (before, after)]
    return targets[0] == targets[1] and all(before.get(key) == after.get(key) for key in ("suite", "seed"))


def _same_requests(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both rows decoded as many prompts to as many tokens."""
    return all(number(old.get(key)) == number(new.get(key)) is not None for key in ("num_prompts", "num_tokens"))


def _row(
    before: Report, after: Report, old: Mapping[str, Any], new: Mapping[str, Any], name: str, same_device: bool
) -> Iterator[Pair]:
    wrong, more = (number(row.get("mismatches")) for row in (old, new))
    if more is not None:
        worse = count(more) > count(wrong) and is_strict(after, new)
        fault = f"{count(more)} mismatches, {count(wrong)} before" if worse else ""
        yield Pair(name, "mismatches", shown(wrong, ".0f"), shown(more, ".0f"), fault=fault)
    requests = [_requests(one, row) for one, row in ((before, old), (after, new))]
    paired = requests[0] and [one[0] for one in requests[0]] == [one[0] for one in requests[1]]
    mats = [number(row.get("mat")) for row in (old, new)]
    if None not in mats:
        fault = ""
        if _same_stream(before, after) and _same_requests(old, new):
            p = _lower_p(*([tokens / cycles for tokens, cycles, _ in one] for one in requests)) if paired else 1.0
            if mats[1] < mats[0] * (1 - MAT_TOLERANCE) or (p < SIGNIFICANT and mats[1] < mats[0]):
                fault = f"MAT {mats[1]:.3f} is lower than {mats[0]:.3f} on the same requests"
        yield Pair(name, "MAT", f"{mats[0]:.3f}", f"{mats[1]:.3f}", _change(*mats), fault)
    ratios = [number(row.get("speedup")) for row in (old, new)]
    if None not in ratios:
        bounds = [interval(row) for row in (old, new)]
        apart = None not in bounds and bounds[1][1] < bounds[0][0] and same_device and _same_stream(before, after)
        fault = f"speed-up {range_of(new)} lies below {range_of(old)}" if apart else ""
        shown_ratios = [f"{ratio:.2f}x {range_of(row)}".rstrip() for ratio, row in zip(ratios, (old, new), strict=True)]
        yield Pair(name, "speed-up", *shown_ratios, _change(*ratios), fault)
    rates = [number(row.get("tokens_per_s")) for row in (old, new)]
    if None not in rates:
        fault = ""
        if paired and same_device and all(seconds for one in requests for *_, seconds in one):
            p = _lower_p(*([tokens / seconds for tokens, _, seconds in one] for one in requests))
            slower = p < SIGNIFICANT and rates[1] < SLOWER * rates[0]
            fault = f"{rates[1]:.1f} tokens/s, {rates[0]:.1f} before (paired p {p:.2g})" if slower else ""
        yield Pair(name, "tokens/s", f"{rates[0]:.1f}", f"{rates[1]:.1f}", _change(*rates), fault)


def _requests(report: Report, row: Mapping[str, Any]) -> list[tuple[float, float, float | None]]:
    """Tokens, cycles and seconds of each request of a row, if the report holds them and they add up to the row."""
    given = mapping(curves_of(report).get("per_request")).get(str(row.get("method")))
    found = []
    for one in given if isinstance(given, list) else []:
        figures = numbers(one[:2]) if isinstance(one, list) else []
        if len(figures) != 2 or figures[1] <= 0:
            return []
        found.append((figures[0], figures[1], number(one[2]) if len(one) > 2 else None))
    sums = [len(found), sum(tokens for tokens, *_ in found), sum(cycles for _, cycles, _ in found)]
    return found if sums == [number(row.get(key)) for key in ("num_prompts", "num_tokens", "num_cycles")] else []


def _lower_p(before: list[float], after: list[float]) -> float:
    """One-sided Wilcoxon signed-rank p that `after` is not lower; 1 if they never differ."""
    return 1.0 if before == after else float(wilcoxon(after, before, alternative="less").pvalue)


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def _domains(before: Report, after: Report, exact: bool) -> Iterator[Pair]:
    """Every drafter alone on every domain."""
    old, new = (mapping(curves_of(one).get("mat_by_domain")) for one in (before, after))
    for domain in old:
        for drafter, value in mapping(old[domain]).items():
            mats = number(value), number(mapping(new.get(domain)).get(drafter))
            if None in mats:
                continue
            lower = exact and mats[1] < mats[0] * (1 - MAT_TOLERANCE)
            fault = f"MAT {mats[1]:.3f} is lower than {mats[0]:.3f} on the same requests" if lower else ""
            yield Pair(f"{text(drafter)} on {text(domain)}", "MAT", *(f"{m:.3f}" for m in mats), _change(*mats), fault)


def _schedules(before: Report, after: Report) -> Iterator[Pair]:
    old, new = (
        {text(row.get("name")): number(row.get("tokens_per_s")) for row in records(curves_of(one).get("replayed"))}
        for one in (before, after)
    )
    for name, rate in old.items():
        if rate is not None and (other := new.get(name)) is not None:
            yield Pair(f"{name} (replayed)", "tokens/s", f"{rate:.2f}", f"{other:.2f}", _change(rate, other))


def _batches(before: Report, after: Report) -> Iterator[Pair]:
    """Answers of live batches that have become wrong."""
    known = failed(before)
    for fault in failed(after):
        if "live answers in batches" in fault and fault not in known:
            name, _, why = fault.rpartition(": ")
            yield Pair(name, "text in batches", "", "differs", fault=why)


def print_comparison(found: Comparison, names: tuple[str, str], console: Console, most: int = 400) -> None:
    """What changed: regressions in red, and the rule."""
    table = Table(title=escape(f"before: {names[0]}; after: {names[1]}"), title_justify="left")
    for heading in ("row", "figure", "before", "after", "change", ""):
        table.add_column(heading, justify="left" if heading in ("row", "figure", "") else "right")
    for pair in found.pairs[:most]:
        cells = [escape(one) for one in (pair.row, pair.figure, pair.before, pair.after, pair.change)]
        table.add_row(*cells, "regression" if pair.fault else "", style="bold red" if pair.fault else None)
    console.print(table)
    for title, rows in (("only before", found.gone), ("only after", found.new)):
        if rows:
            console.print(f"{title}: {escape(named(rows, MOST_NAMES))}")
    for note in (*found.notes, RULE):
        console.print(escape(note))
