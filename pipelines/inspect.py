"""An artifact's manifest as a table, its hashes checked."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.errors import ConfigError
from drafterforge.pipelines.console import table_console
from drafterforge.schema import InspectConfig

Config = InspectConfig


def run(cfg: Config) -> Manifest:
    """Print kind, target, files, parents and figures of the artifact at `path`."""
    if not cfg.path:
        raise ConfigError("inspect needs a folder: type drafterforge inspect PATH")
    path = Path(cfg.path).expanduser()
    kind = Manifest.read(path).kind if (path / "manifest.json").is_file() else "artifact"
    manifest = open_artifact(path, kind)
    table = Table(
        title=f"{manifest.kind} {manifest.name}: every file whole",
        title_justify="left",
        show_header=False,
    )
    table.add_row("target", f"{manifest.target} ({manifest.target_fingerprint})")
    table.add_row("made", f"{manifest.created} by drafterforge {manifest.drafterforge_version}")
    for parent in manifest.parents:
        table.add_row("made from", f"{parent['kind']} {parent['name']} ({parent['sha256'][:12]})")
    for name, file in manifest.files.items():
        table.add_row(name, f"{file['bytes']:,} bytes")
    table.add_row("figures", json.dumps(manifest.metrics, indent=1))
    table.add_row("settings", json.dumps(manifest.config, indent=1))
    table_console().print(table)
    return manifest
