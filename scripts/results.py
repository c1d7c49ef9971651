#!/usr/bin/env python3
"""Writes docs/results.md and docs/figures/speed.svg from the reports in docs/reports.

    python scripts/results.py                  # write both files
    python scripts/results.py --check          # compare; exit 1 if a file is out of date
    python scripts/results.py --keep FILE NAME # copy FILE, or an artifact's folder, to docs/reports/NAME.json first

`docs/reports/index.yaml` lists title, command, note and figures of each report.  A figure is a template of paths into
the report: `{A / B:.2f}` divides two numbers, `{rows[method=tree*].mat:.2f}` reads the first row that matches, and
`speedup_ci95.0` the first number of a list.  An entry with `pool: shipped` was measured with the drafters of the
package; its section says if they are newer than the report.  A report called NAME@DEVICE is NAME measured on another
machine; figures that it lacks are "not run".  The index's `gpu` lists the reports that `scripts/gpu_report.py` makes:
one table has their figures on a CPU and on each GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from string import Formatter
from typing import Any

from drafterforge.reporting.reader import name_with, overall_rows

import yaml

ROOT = Path(__file__).resolve().parents[1]
STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")  # a key, or [a condition]
COMMIT = re.compile(r"commit `\w+`")  # not compared, because a rebase changes it
PRIVATE = re.compile(r"\w+://|(?<![\w./])~?/[A-Za-z_][^\s\"]*")  # an address, or a path of this machine
MOST_ROWS = 8  # replayed rows in one table
TOP = """# Results

`scripts/results.py` writes this page from `docs/reports`. Each section names its command, device, date and commit. The
commit is the one that added the report: `git log COMMIT..` lists what changed in the code since. Speed-ups are ratios
to plain decoding in fast numerics by the same engine in the same run, methods taking turns, one prompt at a time unless
a section names a batch size. MAT is the mean number of tokens that one draft-and-verify cycle emits. The target is
`smollm2-135m`; drafters are named as in [Pools and selectors](pools.md). {gpu}"""
STYLE = """
text { fill: #1f2328 } .ours { fill: #1a7f5a } .plain { fill: #6e7781 } .theirs { fill: #b0b8c0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ours { fill: #3fb950 } .plain { fill: #8b949e } .theirs { fill: #57606a }
}
"""
NOT_RUN = "not run"
EARLIER_POOL = "Measured with an earlier pool: the drafters in the package are newer."
PARTS = ("manifest.json", "latency.json", "rows.json", "report.json")  # of an artifact
Report = Mapping[str, Any]


class ResultsError(Exception):
    """A report lacks a value that the index names."""


class Template(Formatter):
    """Fills templates with numbers of one report."""

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report = name, {**report, "rows": overall_rows(report)}

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        """The value at a path, or the ratio of two."""
        values = [self.look_up(path) for path in field_name.split(" / ")]
        return (values[0] if len(values) == 1 else values[0] / values[1]), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """A number in its format, with a space before the percent sign."""
        if format_spec and not isinstance(value, int | float):
            raise ResultsError(f"docs/reports/{self.name}.json has {value!r} where the index wants a number")
        return format(value, format_spec).replace("%", " %")

    def look_up(self, path: str) -> Any:
        """The number or text at a path."""
        value: Any = self.report
        try:
            for key, condition in STEP.findall(path):
                if key:
                    value = value[int(key) if isinstance(value, list) else key]
                else:
                    value = next(row for row in value if matches(row, condition))
        except (LookupError, TypeError, ValueError, StopIteration):
            value = None
        if not isinstance(value, int | float | str):
            raise ResultsError(f"docs/reports/{self.name}.json has no `{path}`, which docs/reports/index.yaml asks for")
        return value


def matches(row: Report, condition: str) -> bool:
    """Whether a row matches `key=pattern&key=pattern`."""
    pairs = (part.split("=", 1) for part in condition.split("&"))
    return all(fnmatchcase(str(row.get(key)), pattern) for key, pattern in pairs)


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def is_plain(row: Report) -> bool:
    """Whether nothing was drafted."""
    return row["method"].startswith("autoregressive")


def timed(report: Report) -> Iterator[str]:
    """The table of timed methods."""
    rows = [row for row in overall_rows(report) if row["source"] == "live" and not row.get("axis")]
    yield f"Timed on {rows[0]['num_prompts']} prompts ({rows[0]['num_tokens']:,} tokens):"
    cells = []
    for row in rows:
        interval = "-".join(f"{end:.2f}" for end in row["speedup_ci95"] or [])
        differing = "its own text" if row["mismatches"] is None else str(row["mismatches"])
        speed = [f"{row['speedup']:.2f}x", interval, f"{row['tokens_per_s']:.1f}"]
        cells.append([row["method"], *speed, "" if is_plain(row) else f"{row['mat']:.2f}", differing])
    yield table(["method", "speed-up", "95 %", "tokens/s", "MAT", "answers that differ"], cells)


def scaled(report: Report) -> Iterator[str]:
    """The table of methods along axes such as batch size."""
    rows = [row for row in overall_rows(report) if row.get("axis") and not is_plain(row)]
    yield "Speed-up and MAT along an axis; other settings stay the same:"
    cells = [
        [
            row["axis"],
            f"{row['at']:g}",
            name_with(row, without=row["axis"]),
            f"{row['speedup']:.2f}x",
            f"{row['mat']:.2f}",
        ]
        for row in rows
    ]
    yield table(["axis", "value", "method", "speed-up", "MAT"], cells)


def domains(report: Report) -> Iterator[str]:
    """MAT of each drafter alone, by domain of the prompt."""
    by_domain = report["curves"]["mat_by_domain"]
    drafters = sorted({name for row in by_domain.values() for name in row})
    yield "MAT of each drafter alone, by domain of the prompt, replayed exactly (best in bold):"
    columns = [[f"{row[name]:.2f}" for name in drafters] for row in by_domain.values()]
    columns = [[f"**{cell}**" if cell == max(column) else cell for cell in column] for column in columns]
    yield table(["drafter", *by_domain], [list(line) for line in zip(drafters, *columns, strict=True)])


def selectors(report: Report) -> Iterator[str]:
    """The table of replayed selectors, best first."""
    rows = sorted((row for row in overall_rows(report) if row["source"] != "live"), key=lambda row: -row["mat"])
    yield f"Selectors, replayed exactly on {rows[0]['num_prompts']} answers; regret is in cycles a request:"
    if len(rows) > MOST_ROWS:
        yield f"The best {MOST_ROWS} of {len(rows)} methods:"
    cells = [[row["method"], f"{row['mat']:.2f}", f"{row['regret_cycles']:.2f}"] for row in rows[:MOST_ROWS]]
    yield table(["method", "MAT", "regret"], cells)


def premise(report: Report) -> Iterator[str]:
    """MAT of generalists, experts and HedgeSpec, by domain of the question; gains by training steps."""
    rows = report["rows"]
    methods = [key for key in rows[0] if key not in ("domain", "questions")]
    fewest, most = (bound(row["questions"] for row in rows) for bound in (min, max))
    count = str(most) if fewest == most else f"{fewest} to {most}"
    yield f"MAT by domain, on {count} held-out questions each; experts in their own domain:"
    cells = [[row["domain"], *(f"{row[key]:.2f}" if row[key] else "" for key in methods)] for row in rows]
    yield table(["domain", *methods], cells)
    yield "Validation accept length over that at the start, by steps of an expert; the control took those of all:"
    headings = ["steps", *(key for key in report["by_steps"][0] if key != "steps")]
    cells = [[str(row["steps"]), *(f"{row[key]:.2f}x" for key in headings[1:])] for row in report["by_steps"]]
    yield table(headings, cells)


def learned(report: Report) -> Iterator[str]:
    """Methods that learn, by part of a replayed log, against the one that does not."""
    rows: dict[str, dict[str, Report]] = {}
    for row in report["rows"]:
        rows.setdefault(row["domain"], {})[row["method"]] = row
    _, plain, *methods = next(iter(rows.values()))
    yield f"Tokens/s relative to `{plain}`, the same server without learning; then MAT:"
    by_seed = report["curves"].get("gains_by_seed", {})

    def spread(part: str, method: str) -> str:
        gains = by_seed.get(part, {}).get(method.removeprefix(f"{plain}, "), [])
        return f" ({min(gains):.2f}x to {max(gains):.2f}x by seed)" if len(gains) > 1 else ""

    cells = []
    for part, by_method in rows.items():
        base = by_method[plain]
        entries = [f"{base['mat']:.2f}"]
        for name in methods:
            gain, mat = by_method[name]["tokens_per_s"] / base["tokens_per_s"], by_method[name]["mat"]
            entries.append(f"{gain:.2f}x{spread(part, name)}; {mat:.2f}")
        cells.append([part, *entries])
    yield table(["part of the log", "MAT without", *methods], cells)


def auto_domains(report: Report) -> Iterator[str]:
    """The table of `auto` against fixed methods, by domain of the prompt."""
    yield "`auto`, by domain of the prompt; in brackets the interval of 95 %:"
    cells = [
        [row["domain"], *(ratio(row, name) for name in ("over_plain", "over_best")), row["best_fixed"]]
        for row in report["curves"]["auto"]["domains"]
    ]
    yield table(["domain", "over plain decoding", "over the best fixed method", "which was"], cells)


def auto_cells(report: Report) -> Iterator[str]:
    """The table of `auto` against fixed methods, by context, temperature and batch size."""
    cells: dict[tuple[int, float], dict[int, str]] = {}
    for cell in report["curves"]["auto"]["cells"]:
        ratios = f"{cell['over_plain']:.2f}x; {cell['over_best']:.2f}x"
        cells.setdefault((cell["context"], cell["temperature"]), {})[cell["batch_size"]] = ratios
    batches = sorted({size for row in cells.values() for size in row})
    yield "`auto` by prompt tokens, temperature and batch size: over plain decoding; over the best fixed method:"
    rows = [
        [f"{context:,} tokens, temperature {temperature:g}", *(row.get(size, NOT_RUN) for size in batches)]
        for (context, temperature), row in cells.items()
    ]
    yield table(["batch size", *map(str, batches)], rows)


def ratio(row: Report, name: str) -> str:
    """A ratio with its interval, if it has one."""
    interval = row.get(f"{name}_ci95")
    return f"{row[name]:.2f}x" + (f" ({interval[0]:.2f}-{interval[1]:.2f})" if interval else "")


TABLES = {
    "timed": timed,
    "scaled": scaled,
    "domains": domains,
    "selectors": selectors,
    "premise": premise,
    "learned": learned,
    "auto_domains": auto_domains,
    "auto_cells": auto_cells,
}


def section(name: str, entry: Report, report: Report, root: Path) -> str:
    """One report: title, command, device, date, commit, notes, tables."""
    template = Template(name, report)
    where = [report.get("device") or report["metrics"]["device"], report.get("dtype")]
    created = template.look_up("created")
    head = f"{', '.join(filter(None, where))}; {created[:10]}; commit `{commit_of(root, name)}`."
    parts = [f"```bash\n{template.format(entry['command'])}\n```", head]
    parts += [EARLIER_POOL] if entry.get("pool") == "shipped" and created < pool_date() else []
    parts += [entry["note"]] if "note" in entry else []
    lenient = "@" in name  # another machine may lack a program, such as one that is compared with
    cells = [[template.format(what), fill(template, value, lenient)] for what, value in figures_of(entry)]
    parts += [table(["figure", "value"], cells)] if cells else []
    parts += [text for kind in entry.get("tables", []) for text in TABLES[kind](report)]
    return "\n\n".join(parts)


def pool_date() -> str:
    """When the newest drafter of the package was copied into it."""
    manifests = ROOT.glob("drafterforge/shipped/*/drafters/*/manifest.json")
    return max(json.loads(path.read_text())["created"] for path in manifests)


def figures_of(entry: Report) -> list[tuple[str, str]]:
    """Templates of name and value of each figure."""
    return list(entry.get("figures", {}).items())


def fill(template: Template, value: str, lenient: bool) -> str:
    """A figure; `not run` if the report lacks a number of it and that is allowed."""
    try:
        return template.format(value)
    except ResultsError:
        if not lenient:
            raise
        return NOT_RUN


def gpus(names: list[str], reports: Mapping[str, Report]) -> list[str]:
    """The GPUs, as in names of reports, that any of the named reports was made on."""
    pairs = [(key.partition("@"), report) for key, report in reports.items()]
    return sorted({device for (name, _, device), report in pairs if name in names and is_gpu(report)})


def is_gpu(report: Report) -> bool:
    """Whether a report was made on a GPU."""
    return str(report.get("device", "")).startswith("NVIDIA")


def gpu_section(gpu: Report, index: Report, reports: Mapping[str, Report]) -> str:
    """The figures of the reports that `gpu_report.py` makes, on a CPU and on each GPU; one row if no GPU has them."""
    devices, rows = gpus(gpu["reports"], reports), []
    for name in gpu["reports"]:
        title = index[name]["title"]
        keys = [name, *(f"{name}@{device}" for device in devices)]
        templates = [Template(key, reports[key]) if key in reports else None for key in keys]
        if not any(templates[1:]):
            rows.append([title, "measured" if templates[0] else NOT_RUN, *[NOT_RUN] * max(len(devices), 1)])
            continue
        label = next(filter(None, templates))
        for what, value in figures_of(index[name]):
            cells = [fill(template, value, True) if template else NOT_RUN for template in templates]
            rows.append([f"{title}: {fill(label, what, True)}", *cells])
    headings = ["figure", "CPU", *(devices or ["GPU"])]
    parts = [f"## {gpu['title']}", f"```bash\n{gpu['command']}\n```", gpu["note"], table(headings, rows)]
    return "\n\n".join(parts)


def commit_of(root: Path, name: str) -> str:
    """The last commit that brought a measurement: it changed the report's date."""
    report = f"docs/reports/{name}.json"
    command = ["git", "log", "-1", "--follow", "--format=%h", "--abbrev=7", '-G"created":', "--", report]
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip() or "uncommitted"


def page(index: Report, gpu: Report, reports: Mapping[str, Report], root: Path) -> str:
    """docs/results.md."""
    if unlisted := [name for name in reports if name.partition("@")[0] not in index]:
        raise ResultsError(f"docs/reports/index.yaml does not list {', '.join(unlisted)}")
    measured = gpus(gpu["reports"], reports)
    sentence = "Figures of GPUs are in [one table](#on-a-gpu)." if measured else "No figure was measured on a GPU yet."
    parts = [TOP.format(gpu=sentence)]
    for name, entry in index.items():
        sections = [section(key, entry, reports[key], root) for key in reports if key.partition("@")[0] == name]
        parts += [f"## {entry['title']}", *sections] if sections else []
    parts.append(gpu_section(gpu, index, reports))
    return "\n\n".join(parts) + "\n"


def picture(report: Report, bars: Mapping[str, str]) -> str:
    """docs/figures/speed.svg: tokens per second of some methods, readable on light and dark pages."""
    rows = {row["method"]: row for row in overall_rows(report) if row["source"] == "live"}
    fastest, lines = max(rows[method]["tokens_per_s"] for method in bars), []
    for index, (method, label) in enumerate(bars.items()):
        row, y = rows[method], 44 + 34 * index
        width = 400 * row["tokens_per_s"] / fastest
        kind = "theirs" if row["mismatches"] is None else "plain" if is_plain(row) else "ours"
        lines.append(f'<text x="268" y="{y + 17}" text-anchor="end">{escape(label)}</text>')
        lines.append(f'<rect class="{kind}" x="280" y="{y}" width="{width:.1f}" height="24" rx="3"/>')
        value = f"{row['tokens_per_s']:.0f} tokens/s, {row['speedup']:.2f}x"
        lines.append(f'<text x="{290 + width:.1f}" y="{y + 17}">{value}</text>')
    height = 58 + 34 * len(bars)
    title = f"SmolLM2-135M, {rows['autoregressive']['num_prompts']} prompts of eight domains, CPU with 2 threads"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" role="img" font-family="sans-serif" '
        f'font-size="14">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<text x="12" y="24" font-weight="bold">{escape(title)}</text>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def keep(path: Path, name: str, index: Report, root: Path) -> None:
    """Copies a report, or an artifact's JSON files as one, to docs/reports; fails if the page cannot show it."""
    report = {}
    files = [path] if path.is_file() else [path / part for part in PARTS if (path / part).is_file()]
    if not files:
        raise ResultsError(f"{path} is no file, and no folder with any of {', '.join(PARTS)}")
    for file in files:
        content = json.loads(file.read_text())
        report |= {"rows": content} if isinstance(content, list) else content
    if name.partition("@")[0] not in index:
        raise ResultsError(f"docs/reports/index.yaml does not list {name!r}; it has {', '.join(index)}")
    if private := PRIVATE.search(json.dumps(report)):
        raise ResultsError(f"{path} names {private[0]!r}; remove addresses and paths of this machine first")
    section(name, index[name.partition("@")[0]], report, root)
    (root / "docs" / "reports" / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if a file is out of date, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--keep", nargs=2, metavar=("FILE", "NAME"))
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER")
    options = parser.parse_args(arguments)
    docs = options.root / "docs"
    index = yaml.safe_load((docs / "reports" / "index.yaml").read_text())
    bars, gpu = index.pop("picture"), index.pop("gpu")
    try:
        if options.keep:
            keep(Path(options.keep[0]), options.keep[1], index, options.root)
        reports = {path.stem: json.loads(path.read_text()) for path in sorted((docs / "reports").glob("*.json"))}
        files = {docs / "results.md": page(index, gpu, reports, options.root)}
        files[docs / "figures" / "speed.svg"] = picture(reports[bars["report"]], bars["methods"])
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    for path, text in files.items():
        if not options.check:
            path.write_text(text)
        elif COMMIT.sub("", path.read_text()) != COMMIT.sub("", text):
            print(f"{path} is out of date; run python scripts/results.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
