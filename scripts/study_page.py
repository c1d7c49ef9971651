"""docs/distillation.md and its figures, from docs/reports/distillation.json; questions and notes are the plan's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study_plan import Plan, Study
from study_standings import Report, Run, kept, kind, runs_of, spread, standings, verdict

from drafterforge.artifacts.atomic import write_bytes_atomic
from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ConfigError
from drafterforge.reporting.charts import lines
from drafterforge.reporting.markdown import markdown_table, plain
from drafterforge.reporting.tables import TableOf

# Between light and dark: each is told from white paper and from a dark page.
COLOURS = {
    **{"ink": "#808080", "faint": "#808080", "c0": "#3b82f6", "c1": "#d9730d", "c2": "#2e9e4f", "c3": "#a855f7"},
    **{"c4": "#e5484d", "c5": "#0d9488", "c6": "#db2777", "c7": "#8a8a00", "font": "sans-serif"},
}
XML = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
FIGURE = "distillation-{}.svg"
TITLE = "# What moves accept length per hour of compute"
METHOD = (
    "Minutes are those of training steps alone, without start-up, answering and validating, and on a CPU those that "
    "its cores worked, so that other programs do not count; CPU minutes are of all threads together. Accept length is "
    "that of a "
    "greedy chain of {depth} drafted tokens on held-out answers, the bonus token included, the best validation so far; "
    "every variant is validated with that chain, whatever it is trained with. Settings are compared after the minutes "
    "that the shortest of them took, on lines between validations: one that would have trained on has not had its "
    "learning rate come down by then. Each was trained once, on {device}, {dtype}, target {target}."
)


def write_page(plan: Plan, docs: Path) -> None:
    """Write the page and its figures, and drop figures of studies that are gone."""
    report = report_of(docs)
    figures = drawn(report)
    write_bytes_atomic(docs / "distillation.md", page(plan, report).encode())
    (docs / "figures").mkdir(exist_ok=True)
    for old in (docs / "figures").glob(FIGURE.format("*")):
        if old.name not in figures:
            old.unlink()
    for name, svg in figures.items():
        write_bytes_atomic(docs / "figures" / name, svg.encode())


def is_current(plan: Plan, docs: Path) -> bool:
    """Whether the page is what it would be, and its figures are there; other matplotlibs draw them otherwise."""
    report, path = report_of(docs), docs / "distillation.md"
    there = {figure.name for figure in (docs / "figures").glob(FIGURE.format("*"))}
    wanted = {figure_of(name) for name in studied(report)}
    return path.is_file() and path.read_text() == page(plan, report) and there == wanted


def report_of(docs: Path) -> Report:
    """What was measured; nothing if there is no file."""
    path = docs / "reports" / "distillation.json"
    return read_json(path) if path.is_file() else {"noise": "", "studies": {}, "runs": {}}


def studied(report: Report) -> list[str]:
    """Studies of which there is something to compare."""
    return [name for name in report["studies"] if len(runs_of(report, name)) > 1]


# --- the page ------------------------------------------------------------------------------------


def page(plan: Plan, report: Report) -> str:
    """The whole file."""
    here = [name for name in plan.studies if name in studied(report)]
    for name, study in plan.studies.items():
        if study.note and name not in here:
            raise ConfigError(f"{name} has a note, but nothing of it is in docs/reports/distillation.json; empty it")
    parts = [TITLE, *(top(report) if here else ["Nothing was measured yet."])]
    parts += [part for name in here for part in section(name, plan.studies[name], report)]
    if here:
        parts += ["## Settings that win", winning(here, report), limit(report)]
    left = [f"- {plain(name)}: {plain(one.question)}" for name, one in plan.studies.items() if name not in here]
    parts += ["## Not measured yet", "\n".join(left)] if left else []
    reasons = [f"- {plain(what)}: {plain(why)}" for what, why in plan.not_studied.items()]
    parts += ["## Not studied", "\n".join(reasons)] if reasons else []
    return "\n\n".join(parts) + "\n"


def top(report: Report) -> Iterator[str]:
    """What all studies share."""
    yield (
        "Written by `scripts/study_distillation.py page` from `docs/reports/distillation.json`, which "
        f"`{report['command']}` measured on {report['created'][:10]}."
    )
    yield METHOD.format(depth=report["validated_ttt_steps"], **{k: report[k] for k in ("device", "dtype", "target")})
    yield f"Settings of all variants: `{' '.join(report['base'])}`."


def section(name: str, study: Study, report: Report) -> Iterator[str]:
    """One study: question, figure, table, what won."""
    measured = report["studies"][name]
    yield f"## {name}"
    own = f" Beside those of all: `{' '.join(measured['settings'])}`." if measured["settings"] else ""
    yield f"{plain(study.question)}{own}"
    if len({one for other in studied(report) for one in kind(report, other)}) > 1:
        runs = runs_of(report, name).values()
        newest = max(run["created"] for run in runs)
        yield f"On {', '.join(next(iter(kind(report, name))))}, {newest[:10]}."
    yield f"![Accept length against minutes of training, {name}](figures/{figure_of(name)})"
    yield markdown_table(table(name, report))
    yield verdict(report, name)
    if missing := [one["label"] for one in measured["variants"] if not one["run"]]:
        yield f"Not measured: {', '.join(plain(label) for label in missing)}."
    if study.note:
        yield study.note


def table(name: str, report: Report) -> TableOf:
    """A line for every setting that was measured."""
    runs, found = runs_of(report, name), standings(report, name)
    base = runs.get(report["studies"][name]["base"])
    headings = ["setting", "steps", "answer tokens", "minutes", "CPU minutes", "tokens/s", "accept length", "over base"]
    headings += [f"at {found.seconds / 60:.1f} min", "right, 1st and last token", "covered", "MB", "memory, MB"]
    cells = [
        [
            label,
            str(run["curve"][-1]["step"]),
            f"{run['curve'][-1]['answer_tokens']:,}",
            f"{run['curve'][-1]['seconds'] / 60:.1f}",
            f"{run['curve'][-1]['cpu_seconds'] / 60:.1f}",
            f"{run['curve'][-1]['tokens'] / run['curve'][-1]['seconds']:.0f}",
            f"{best(run)['accept_length']:.3f}",
            f"{best(run)['accept_length'] - best(base)['accept_length']:+.3f}" if base and run is not base else "",
            f"{found.lengths[label]:.3f}" if label in found.lengths else "",
            ", ".join(f"{best(run)['accuracy'][place]:.0%}" for place in (0, -1)),
            f"{run['draft_vocab_coverage']:.1%}",
            f"{run['bytes'] / 1e6:.1f}",
            f"{run['peak_bytes'] / 1e6:.0f}" if run["peak_bytes"] is not None else "",
        ]
        for label, run in runs.items()
    ]
    return TableOf.of(name, headings, cells)


def best(run: Run) -> dict[str, Any]:
    """Its best validation."""
    return max(run["curve"], key=lambda point: point["accept_length"])


def winning(names: list[str], report: Report) -> str:
    """What each study says to keep."""
    cells = []
    for name in names:
        found = standings(report, name)
        if name == report["noise"] or found.second is None:  # not validated by then
            continue
        base = f"{found.lengths[found.base]:.3f}" if found.base else ""
        lead = f"{found.lead:+.3f}" if found.lead is not None else ""
        row = [name, found.best, f"{found.lengths[found.best]:.3f}", found.base or "", base, lead]
        cells.append([*row, f"{found.seconds / 60:.1f}", kept(found, spread(report, name))])
    headings = ["study", "best", "accept length", "base", "its accept length", "lead", "minutes", "keep"]
    return markdown_table(TableOf("", headings, cells)) if cells else "No study has two settings measured yet."


def limit(report: Report) -> str:
    """How to read the table."""
    noise, said = spread(report, report["noise"]), "The lead of a base is over the second."
    if noise is None:
        return f"{said} How much seeds differ was not measured."
    where = ""
    if own := [
        name for name in studied(report) if name != report["noise"] and spread(report, name) not in (None, noise)
    ]:
        where = f", or in {', '.join(own)} what they differ by there"
    if any(spread(report, name) is None for name in studied(report)):
        where += "; where that was not measured, the best is"
    return f"{said} The base is kept where a lead is no more than {noise:.3f}, as seeds differ{where}."


# --- figures -------------------------------------------------------------------------------------


def figure_of(name: str) -> str:
    """The file of a study's figure; Markdown takes no spaces in links."""
    return FIGURE.format(name.replace(" ", "-"))


def drawn(report: Report) -> dict[str, str]:
    """By file name, validation accept length against minutes, a line for every setting."""
    labels = "minutes of training", "accept length"
    figures = {}
    for name in studied(report):
        series = {
            label: [(point["seconds"] / 60, point["accept_length"]) for point in run["curve"]]
            for label, run in runs_of(report, name).items()
        }
        figures[figure_of(name)] = standing_alone(lines(name, series, labels, marked=True))
    return figures


def standing_alone(svg: str) -> str:
    """A page's drawing as a file, in colours for any ground."""
    svg = re.sub(r"var\(--(\w+)\)", lambda found: COLOURS[found[1]], svg)
    return svg.replace("<svg ", f"<svg {XML} ", 1)
