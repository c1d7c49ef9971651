"""Reads reports of any version leniently, and documents the keys of `curves`."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafterforge.artifacts.json_input import read_json
from drafterforge.config.evaluation import ALL, MIN_VERDICT
from drafterforge.errors import ArtifactError

CURVES = {
    "mat_by_domain": "{domain: {drafter: MAT}}, each drafter alone",
    "replayed": "[{name, tokens_per_s, mat, actions}] of schedules on recorded answers",
    "profile": "device of the latency profile behind `replayed`",
    "priced_by": "latency.device, if the seconds of `replayed` are of another device",
    "live": "[{method, num_cycles, replayed_cycles, requests_with_other_cycles, other_text: [mismatch]}]",
    "mismatches": "[{method, prompt, position, margin, rerun}], first differences from autoregressive decoding",
    "per_request": "{method: [[tokens, cycles, seconds or null]]} of requests in order, for paired comparison",
    "regret_curves": "{method: [cumulative regret in cycles]}, one point per request or cycle",
    "regret_by_order": "{order: {method: {mean | low | high: [cumulative regret in cycles]}}} of requests in an order "
    "that is stationary, drifting or adversarial; low and high: 10 and 90 % of draws",
    "signal_strength": "[{domain, reward, best, second, signal, median, agrees}], MetaSD's R of bandits' rewards",
    "weights": "{drafter: [weight]} of a selector, one point per cycle of a mixed conversation",
    "scaling": "{axis: [{method, at, and any of speedup, mat, regret_cycles}]}, such as axis `pool size`",
    "quickstart": "{seconds: {step: s}, total_s, first: [row], train_prompts, answer_tokens, training_steps}",
    "machine": "{cores, threads, sessions: [{began, requests, other_cores}]}, load by other programs while timing",
    "references": "[row] of a trained drafter, its hybrid and the drafters it could replace, timed together",
    "auto": "{domains: [row], cells: [row], replay} of suite=auto. A row: num_prompts, best, over_best, over_plain, "
    "with intervals, best_fixed, regret_s {method: s per 1,000 tokens}, regret_s_by_prompt. replay, or null: "
    "num_prompts, live_tokens_per_s, predicted_tokens_per_s, median_error, prompts: [row], and same_load with these",
    "commands": "{method: the command that decodes with it}",
    "again": "the command that times again",
    "recalibrate": "the command that measures the latency profile of this device again",
    "drafters": "{method: {drafter: {cycles, accepted_tokens}}} of pools in vLLM, where the server counts them",
    "profile_error": "median error of the latency profile on held-out answers",
    "mat_by_request": "{method: [[requests, mean, least, most]]}, tokens a cycle in the last 50 requests, over seeds",
    "learned": "[{seed, requests, name, kind, state, rival, gain, low, high, num_train, num_judged}], drafters learned "
    "from traffic, after so many requests",
    "gains_by_seed": "{part of the log: {what is learned: [tokens/s over those of the server without learning]}}",
    "actions": "[{depth, num_tokens, share}] of trees that a policy chose",
    "prompts": "{questions: hash, and the suite's keys that decide its prompts, such as num_prompts}",
}
NAMES = ("report.json", "schedules.json")  # the second is the former name of reports on schedules
MAX_TEXT = 80  # characters of a name
STRICT_DTYPES = ("float32", "float64")
UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, bidi, surrogate, private, unassigned, line separators


def read_report(path: Path) -> dict[str, Any]:
    """The report in a folder or file; in an older one on schedules, `live` becomes the rows."""
    file = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0]) if path.is_dir() else path
    report = read_json(file)
    if isinstance(report, dict) and "rows" not in report and "replayed" in report:
        curves = {key: report[key] for key in ("replayed", "profile", "grid") if key in report}
        report = {"suite": "schedules, held out", "rows": report.get("live", []), "curves": curves}
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list):
        raise ArtifactError(f"{file} is no report (it has no list `rows`)")
    return report


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def records(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def rows_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return records(report.get("rows"))


def overall_rows(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows without those of single domains for which a row over all domains exists."""
    rows = rows_of(report)
    totals = {_row_key(row) for row in rows if row.get("domain") == ALL}
    return [row for row in rows if row.get("domain") == ALL or _row_key(row) not in totals]


def _row_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("method", "dtype", "temperature", "batch_size", "axis", "at", "source")
    return tuple(str(row.get(key)) for key in keys)


def curves_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(report.get("curves"))


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def numbers(value: Any) -> list[float]:
    """A list of finite numbers; empty if it is anything else."""
    values = [number(entry) for entry in value] if isinstance(value, list) else []
    return [entry for entry in values if entry is not None] if None not in values else []


def count(value: Any) -> int:
    """An integer; 0 if the value is no number."""
    return int(number(value) or 0)


def interval(row: Mapping[str, Any], ratio: str = "speedup") -> tuple[float, float] | None:
    """95 % interval of a ratio of the row; None for too few requests, or too few groups of them decoded together."""
    prompts = number(row.get("num_prompts"))
    is_short = prompts is not None and prompts <= (MIN_VERDICT - 1) * max(count(row.get("batch_size")), 1)
    bounds = [] if is_short else numbers(row.get(f"{ratio}_ci95"))
    return (bounds[0], bounds[1]) if len(bounds) == 2 else None


def text(value: Any, maximum: int = MAX_TEXT) -> str:
    """A name from a report as one safe line: unsafe characters are replaced, long names are cut."""
    content = value if isinstance(value, str) else "" if value is None else str(value)
    line = "".join(
        "\ufffd" if unicodedata.category(character) in UNSAFE else character for character in content[: maximum + 1]
    )
    return line if len(line) <= maximum else f"{line[: maximum - 1]}…"


def is_live(row: Mapping[str, Any]) -> bool:
    """Whether the row was decoded live and timed, not replayed."""
    source = row.get("source")
    return source == "live" if isinstance(source, str) else number(row.get("speedup")) is not None


def axes_of(row: Mapping[str, Any]) -> dict[str, str]:
    """What a row on an axis varies, with its values: {"batch size": "8", "temperature": "0.7"}; empty off an axis."""
    if not (axis := text(row.get("axis"))):
        return {}
    defaults = {"batch size": ("batch_size", 1.0), "temperature": ("temperature", 0.0)}
    values = {axis: number(row.get("at"))}
    for name, (key, default) in defaults.items():
        if name != axis and number(row.get(key)) not in (None, default):
            values[name] = number(row.get(key))
    return {name: "" if value is None else f"{value:g}" for name, value in values.items()}


def temperature_of(rows: Sequence[Mapping[str, Any]]) -> float:
    """The temperature of the answers off the axes."""
    return max((number(row.get("temperature")) or 0.0 for row in rows if not row.get("axis")), default=0.0)


def name_with(row: Mapping[str, Any], extra: Sequence[str] = (), without: str = "") -> str:
    """The row's method with further words and what it varies, such as `auto (batch size 8, temperature 0.7)`.

    without: an axis that is shown elsewhere.
    """
    words = [*extra, *(f"{name} {value}" for name, value in axes_of(row).items() if name != without)]
    method = text(row.get("method", row.get("name")))
    return f"{method} ({', '.join(words)})" if words else method


def is_baseline(row: Mapping[str, Any]) -> bool:
    """Whether the row is plain decoding, the baseline of speed-ups."""
    return str(row.get("method", "")).startswith("autoregressive")


def is_strict(report: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a single mismatch is a fault: float32, or invariant numerics in any dtype."""
    dtype, numerics = (row.get(key, report.get(key)) for key in ("dtype", "numerics"))
    return dtype in STRICT_DTYPES or numerics == "invariant"
