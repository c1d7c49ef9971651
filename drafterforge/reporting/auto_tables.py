"""Tables and sentences of `suite=auto`: `auto` against fixed methods, and its replay against live decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.config.names import AUTO
from drafterforge.reporting.reader import count, curves_of, interval, mapping, number, records, text
from drafterforge.reporting.report_table import ReportTable, format_number

AXES = ("temperature", "batch_size", "context")
NOTE = (
    "auto: what generate and serve use if no drafter is named. The best fixed method is the fastest method of the row "
    "that does not choose among drafters while it decodes, plain decoding included; because it is chosen after the "
    "fact, a ratio slightly below 1 can be chance. Decisions: their share of the seconds of auto's cycles."
)


def auto_tables(report: Mapping[str, Any]) -> list[ReportTable]:
    """`auto` by domain of the stream and in every cell, the regret of every method, and the replay of `auto`."""
    curve = mapping(curves_of(report).get("auto"))
    domains, cells = records(curve.get("domains")), records(curve.get("cells"))
    ratios = ["prompts", "best fixed method", "auto over best", "95 %", "auto over plain", "95 %", "decisions"]
    warm_up = max((count(cell.get("warm_up_prompts")) for cell in cells), default=0)
    return [
        ReportTable.trimmed(
            "Default on a stream, by domain",
            ["domain", *ratios],
            [[text(row.get("domain")), *_ratios(row)] for row in domains],
            note=f"{NOTE} Greedy, one prompt at a time; the prompts of the domains are shuffled.",
        ),
        ReportTable.trimmed(
            "Default in every cell",
            ["temperature", "batch", "context", *ratios],
            [[format_number(row.get(key), "g") for key in AXES] + _ratios(row) for row in cells],
            note=f"{NOTE} Each method keeps its engine within a cell, which answers {warm_up} other prompts first.",
        ),
        _regret(domains, cells),
        _replay(mapping(curve.get("replay"))),
    ]


def _regret(domains: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Regret of every method, by domain of the stream and in every cell."""
    rows = [*domains, *cells]
    methods = dict.fromkeys(name for row in rows for name in mapping(row.get("regret_s")))
    columns = [name for name in methods if name != AUTO]

    def cells_of(row: Mapping[str, Any]) -> list[str]:
        regret, by_prompt = mapping(row.get("regret_s")), mapping(row.get("regret_s_by_prompt"))
        figures = [regret.get(AUTO), by_prompt.get(AUTO), *(regret.get(name) for name in columns)]
        return [_part(row), text(row.get("best_fixed")), *(format_number(figure) for figure in figures)]

    return ReportTable.trimmed(
        "Regret in seconds per 1,000 tokens",
        ["part", "best fixed method", AUTO, f"{AUTO}, prompt by prompt", *map(text, columns)],
        [cells_of(row) for row in rows if mapping(row.get("regret_s"))],
        name_columns=2,
        note=(
            "How many seconds longer a method takes for 1,000 tokens, prompts included, than the fixed method that "
            "was fastest on the part. Prompt by prompt: than the fixed method that was fastest on each prompt; part of "
            "that is luck. A method that chooses among drafters while it decodes is not fixed."
        ),
    )


def _replay(replay: Mapping[str, Any]) -> ReportTable:
    """The replay of `auto` against its live decoding."""
    rows = [
        ("of the other methods' cycles", replay),
        ("the same, at the load of auto's cycles", mapping(replay.get("same_load"))),
    ]
    return ReportTable.trimmed(
        "Default, replayed on its own answers",
        ["seconds of verification", "prompts", "live tokens/s", "predicted tokens/s", "median error by prompt"],
        [
            [
                title,
                format_number(row.get("num_prompts"), ".0f"),
                format_number(row.get("live_tokens_per_s"), ".1f"),
                format_number(row.get("predicted_tokens_per_s"), ".1f"),
                format_number(row.get("median_error"), ".1%"),
            ]
            for title, row in rows
            if number(row.get("median_error")) is not None
        ],
        note=(
            "Tokens of cycles over their seconds, after the prompt has been read. The replay drafts and decides as the "
            "default does. The target verifies nothing: verification takes the seconds known for its number of nodes. "
            "If the machine was busier for one method than for another, the first row is off. The second row scales "
            "those seconds to auto's own cycles, so only the predicted cycles, tree sizes and drafting can be wrong."
        ),
    )


def _part(row: Mapping[str, Any]) -> str:
    """A domain, or temperature, batch size and context of a cell."""
    return text(row.get("domain")) or "temperature {}, batch {}, context {}".format(
        *(format_number(row.get(key), "g") for key in AXES)
    )


def auto_sentences(report: Mapping[str, Any]) -> list[str]:
    """The worst domain, the worst cell and the error of the replay, one sentence each."""
    curve = mapping(curves_of(report).get("auto"))
    sentences = []
    for title, rows in (("domain", records(curve.get("domains"))), ("cell", records(curve.get("cells")))):
        rows = [row for row in rows if number(row.get("over_best")) and row.get("domain") != "all"]
        if not rows:
            continue
        worst = min(rows, key=lambda row: number(row["over_best"]) or 0)
        _, best, over_best, best_interval, over_plain, plain_interval, _ = _ratios(worst)
        sentences.append(
            f"Worst {title} of the default: {_part(worst)}, {over_best} the speed of “{best}”{_bounds(best_interval)}"
            f", {over_plain} that of plain decoding{_bounds(plain_interval)}."
        )
    replay = mapping(curve.get("replay"))
    if number(replay.get("median_error")) is not None:
        error, at_load = (
            format_number(figures.get("median_error"), ".1%") for figures in (replay, mapping(replay.get("same_load")))
        )
        sentences.append(
            f"A replay predicts the default's tokens/s with a median error by prompt of {error}"
            f"{f', of {at_load} at the same load of the machine' if at_load else ''}."
        )
    return sentences


def _ratios(row: Mapping[str, Any]) -> list[str]:
    cells = [format_number(row.get("num_prompts"), ".0f"), text(row.get("best"))]
    for key in ("over_best", "over_plain"):
        bounds = interval(row, key)
        cells += [format_number(row.get(key), ".2f", "x"), f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else ""]
    return [*cells, format_number(row.get("decisions"), ".1%")]


def _bounds(interval: str) -> str:
    return f" (95 % interval {interval})" if interval else ""
