"""Renders docs/distillation.md and its figures from a report; the plan has the questions and notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drafterforge.errors import ConfigError
from drafterforge.reporting.charts import lines
from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.report_table import ReportTable

from study_comparison import Report, Run, compare, runs_of, setup_of, verdict
from study_plan import Plan, Study

# Readable on white and on dark pages.
COLOURS = {
    **{"ink": "#808080", "faint": "#808080", "c0": "#3b82f6", "c1": "#d9730d", "c2": "#2e9e4f", "c3": "#a855f7"},
    **{"c4": "#e5484d", "c5": "#0d9488", "c6": "#db2777", "c7": "#8a8a00", "font": "sans-serif"},
}
XML = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
TOP = """# What moves accept length per hour of compute

`scripts/study_distillation.py page` writes this page from `docs/reports/distillation.json`, which
`{command}` measured until {date}.

Minutes count training steps only, not start-up, answering or validation. On a CPU they are CPU time divided by the
number of threads, so other programs do not count. Accept length is that of a greedy chain of {depth} drafted tokens on
held-out answers, bonus token included, at the best validation so far; every variant is validated with this chain.
Each setting was trained once, unless its name has a seed. The *base* is the setting from which the others of a study
differ in one thing. All are compared at the minutes in which the fastest one had finished, by interpolation between
validations; the slower ones have not yet lowered their learning rate by then.

Settings of all variants: `{base}`."""
WINNERS = """The lead is over the base, or over the second best setting if the base is the best. The base is kept if
the lead is within the spread of seeds; where that was not measured, the best is kept."""


def measured_studies(report: Report) -> list[str]:
    """Studies with at least two settings to compare."""
    return [name for name in report["studies"] if len(runs_of(report, name)) > 1]


def page(plan: Plan, report: Report) -> str:
    """docs/distillation.md."""
    names = [name for name in plan.studies if name in measured_studies(report)]
    for name, study in plan.studies.items():
        if study.note and name not in names:
            raise ConfigError(f"{name} has a note, but no runs in docs/reports/distillation.json; remove the note")
    facts = {"command": report["command"], "date": report["created"][:10], "base": " ".join(report["base"])}
    parts = [TOP.format(**facts, depth=report["validated_ttt_steps"])]
    parts += [part for name in names for part in section(name, plan.studies[name], report)]
    parts += ["## Settings that win", winners(names, report), WINNERS]
    pending = [f"- {plain(name)}: {plain(study.question)}" for name, study in plan.studies.items() if name not in names]
    parts += ["## Not measured yet", "\n".join(pending)] if pending else []
    reasons = [f"- {plain(topic)}: {plain(reason)}" for topic, reason in plan.not_studied.items()]
    parts += ["## Not studied", "\n".join(reasons)] if reasons else []
    return "\n\n".join(parts) + "\n"


def section(name: str, study: Study, report: Report) -> Iterator[str]:
    """One study: question, figure, table, outcome, note."""
    measured = report["studies"][name]
    yield f"## {name}"
    settings = f" Further settings: `{' '.join(measured['settings'])}`." if measured["settings"] else ""
    yield f"{plain(study.question)}{settings}"
    newest = max(run["created"] for run in runs_of(report, name).values())
    yield f"On {', '.join(setup_of(report, name))}, {newest[:10]}."
    yield f"![Accept length against minutes of training, {name}](figures/{figure_name(name)})"
    yield markdown_table(table(name, report))
    yield verdict(report, name)
    if missing := [variant["label"] for variant in measured["variants"] if not variant["run"]]:
        yield f"Not measured: {'; '.join(plain(label) for label in missing)}."
    if study.note:
        yield study.note


def table(name: str, report: Report) -> ReportTable:
    """A row for every measured setting."""
    runs, comparison = runs_of(report, name), compare(report, name)
    base = runs.get(report["studies"][name]["base"])
    headings = ["setting", "steps", "answer tokens", "minutes", "CPU minutes", "tokens/s", "accept length", "over base"]
    headings += [f"at {comparison.seconds / 60:.1f} min", "accuracy, 1st and last token", "vocabulary coverage"]
    headings += ["size, MB", "memory, MB"]
    cells = []
    for label, run in runs.items():
        last, best = run["curve"][-1], best_point(run)
        lead = best["accept_length"] - best_point(base)["accept_length"] if base else None
        cells.append(
            [
                label,
                str(last["step"]),
                f"{last['answer_tokens']:,}",
                f"{last['seconds'] / 60:.1f}",
                f"{last['cpu_seconds'] / 60:.1f}",
                f"{last['tokens'] / last['seconds']:.0f}",
                f"{best['accept_length']:.3f}",
                "" if lead is None or run is base else f"{lead:+.3f}",
                f"{comparison.lengths[label]:.3f}" if label in comparison.lengths else "",
                f"{best['accuracy'][0]:.0%}, {best['accuracy'][-1]:.0%}",
                f"{run['draft_vocab_coverage']:.1%}",
                f"{run['bytes'] / 1e6:.1f}",
                "" if run["peak_bytes"] is None else f"{run['peak_bytes'] / 1e6:.0f}",
            ]
        )
    return ReportTable.trimmed(name, headings, cells)


def best_point(run: Run) -> dict[str, Any]:
    """The best validation of a run."""
    return max(run["curve"], key=lambda point: point["accept_length"])


def winners(names: list[str], report: Report) -> str:
    """The table of recommended settings."""
    cells = []
    for name in names:
        comparison = compare(report, name)
        if name == report["noise"] or comparison.rival is None:
            continue
        base = f"{comparison.lengths[comparison.base]:.3f}" if comparison.base else ""
        row = [name, comparison.best, f"{comparison.lengths[comparison.best]:.3f}", comparison.base or "", base]
        cells.append([*row, f"{comparison.lead:+.3f}", f"{comparison.seconds / 60:.1f}", comparison.recommended])
    headings = ["study", "best", "accept length", "base", "its accept length", "lead", "minutes", "keep"]
    return markdown_table(ReportTable("", headings, cells))


def figure_name(name: str) -> str:
    """File name of a study's figure; links in Markdown take no spaces."""
    return f"distillation-{name.replace(' ', '-')}.svg"


def figures(report: Report) -> dict[str, str]:
    """Figures by file name: validation accept length against minutes, a line for every setting."""
    labels = "minutes of training", "accept length"
    drawings = {}
    for name in measured_studies(report):
        series = {
            label: [(point["seconds"] / 60, point["accept_length"]) for point in run["curve"]]
            for label, run in runs_of(report, name).items()
        }
        svg = re.sub(r"var\(--(\w+)\)", lambda match: COLOURS[match[1]], lines(name, series, labels, marked=True))
        drawings[figure_name(name)] = svg.replace("<svg ", f"<svg {XML} ", 1)
    return drawings


def is_current(docs: Path, plan: Plan, report: Report) -> bool:
    """Whether page and figures exist and the page is up to date; another matplotlib draws other bytes."""
    names = {path.name for path in (docs / "figures").glob(figure_name("*"))}
    text = (docs / "distillation.md").read_text()
    return text == page(plan, report) and names == {figure_name(name) for name in measured_studies(report)}
