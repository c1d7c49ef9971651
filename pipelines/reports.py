"""A `reports` artifact: `report.json` with the keys that other tools read, whatever was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest
from drafterforge.evaluation.report import build_report
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.target.device import describe_device
from drafterforge.target.load import Target

REPORT = "report.json"


def write_report(
    runs_dir: Path | str,
    target: Target,
    name: str,
    *,
    suite: str,
    seed: int,
    numerics: str,
    rows: list[dict[str, Any]],
    curves: dict[str, Any],
    config: Mapping[str, Any],
    parents: Sequence[Manifest],
) -> tuple[dict[str, Any], Path]:
    """Write the report `name` of a target, in place of an earlier one; returns it and its file.

    suite: what was run.  numerics: as configured.  rows: as `build_row` makes them.  curves: everything else.
    """
    report = build_report(
        rows,
        target={"name": target.name, "fingerprint": target.fingerprint, "revision": target.revision},
        device=describe_device(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        numerics=choose_numerics(numerics, target),
        seed=seed,
        suite=suite,
        curves=curves,
    )
    path = artifact_dir(runs_dir, target.name, "reports", name)
    whole = {"target": target.name, "target_fingerprint": target.fingerprint, "config": config}
    with write_artifact(path, kind="reports", name=name, **whole, parents=parents, replace=True) as folder:
        save_json_atomic(folder / REPORT, report)
    return report, path / REPORT
