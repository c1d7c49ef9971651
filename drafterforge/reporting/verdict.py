"""Summarizes a report: what to run, how much faster it is, whether it is lossless, and the faults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import wilcoxon

from drafterforge.config.evaluation import ALL
from drafterforge.config.names import AUTO
from drafterforge.evaluation.lossless import NEAR_TIE
from drafterforge.evaluation.rows import ALL_REQUESTS, MIN_PAIRS, OLD_PROMPTS
from drafterforge.evaluation.statistics import holm
from drafterforge.reporting.auto_tables import auto_sentences
from drafterforge.reporting.noise import join_names, noise_of
from drafterforge.reporting.reader import (
    axes_of,
    count,
    curves_of,
    interval,
    is_baseline,
    is_live,
    is_strict,
    mapping,
    name_with,
    number,
    numbers,
    overall_rows,
    records,
    rows_of,
    temperature_of,
    text,
)

Row = Mapping[str, Any]
Report = Mapping[str, Any]
SIGNIFICANT = 0.05
INVARIANT = "invariant numerics: a token's logits are bit-identical whether it is verified alone or in a tree"
TITLES = {
    "quick": "Quick evaluation of",
    "domains": "Evaluation by domain of",
    "mixed": "Evaluation on a mixed stream of",
    "ood": "Evaluation on rephrased prompts of",
    "papers": "Evaluation on the papers' benchmarks of",
    "scaling": "Scaling of",
    "auto": "Evaluation of the default on",
    "vllm": "Evaluation in vLLM of",
}


@dataclass(frozen=True)
class Summary:
    """The top of a report."""

    state: str  # lossless, lossy, differs (half precision, fast), unsettled (near ties) or unchecked
    headline: str
    details: list[str]
    sentences: list[str]  # what to run and how much faster it is
    noise: list[str] = field(default_factory=list)  # signs that the times are noisy


def lossless_faults(report: Mapping[str, Any]) -> list[str]:
    """Proofs that the decoder is not lossless, one line each; empty if there is none.

    Mismatches are faults in float32 and in invariant numerics.  Differing text of live batches is a fault too, unless
    it is float32 at a margin under `NEAR_TIE`, which is rounding.
    """
    faults = []
    for row in counted_rows(report):
        differing = count(row.get("mismatches"))
        if differing and is_strict(report, row):
            precision = f"{text(row.get('dtype', report.get('dtype')))}, {_numerics(report, row)}"
            name = name_with(row) or "unnamed"
            faults.append(
                f"{name}: {differing} of {count(row.get('num_prompts'))} answers differ from autoregressive "
                f"decoding ({precision})"
            )
    for check in records(curves_of(report).get("live")):
        differing = [mismatch for mismatch in records(check.get("other_text")) if _stands(report, mismatch)]
        if differing and is_strict(report, check):
            faults.append(f"{text(check.get('method'))}: {len(differing)} live answers in batches differ")
    return faults


def counted_rows(report: Report) -> list[Row]:
    """The rows whose answers are counted; of a replay of traffic without the parts that overlap with all requests."""
    rows = overall_rows(report)
    is_replay = any(row.get("domain") == ALL_REQUESTS for row in rows)
    return [row for row in rows if not is_replay or row.get("domain") in (ALL_REQUESTS, OLD_PROMPTS)]


def _stands(report: Mapping[str, Any], mismatch: Mapping[str, Any]) -> bool:
    margin = number(mismatch.get("margin"))
    tie = margin is not None and margin < NEAR_TIE and report.get("numerics") != "invariant"
    return not mismatch.get("rerun") and not tie


def summarize(report: Mapping[str, Any]) -> Summary:
    state, headline, details = _lossless(report)
    sentences = [*auto_sentences(report), *_fastest(report), *_replayed(report), *_schedules(report)]
    return Summary(state, headline, details, sentences, noise_of(report))


def _lossless(report: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    faults = lossless_faults(report)
    rows = counted_rows(report)
    checked = [row for row in rows if is_live(row) and not is_baseline(row)]
    checked = [row for row in checked if number(row.get("mismatches")) is not None]
    live = records(curves_of(report).get("live"))
    wrong = sum(count(row.get("mismatches")) for row in rows)
    if faults:
        strict = sum(count(row.get("mismatches")) for row in rows if is_strict(report, row))
        batched = sum(
            _stands(report, mismatch)
            for check in live
            for mismatch in records(check.get("other_text"))
            if is_strict(report, {})
        )
        return "lossy", f"NOT LOSSLESS: {_many(strict + batched, 'mismatch', 'mismatches')}", faults
    if wrong:
        kinds = sorted({text(row.get("dtype")) for row in checked if count(row.get("mismatches"))})
        reason = "with fast numerics in half precision, rounding decides near ties; the report lists the margins"
        return "differs", f"{_many(wrong, 'answer differs', 'answers differ')} in {', '.join(kinds)}", [reason]
    loose = _loose_ends(live)
    if checked:
        answers = sum(count(row.get("num_prompts")) for row in checked)
        kinds = sorted({f"{text(row.get('dtype', report.get('dtype')))}, {_numerics(report, row)}" for row in checked})
        note = f"{_many(answers, 'answer', 'answers')} compared with autoregressive decoding ({'; '.join(kinds)})"
        headline = "No mismatch one at a time; not settled in batches" if loose else "Lossless: 0 mismatches"
        invariant = any(row.get("numerics", report.get("numerics")) == "invariant" for row in checked)
        return "unsettled" if loose else "lossless", headline, [note, *([INVARIANT] if invariant else []), *loose]
    if loose:
        return "unsettled", "Not settled whether it is lossless", loose
    if live:
        return (
            "lossless",
            "Lossless: 0 mismatches",
            ["every answer decoded in batches equals autoregressive decoding"],
        )
    note = "all rows were replayed, so no answer was compared with autoregressive decoding"
    return "unchecked", "Not checked whether it is lossless", [note]


def _loose_ends(live: Sequence[Mapping[str, Any]]) -> list[str]:
    """Texts that differ in batches at a near tie or an unknown margin, which is no fault."""
    unknown = sum(count(check.get("other_text")) for check in live)
    ties = sum(not mismatch.get("rerun") for check in live for mismatch in records(check.get("other_text")))
    notes = []
    if unknown:
        differ = _many(unknown, "live answer differs", "live answers differ")
        notes.append(f"{differ} in batches at a margin that this older report does not state")
    if ties:
        differ = _many(ties, "live answer differs", "live answers differ")
        notes.append(f"{differ} in batches at a near tie, where rounding decides")
    return notes


def _fastest(report: Mapping[str, Any]) -> list[str]:
    """One sentence for each domain and dtype that was timed, and for each batch size, temperature and other axis."""
    live = [row for row in overall_rows(report) if is_live(row) and number(row.get("speedup")) is not None]
    live = [row for row in live if not row.get("axis")] or live
    sentences = []
    sections: dict[tuple, list[Row]] = {}
    for row in live:
        axes = [f"{name} {value}" for name, value in axes_of(row).items()]
        domain = "all domains" if row.get("domain") == ALL else text(row.get("domain"))
        sections.setdefault((domain, text(row.get("dtype")), *axes), []).append(row)
    for words, section in sections.items():
        sound = [r for r in section if not is_baseline(r) and not (count(r.get("mismatches")) and is_strict(report, r))]
        if sound:
            sentences.append(f"{_advice(report, sound)} ({', '.join(word for word in words if word)}).")
    if overall_rows(report) and not live:
        sentences.append("Nothing was timed in this report.")
    return sentences


def _advice(report: Report, rows: Sequence[Row]) -> str:
    """What to run: among the fastest and those not significantly slower, the default, else the fewest drafters.

    Only methods that are shown to beat plain decoding are recommended; another program only if it is the fastest.
    """
    best, faster = max(rows, key=_rate), [row for row in rows if beats_plain(row)]
    if number(best["speedup"]) <= 1:
        return f"Run plain decoding: the fastest other method, {_measured(best)}"
    if not faster:
        prompts = _many(count(best.get("num_prompts")), "prompt", "prompts")
        measured = f"{_measured(best)}{_tested(best, len(rows))}"
        return f"Nothing is shown to beat plain decoding on {prompts}: the fastest, {measured}"
    best = max(faster, key=_rate)
    rivals = [row for row in rows if row is not best and not is_baseline(row)]
    alike, p = _not_slower(report, best, rivals)
    if not alike:
        requests = _many(count(best.get("num_prompts")), "request", "requests")
        return f"{_run(report, best)}: {_speedup(best)} over plain decoding on {requests}" + (
            ", significantly faster than all other methods" if rivals else ""
        )
    candidates = [best, *(row for row in alike if row in faster)]
    ours = [row for row in candidates if not row.get("external")]
    simplest = min(ours or candidates, key=lambda row: (_name(row) != AUTO, _num_drafters(row), -_rate(row)))
    test = "their intervals overlap" if p is None else f"smallest paired p = {p:.2g}"
    names = join_names([f"“{_name(row)}”" for row in alike])
    role = "default" if _name(simplest) == AUTO else "simplest"
    remark = "" if simplest is best else f", the {role}: {_speedup(simplest)}"
    advice = f"{_run(report, simplest)}{remark}; {_measured(best)}"
    return f"{advice}, which does not differ significantly from {names} ({test}; more prompts tell more)"


def beats_plain(row: Row) -> bool:
    """Whether a row is shown to be faster than plain decoding: by its interval, and by p as its table has it.

    A row of too few prompts for a test has no p and shows nothing.  Older reports without tests have only the interval.
    """
    bounds, p = interval(row), _p_of(row)
    tested = p is not None or not {"wilcoxon_p", "wilcoxon_p_holm"} & row.keys()
    return bool(bounds and bounds[0] > 1) and tested and (p is None or p < SIGNIFICANT)


def _p_of(row: Row) -> float | None:
    """The p of the row's table."""
    return number(row.get("wilcoxon_p_holm", row.get("wilcoxon_p")))


def _tested(row: Row, num_methods: int) -> str:
    """The test against plain decoding in words, and how many prompts a significant one needs at least."""
    p = _p_of(row)
    least = math.floor(math.log2(2 * num_methods / SIGNIFICANT)) + 1  # p is at least 2 num_methods / 2^prompts
    tested = "" if p is None else f", p = {p:.2g}"
    if count(row.get("num_prompts")) >= least:
        return tested
    return f"{tested} ({_many(num_methods, 'method needs', 'methods need')} at least {least} prompts for a verdict)"


def _rate(row: Row) -> float:
    return number(row["speedup"]) or 0.0


def _measured(row: Row) -> str:
    requests = _many(count(row.get("num_prompts")), "request", "requests")
    return f"“{_name(row)}” measured {_speedup(row)} over plain decoding on {requests}"


def _speedup(row: Row) -> str:
    bounds = interval(row)
    return f"{number(row['speedup']):.2f}x" + (f", 95 % interval {bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "")


def _run(report: Report, row: Row) -> str:
    """An instruction to run the row's method, by command or by name."""
    command = text(mapping(curves_of(report).get("commands")).get(_name(row)), maximum=1000)
    return f"Type `{command}` for “{_name(row)}”" if command else f"Run “{_name(row)}”"


def _num_drafters(row: Row) -> int:
    drafters = row.get("drafters")
    return len(drafters) if isinstance(drafters, list) else 0


def _not_slower(report: Report, best: Row, rivals: Sequence[Row]) -> tuple[list[Row], float | None]:
    """Rows that are not significantly slower than the best, and the smallest corrected p among them.

    The test is a paired Wilcoxon over the requests' tokens/s, Holm-corrected.  If the report has no requests, rows
    with overlapping intervals count, and p is None.
    """
    rates, bounds = requests_of(report, best), interval(best)
    tested = [(row, requests_of(report, row)) for row in rivals]
    if len(rates) < MIN_PAIRS or not all(len(rival_rates) == len(rates) for _, rival_rates in tested):
        overlapping = [
            row for row in rivals if (rival_bounds := interval(row)) and bounds and rival_bounds[1] >= bounds[0]
        ]
        return overlapping, None
    ps = holm(
        [1.0 if rates == rival_rates else float(wilcoxon(rates, rival_rates).pvalue) for _, rival_rates in tested]
    )
    alike = [(row, p) for (row, _), p in zip(tested, ps, strict=True) if p >= SIGNIFICANT or _rate(row) > _rate(best)]
    return [row for row, _ in alike], min((p for _, p in alike), default=None)


def requests_of(report: Report, row: Row) -> list[float]:
    """Tokens/s of each request of a row; empty unless they add up to the row."""
    entries = mapping(curves_of(report).get("per_request")).get(str(row.get("method")))
    figures = [numbers(figure) for figure in entries] if isinstance(entries, list) else []
    if any(len(figure) != 3 or figure[2] <= 0 for figure in figures) or len(figures) != number(row.get("num_prompts")):
        return []
    if sum(tokens for tokens, *_ in figures) != number(row.get("num_tokens")):
        return []
    return [tokens / seconds for tokens, _, seconds in figures]


def _replayed(report: Mapping[str, Any]) -> list[str]:
    """MAT of the best selector, the best static drafter and hindsight."""
    rows = [row for row in overall_rows(report) if not is_live(row) and number(row.get("mat")) is not None]
    kinds = {
        "static": [row for row in rows if row.get("selector") == "static"],
        "oracle": [row for row in rows if row.get("selector") == "oracle"],
        "other": [row for row in rows if row.get("selector") not in ("static", "oracle")],
    }
    best = {kind: max(group, key=lambda row: number(row["mat"])) for kind, group in kinds.items() if group}
    if not best:
        return []
    labels = {"other": "the best selector", "static": "the best drafter alone", "oracle": ""}
    parts = []
    for kind in ("other", "static", "oracle"):
        if kind in best:
            name = f"{labels[kind]} “{_name(best[kind])}”" if labels[kind] else f"“{_name(best[kind])}”"
            parts.append(f"{name} {number(best[kind]['mat']):.2f}")
    answers = _many(count(rows[0].get("num_prompts")), "answer", "answers")
    return [f"MAT (mean tokens emitted per cycle), replayed exactly on {answers}: {'; '.join(parts)}."]


def _schedules(report: Mapping[str, Any]) -> list[str]:
    """Gain of the best schedule or joint selector over the best static one."""
    rows = [row for row in records(curves_of(report).get("replayed")) if number(row.get("tokens_per_s"))]
    base = next(
        (row for row in rows if text(row.get("name")).startswith(("best static tree", "best arm of the"))), None
    )
    candidates = [row for row in rows if not text(row.get("name")).startswith(BOUNDS) and row is not base]
    if base is None or not candidates:
        return []
    best = max(candidates, key=lambda row: number(row["tokens_per_s"]))
    gain = 100 * (number(best["tokens_per_s"]) / number(base["tokens_per_s"]) - 1)
    return [f"Schedules, replayed: “{text(best['name'])}” {gain:+.1f} % tokens/s over “{text(base['name'])}”."]


BOUNDS = ("perfect foresight", "best static tree of", "best arm of each", "no drafting")  # not to be recommended


def _name(row: Row) -> str:
    return text(row.get("method", row.get("name"))) or "unnamed"


def _numerics(report: Mapping[str, Any], row: Row) -> str:
    return f"{text(row.get('numerics', report.get('numerics'))) or 'unknown'} numerics"


def _many(number_of: int, singular: str, plural: str) -> str:
    return f"{number_of:,} {singular if number_of == 1 else plural}"


def heading_of(report: Mapping[str, Any]) -> str:
    """Title of the report."""
    target, suite = text(mapping(report.get("target")).get("name")), text(report.get("suite")) or "report"
    if target and suite in TITLES:
        return f"{TITLES[suite]} {target}"
    return f"{suite[0].upper()}{suite[1:]}" + (f", target {target}" if target else "")


def byline_of(report: Mapping[str, Any]) -> str:
    """Device, dtype, numerics, temperature and date in one line."""
    conditions = dict(conditions_of(report))
    numerics = [f"{conditions['numerics']} numerics"] if "numerics" in conditions else []
    sampled = [f"temperature {conditions['temperature']}"] if "temperature" in conditions else []
    parts = [conditions.get("device"), conditions.get("dtype"), *numerics, *sampled, conditions.get("created")]
    return " · ".join(part for part in parts if part)


def conditions_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Target, device and settings of the measurement."""
    target, temperature = mapping(report.get("target")), temperature_of(rows_of(report))
    conditions = [
        ("target", target.get("name")),
        ("fingerprint", target.get("fingerprint")),
        ("device", report.get("device") or curves_of(report).get("profile")),
        ("dtype", report.get("dtype")),
        ("numerics", report.get("numerics")),
        ("temperature", f"{temperature:g}" if temperature else None),
        ("seed", report.get("seed")),
        ("created", report.get("created")),
        ("drafterforge", report.get("drafterforge_version")),
    ]
    return [(key, text(value)) for key, value in conditions if value is not None and text(value)]
