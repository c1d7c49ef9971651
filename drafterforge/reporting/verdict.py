"""A report in words: what to run, how much faster it is, whether it is lossless; and why a report has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import wilcoxon

from drafterforge.evaluation.lossless import NEAR_TIE
from drafterforge.evaluation.rows import LEAST_PAIRS
from drafterforge.evaluation.statistics import holm
from drafterforge.reporting.noise import named, noise_of
from drafterforge.reporting.reader import (
    count,
    curves_of,
    interval,
    is_baseline,
    is_live,
    is_strict,
    mapping,
    number,
    numbers,
    records,
    text,
    whole_rows,
)

Row = Mapping[str, Any]
Report = Mapping[str, Any]
SIGNIFICANT = 0.05
INVARIANT = (
    "invariant numerics: a token's logits are bit-identical whatever is verified beside it, so texts can be compared"
)
TITLES = {
    "quick": "Quick evaluation of",
    "domains": "Evaluation by domain of",
    "mixed": "Evaluation on a mixed stream of",
    "ood": "Evaluation on rephrased prompts of",
    "papers": "Evaluation on the papers' benchmarks of",
    "scaling": "Scaling of",
}


@dataclass(frozen=True)
class Summary:
    """What a reader wants first."""

    state: str  # lossless, lossy, differs (half precision, fast), unsettled (at near ties) or unchecked
    headline: str  # of that state
    details: list[str]  # of that state
    sentences: list[str]  # what to run and how much faster it is
    noise: list[str] = field(default_factory=list)  # signs that the times are noisy


def failed(report: Mapping[str, Any]) -> list[str]:
    """Why the report is not of a lossless decoder, a line each; empty if it may be.

    Mismatches are faults in float32 and in invariant numerics.  Text of live batches that differs counts too, unless
    it is float32 at a margin under `NEAR_TIE`, where rounding decides.
    """
    found = []
    for row in whole_rows(report):
        wrong = count(row.get("mismatches"))
        if wrong and is_strict(report, row):
            precision = f"{text(row.get('dtype', report.get('dtype')))}, {_numerics(report, row)}"
            found.append(
                f"{_name(row)}: {wrong} of {count(row.get('num_prompts'))} answers differ from autoregressive decoding"
                f" ({precision})"
            )
    for one in records(curves_of(report).get("live")):
        wrong = [other for other in records(one.get("other_text")) if _stands(report, other)]
        if wrong and is_strict(report, one):
            found.append(f"{text(one.get('method'))}: {len(wrong)} live answers in batches differ")
    return found


def _stands(report: Mapping[str, Any], mismatch: Mapping[str, Any]) -> bool:
    margin = number(mismatch.get("margin"))
    tie = margin is not None and margin < NEAR_TIE and report.get("numerics") != "invariant"
    return not mismatch.get("rerun") and not tie


def summarize(report: Mapping[str, Any]) -> Summary:
    """The words at the top of a report."""
    state, headline, details = _lossless(report)
    sentences = [*_fastest(report), *_replayed(report), *_schedules(report)]
    return Summary(state, headline, details, sentences, noise_of(report))


def _lossless(report: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    faults = failed(report)
    checked = [row for row in whole_rows(report) if is_live(row) and not is_baseline(row)]
    checked = [row for row in checked if number(row.get("mismatches")) is not None]
    live = records(curves_of(report).get("live"))
    wrong = sum(count(row.get("mismatches")) for row in whole_rows(report))
    if faults:
        strict = sum(count(row.get("mismatches")) for row in whole_rows(report) if is_strict(report, row))
        batched = sum(
            _stands(report, one) for other in live for one in records(other.get("other_text")) if is_strict(report, {})
        )
        return "lossy", f"NOT LOSSLESS: {_many(strict + batched, 'mismatch', 'mismatches')}", faults
    if wrong:
        kinds = sorted({text(row.get("dtype")) for row in checked if count(row.get("mismatches"))})
        reason = "in half precision with fast numerics rounding may decide near ties; margins are listed below"
        return "differs", f"{_many(wrong, 'answer differs', 'answers differ')} in {', '.join(kinds)}", [reason]
    loose = _loose_ends(live)
    if checked:
        answers = sum(count(row.get("num_prompts")) for row in checked)
        kinds = sorted({f"{text(row.get('dtype', report.get('dtype')))}, {_numerics(report, row)}" for row in checked})
        said = f"{_many(answers, 'answer', 'answers')} compared with autoregressive decoding ({'; '.join(kinds)})"
        headline = "No mismatch one by one, but not settled in batches" if loose else "Lossless: 0 mismatches"
        invariant = any(row.get("numerics", report.get("numerics")) == "invariant" for row in checked)
        return "unsettled" if loose else "lossless", headline, [said, *([INVARIANT] if invariant else []), *loose]
    if loose:
        return "unsettled", "Not settled whether it is lossless", loose
    if live:
        return "lossless", "Lossless: 0 mismatches", ["every live answer in batches is that of autoregressive decoding"]
    said = "everything here was replayed, so no answer was compared with autoregressive decoding"
    return "unchecked", "Not checked whether it is lossless", [said]


def _loose_ends(live: Sequence[Mapping[str, Any]]) -> list[str]:
    """Texts that differ in batches without being a fault, or with nothing known about the margin."""
    unknown = sum(count(one.get("other_text")) for one in live)
    ties = sum(not other.get("rerun") for one in live for other in records(one.get("other_text")))
    said = []
    if unknown:
        differ = _many(unknown, "live answer differs", "live answers differ")
        said.append(f"{differ} in batches, at a margin that this older report does not name")
    if ties:
        differ = _many(ties, "live answer differs", "live answers differ")
        said.append(f"{differ} in batches at a near tie, which rounding decides")
    return said


def _fastest(report: Mapping[str, Any]) -> list[str]:
    """One sentence for every domain that was decoded against a clock."""
    live = [row for row in whole_rows(report) if is_live(row) and number(row.get("speedup")) is not None]
    live = [row for row in live if not row.get("axis")] or live
    said = []
    for domain, dtype in dict.fromkeys((text(row.get("domain")), text(row.get("dtype"))) for row in live):
        here = [row for row in live if (text(row.get("domain")), text(row.get("dtype"))) == (domain, dtype)]
        sound = [r for r in here if not is_baseline(r) and not (count(r.get("mismatches")) and is_strict(report, r))]
        if not sound:
            continue
        where = ", ".join(one for one in (domain, dtype) if one)
        said.append(f"{_advice(report, sound)} ({where}).")
    if whole_rows(report) and not live:
        said.append("Nothing was timed in this report.")
    return said


def _advice(report: Report, rows: Sequence[Row]) -> str:
    """What to run: the fastest method; of those that are not significantly slower, the one with the fewest drafters."""
    best = max(rows, key=lambda row: number(row["speedup"]))
    bounds, requests = interval(best), _many(count(best.get("num_prompts")), "request", "requests")
    measured = f"“{_name(best)}” measured {_speedup(best)} over plain decoding on {requests}"
    if number(best["speedup"]) <= 1:
        return f"Run plain decoding: the best of the others, {measured}"
    if not (bounds and bounds[0] > 1):
        return f"Nothing is shown to be faster than plain decoding: {measured}"
    others = [row for row in rows if row is not best and not is_baseline(row)]
    alike, p = _not_slower(report, best, others)
    simplest = min([best, *alike], key=lambda row: (_num_drafters(row), -number(row["speedup"])))
    if not alike:
        return f"{_run(report, best)}: {_speedup(best)} over plain decoding on {requests}" + (
            ", significantly faster than the others" if others else ""
        )
    test = "their intervals overlap" if p is None else f"smallest paired p = {p:.2g}"
    names = named([f"“{_name(row)}”" for row in alike])
    chosen = "" if simplest is best else f", the simplest of them: {_speedup(simplest)}"
    return f"{_run(report, simplest)}{chosen}; {measured}, which does not differ significantly from {names} ({test})"


def _speedup(row: Row) -> str:
    bounds = interval(row)
    return f"{number(row['speedup']):.2f}x" + (f", 95 % interval {bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "")


def _run(report: Report, row: Row) -> str:
    """The command that decodes with the row's method, or its name."""
    command = text(mapping(curves_of(report).get("commands")).get(_name(row)), most=1000)
    return f"Type `{command}` for “{_name(row)}”" if command else f"Run “{_name(row)}”"


def _num_drafters(row: Row) -> int:
    drafters = row.get("drafters")
    return len(drafters) if isinstance(drafters, list) else 0


def _not_slower(report: Report, best: Row, others: Sequence[Row]) -> tuple[list[Row], float | None]:
    """Rows that are not significantly slower than the best, and the smallest corrected p of those that are tested.

    Paired Wilcoxon over the requests' tokens/s, corrected together (Holm); intervals that overlap where the report
    does not hold the requests.
    """
    rates, bounds = requests_of(report, best), interval(best)
    tested = [(row, requests_of(report, row)) for row in others]
    if len(rates) < LEAST_PAIRS or not all(len(other) == len(rates) for _, other in tested):
        overlapping = [row for row in others if (own := interval(row)) and bounds and own[1] >= bounds[0]]
        return overlapping, None
    ps = holm([1.0 if rates == other else float(wilcoxon(rates, other).pvalue) for _, other in tested])
    alike = [(row, p) for (row, _), p in zip(tested, ps, strict=True) if p >= SIGNIFICANT]
    return [row for row, _ in alike], min((p for _, p in alike), default=None)


def requests_of(report: Report, row: Row) -> list[float]:
    """Tokens/s of each request of a row, if the report holds them and they add up to the row."""
    given = mapping(curves_of(report).get("per_request")).get(str(row.get("method")))
    figures = [numbers(one) for one in given] if isinstance(given, list) else []
    if any(len(one) != 3 or one[2] <= 0 for one in figures) or len(figures) != number(row.get("num_prompts")):
        return []
    if sum(tokens for tokens, *_ in figures) != number(row.get("num_tokens")):
        return []
    return [tokens / seconds for tokens, _, seconds in figures]


def _replayed(report: Mapping[str, Any]) -> list[str]:
    """The best selector beside the best static drafter and hindsight."""
    rows = [row for row in whole_rows(report) if not is_live(row) and number(row.get("mat")) is not None]
    kinds = {
        "static": [row for row in rows if row.get("selector") == "static"],
        "oracle": [row for row in rows if row.get("selector") == "oracle"],
        "other": [row for row in rows if row.get("selector") not in ("static", "oracle")],
    }
    best = {kind: max(many, key=lambda row: number(row["mat"])) for kind, many in kinds.items() if many}
    if not best:
        return []
    words = {"other": "the best selector", "static": "the best drafter alone", "oracle": ""}
    parts = []
    for kind in ("other", "static", "oracle"):
        if kind in best:
            name = f"{words[kind]} “{_name(best[kind])}”" if words[kind] else f"“{_name(best[kind])}”"
            parts.append(f"{name} {number(best[kind]['mat']):.2f}")
    answers = _many(count(rows[0].get("num_prompts")), "answer", "answers")
    return [f"MAT (mean tokens that a cycle emits), replayed exactly on {answers}: {'; '.join(parts)}."]


def _schedules(report: Mapping[str, Any]) -> list[str]:
    """The best schedule or joint selector over the best static one."""
    rows = [one for one in records(curves_of(report).get("replayed")) if number(one.get("tokens_per_s"))]
    base = next(
        (row for row in rows if text(row.get("name")).startswith(("best static tree", "best arm of the"))), None
    )
    tried = [row for row in rows if not text(row.get("name")).startswith(BOUNDS) and row is not base]
    if base is None or not tried:
        return []
    best = max(tried, key=lambda row: number(row["tokens_per_s"]))
    gain = 100 * (number(best["tokens_per_s"]) / number(base["tokens_per_s"]) - 1)
    return [f"Schedules, replayed: “{text(best['name'])}” {gain:+.1f} % tokens/s over “{text(base['name'])}”."]


BOUNDS = ("perfect foresight", "best static tree of", "best arm of each", "no drafting")  # nobody can run these


def _name(row: Row) -> str:
    return text(row.get("method", row.get("name"))) or "unnamed"


def _numerics(report: Mapping[str, Any], row: Row) -> str:
    return f"{text(row.get('numerics', report.get('numerics'))) or 'unknown'} numerics"


def _many(number_of: int, one: str, many: str) -> str:
    return f"{number_of:,} {one if number_of == 1 else many}"


def heading_of(report: Mapping[str, Any]) -> str:
    """Title of the report."""
    target, suite = text(mapping(report.get("target")).get("name")), text(report.get("suite")) or "report"
    if target and suite in TITLES:
        return f"{TITLES[suite]} {target}"
    return f"{suite[0].upper()}{suite[1:]}" + (f", target {target}" if target else "")


def byline_of(report: Mapping[str, Any]) -> str:
    """Where and when it was measured, in one line."""
    measured = dict(particulars(report))
    numerics = [f"{measured['numerics']} numerics"] if "numerics" in measured else []
    parts = [measured.get("device"), measured.get("dtype"), *numerics, measured.get("created")]
    return " · ".join(part for part in parts if part)


def particulars(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where and how it was measured."""
    target = mapping(report.get("target"))
    found = [
        ("target", target.get("name")),
        ("fingerprint", target.get("fingerprint")),
        ("device", report.get("device") or curves_of(report).get("profile")),
        ("dtype", report.get("dtype")),
        ("numerics", report.get("numerics")),
        ("seed", report.get("seed")),
        ("created", report.get("created")),
        ("drafterforge", report.get("drafterforge_version")),
    ]
    return [(key, text(value)) for key, value in found if value is not None and text(value)]
