"""Writes a `reports` artifact: `report.json` with the keys that other tools read, a page, Markdown and the cycles."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.progress import table_console
from drafterforge.errors import CheckFailedError
from drafterforge.evaluation.measurements import FILE as CYCLES
from drafterforge.evaluation.measurements import Measurement, save_measurements
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.compare import compare_reports, print_comparison
from drafterforge.reporting.markdown import render_markdown
from drafterforge.reporting.page import render_page
from drafterforge.reporting.reader import read_report
from drafterforge.reporting.verdict import lossless_faults
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target

SCHEMA = 1
REPORT = "report.json"
PAGE, MARKDOWN = "report.html", "report.md"


def build_report(
    rows: list[dict[str, Any]],
    *,
    target: dict[str, Any],
    device: str,
    dtype: str,
    numerics: str,
    seed: int,
    suite: str,
    curves: dict[str, Any],
) -> dict[str, Any]:
    """The content of `report.json`."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "drafterforge_version": __version__,
        "target": target,
        "device": device,
        "dtype": dtype,
        "numerics": numerics,
        "seed": seed,
        "suite": suite,
        "rows": rows,
        "curves": curves,
    }


def write_report(
    runs_dir: Path | str,
    target: Target | Any,
    name: str,
    *,
    suite: str,
    seed: int,
    numerics: str,
    rows: list[dict[str, Any]],
    curves: dict[str, Any],
    config: Mapping[str, Any],
    parents: Sequence[Manifest],
    measurements: Sequence[Measurement] = (),
    device: str = "",
    logs: Sequence[Path] = (),
) -> tuple[dict[str, Any], Path]:
    """Write the report `name` of a target, replacing an earlier one; returns it and the path of `report.json`.

    numerics: as configured.  rows: see `build_row`.  curves: see `reader.CURVES`.
    measurements: the answers and cycles behind the rows, for `cycles.parquet`.  target: loaded here, or elsewhere if
    `numerics` is `fast` and `device` describes where it runs.  logs: files of other programs that are kept too.
    """
    report = build_report(
        rows,
        target={"name": target.name, "fingerprint": target.fingerprint, "revision": target.revision},
        device=device or describe_device(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        numerics=choose_numerics(numerics, target),
        seed=seed,
        suite=suite,
        curves=curves,
    ) | {"code": code_state(), "parents": [parent.as_parent() for parent in parents]}
    path = artifact_dir(runs_dir, target.name, "reports", name)
    checked = {"target": target.name, "target_fingerprint": target.fingerprint, "config": config}
    with write_artifact(path, kind="reports", name=name, **checked, parents=parents, replace=True) as folder:
        save_json_atomic(folder / REPORT, report)
        if measurements:
            save_measurements(folder / CYCLES, measurements)
        for log in logs:
            shutil.copyfile(log, folder / log.name)
        (folder / PAGE).write_text(render_page(report), encoding="utf-8")
        (folder / MARKDOWN).write_text(render_markdown(report), encoding="utf-8")
    return report, path / REPORT


def require_lossless(report: Mapping[str, Any], path: Path) -> None:
    """Raise CheckFailedError if the report shows a decoder that is not lossless."""
    if faults := lossless_faults(report):
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise CheckFailedError(f"not lossless: {faults[0]}{more}; see {path.with_name(PAGE)}")


def compare_saved(names: str, runs_dir: Path | str, target: str) -> Path:
    """Print two reports side by side; returns the path of the second.

    names: `A,B`, each the name of a report, or the path of its folder or file.  Raises CheckFailedError if B is
    significantly worse than A.
    """
    before, after = [name.strip() for name in names.split(",")]
    paths = [report_path(name, runs_dir, target) for name in (before, after)]
    comparison = compare_reports(*map(read_report, paths))
    print_comparison(comparison, (before, after), table_console())
    if comparison.faults:
        more = f", and {len(comparison.faults) - 1} more" if len(comparison.faults) > 1 else ""
        raise CheckFailedError(f"{after} is worse than {before}: {comparison.faults[0]}{more}")
    if reason := comparison.unjudged:
        print(f"nothing could be judged: {reason}")
    else:
        print(f"no significant regression from {before} to {after}")
    return paths[1]


def report_path(name: str, runs_dir: Path | str, target: str) -> Path:
    """Path of a report by name or path; a report outside a runs folder needs no manifest."""
    path = Path(name).expanduser()
    if path.is_file() or ("/" in name and (path / REPORT).is_file()):
        return path
    return find_artifact(runs_dir, target, "reports", name)
