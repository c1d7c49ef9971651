"""Puts what a command wrote into docs/reports, cut to what README needs if it is large."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from readme_measured import lines_of
from readme_rows import SOURCES

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ArtifactError
from drafterforge.reporting.reader import curves_of, read_report, whole_rows

MOST_BYTES = 150_000
CURVES = ("live", "mat_by_domain", "mismatches", "profile", "quickstart", "replayed")  # that README's tables may read
OUTSIDE = re.compile(r"\w+://|(?<![\w./])~?/[A-Za-z_][^\s\"]*")  # an address, or a path from the root or the home


def keep(path: Path, name: str, folder: Path, note: str) -> None:
    """Writes `folder`/`name`.json from a JSON file or an artifact's folder; refuses what README could not use."""
    report = opened(path)
    if not isinstance(report, dict):
        raise ArtifactError(f"{path} holds no report; give what a command wrote with --json, or an artifact's folder")
    report |= {"note": note} if note else {}
    if outside := OUTSIDE.search(json.dumps(report)):
        raise ArtifactError(f"{path} names {outside[0]!r}; take addresses and paths of this machine out of it first")
    if size(report) > MOST_BYTES:
        report = excerpt(report)
    if size(report) > MOST_BYTES:
        raise ArtifactError(f"{path} has {size(report):,} bytes without what README leaves out, over {MOST_BYTES:,}")
    for source in SOURCES:
        if source.name == name.partition("@")[0]:
            lines_of(source, report, path)  # a missing key is told before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    save_json_atomic(folder / f"{name}.json", report)


def opened(path: Path) -> dict[str, Any]:
    """What a file holds; with date, settings and metrics of the manifest if it is an artifact's."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and not (folder / "manifest.json").is_file():
        return read_json(path)
    manifest = read_json(folder / "manifest.json")
    about = {key: manifest.get(key) for key in ("created", "config", "metrics", "target")}
    if manifest.get("kind") == "reports":
        return about | read_report(folder)
    if manifest.get("kind") == "latency":
        return about | read_json(folder / "latency.json")
    rows = folder / "rows.json"
    return about | ({"rows": read_json(rows)} if rows.is_file() else {})


def excerpt(report: dict[str, Any]) -> dict[str, Any]:
    """The report without rows of single domains and without curves that README does not show, marked as such."""
    curves = {key: value for key, value in curves_of(report).items() if key in CURVES}
    left_out = ["rows of single domains", *sorted(curves_of(report).keys() - curves)]
    return report | {"rows": whole_rows(report), "curves": curves, "excerpt": f"without {', '.join(left_out)}"}


def size(report: dict[str, Any]) -> int:
    """Bytes of the file."""
    return len(json.dumps(report, indent=2))
