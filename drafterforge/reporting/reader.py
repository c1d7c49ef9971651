"""Reads reports of any version leniently; lists every key of `curves`."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.rows import ALL

CURVES = {
    "mat_by_domain": "{domain: {drafter: MAT}}, each drafter alone",
    "replayed": "[{name, tokens_per_s, mat, actions}] of schedules on recorded answers",
    "profile": "device whose latency profile priced `replayed`",
    "live": "[{method, num_cycles, replayed_cycles, requests_with_other_cycles, other_text: [mismatch]}]",
    "mismatches": "[{method, prompt, position, margin, rerun}], first differences from autoregressive decoding",
    "per_request": "{method: [[tokens, cycles, seconds or null]]} of requests in order, for paired comparison",
    "regret_curves": "{method: [cumulative regret in cycles]}, one point a request or cycle",
    "weights": "{drafter: [weight]} that a selector gave, one point a cycle of a mixed conversation",
    "scaling": "{axis: [{method, at, and any of speedup, mat, regret_cycles}]}, such as axis `pool size`",
    "quickstart": "{seconds: {step: s}, total_s, first: [row], train_prompts, answer_tokens, training_steps}",
    "machine": "{cores, threads, sessions: [{began, requests, other_cores}]}, load by other programs while timing",
    "references": "[row] of the drafters that a trained one could replace, of it and its hybrid, timed together",
    "commands": "{method: the command that decodes with it}",
    "again": "the command that times again",
    "profile_error": "median error of the latency profile on held-out answers",
    "actions": "[{depth, num_tokens, share}] of trees that a policy chose",
}
NAMES = ("report.json", "schedules.json")  # the second is what reports on schedules were called
MOST_TEXT = 80  # characters of a name
STRICT_DTYPES = ("float32", "float64")
UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control and bidi characters, halves of pairs, line separators


def read_report(path: Path) -> dict[str, Any]:
    """The report in a folder or file; of an older one on schedules, `live` becomes its rows."""
    found = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0]) if path.is_dir() else path
    report = read_json(found)
    if isinstance(report, dict) and "rows" not in report and "replayed" in report:
        curves = {key: report[key] for key in ("replayed", "profile", "grid") if key in report}
        report = {"suite": "schedules, held out", "rows": report.get("live", []), "curves": curves}
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list):
        raise ArtifactError(f"{found} is no report (it has no list `rows`)")
    return report


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def records(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def rows_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The report's rows."""
    return records(report.get("rows"))


def whole_rows(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows without those that are a part of another: of one domain, where the same was told of all of them."""
    rows = rows_of(report)
    whole = {_what(row) for row in rows if row.get("domain") == ALL}
    return [row for row in rows if row.get("domain") == ALL or _what(row) not in whole]


def _what(row: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("method", "dtype", "temperature", "batch_size", "axis", "at", "source")
    return tuple(str(row.get(key)) for key in keys)


def curves_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The report's curves."""
    return mapping(report.get("curves"))


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def numbers(value: Any) -> list[float]:
    """A list of finite numbers; empty if it is anything else."""
    found = [number(one) for one in value] if isinstance(value, list) else []
    return [one for one in found if one is not None] if None not in found else []


def count(value: Any) -> int:
    """A whole number, 0 if there is none."""
    return int(number(value) or 0)


def interval(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """95 % interval of the row's speed-up; one request has none."""
    found = numbers(row.get("speedup_ci95")) if number(row.get("num_prompts")) != 1 else ()
    return (found[0], found[1]) if len(found) == 2 else None


def text(value: Any, most: int = MOST_TEXT) -> str:
    """A name from a report as one line: whatever could hide or break it is replaced, and what is too long is cut."""
    whole = value if isinstance(value, str) else "" if value is None else str(value)
    found = "".join("\ufffd" if unicodedata.category(one) in UNSAFE else one for one in whole[: most + 1])
    return found if len(found) <= most else f"{found[: most - 1]}…"


def is_live(row: Mapping[str, Any]) -> bool:
    """Whether the row was decoded with a clock, not replayed."""
    source = row.get("source")
    return source == "live" if isinstance(source, str) else number(row.get("speedup")) is not None


def is_baseline(row: Mapping[str, Any]) -> bool:
    """Whether the row is plain decoding, which speed-ups are over."""
    return str(row.get("method", "")).startswith("autoregressive")


def is_strict(report: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a single mismatch is a fault: float32, or invariant numerics in any dtype."""
    dtype, numerics = (row.get(key, report.get(key)) for key in ("dtype", "numerics"))
    return dtype in STRICT_DTYPES or numerics == "invariant"
