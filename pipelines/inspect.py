"""Check the hashes of an artifact, and print its manifest as a table; bundles are for `inspect_bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table

from drafterforge.artifacts.bundles import BUNDLE
from drafterforge.artifacts.folder import open_artifact, restore_interrupted
from drafterforge.artifacts.locate import folders_named
from drafterforge.artifacts.manifest import MANIFEST, PARENT_KEYS, Manifest, is_entry
from drafterforge.config.catalogue import flat
from drafterforge.config.commands import InspectConfig
from drafterforge.config.hints import plain_value
from drafterforge.config.progress import say, table_console
from drafterforge.errors import ArtifactError, ConfigError

Config = InspectConfig
PREFERRED = ("drafters", "bundles")  # if several artifacts share a name
SHOWN_AS_PARENTS = ("answers", "parent")  # settings of which the table has rows of their own


def run(cfg: Config) -> Any:
    path = find_by_name(cfg) or Path(cfg.path).expanduser()
    restore_interrupted(path)
    if (path / BUNDLE).is_file() or path.is_file():
        return import_module("drafterforge.pipelines.inspect_bundle").run(path)  # which takes seconds to load
    kind = Manifest.read(path).kind if (path / "manifest.json").is_file() else "artifact"
    manifest = open_artifact(path, kind)
    table = Table(
        title=f"{manifest.kind} {manifest.name}: all files undamaged",
        title_justify="left",
        show_header=False,
    )
    table.add_column()
    table.add_column(overflow="fold")  # cut no value
    table.add_row("target", f"{manifest.target}, fingerprint {manifest.target_fingerprint}")
    table.add_row("created", f"{manifest.created} by drafterforge {manifest.drafterforge_version}")
    for parent in manifest.parents:
        table.add_row("parent", f"{parent['kind']} {parent['name']} ({parent['sha256'][:12]})")
    if is_entry(origin := manifest.config.get("origin"), PARENT_KEYS):
        table.add_row("trained further from", f"{origin['kind']} {origin['name']} ({origin['sha256'][:12]})")
    for name, file in manifest.files.items():
        table.add_row(name, f"{file['bytes']:,} bytes")
    if manifest.metrics:
        table.add_row("figures", _lines(manifest.metrics, digits=5))
    if (page := path / "report.html").is_file():
        table.add_row("page", str(page))
    settings = {key: value for key, value in manifest.config.items() if key not in SHOWN_AS_PARENTS}
    table.add_row("settings", _lines(settings))
    table_console().print(table)
    return manifest


def _lines(values: Mapping[str, Any], digits: int = 0) -> str:
    """Nested values as `key=value`, one a line, without those that are not set.

    digits: of fractions; 0: all.
    """
    texts = {
        key: f"{value:.{digits}g}" if isinstance(value, float) and digits else plain_value(value)
        for key, value in flat(values, "", {}).items()
        if value not in (None, "", [])
    }
    return "\n".join(f"{key}={text}" for key, text in texts.items())


def find_by_name(cfg: Config) -> Path | None:
    """The artifact or bundle called `cfg.path`, unless that is a path; drafters come first, then bundles."""
    path = Path(cfg.path)
    if "/" in cfg.path or path.is_file() or any((path / name).is_file() for name in (MANIFEST, BUNDLE)):
        return None
    try:
        folders = folders_named(cfg.path, cfg.runs_dir)
    except ArtifactError:
        if path.is_dir():  # opening it says what it lacks
            return None
        raise
    by_kind = [[path for path in folders if path.parent.name == kind] for kind in PREFERRED]
    preferred = next(filter(None, by_kind), folders)
    if len(preferred) > 1:
        raise ConfigError(f"{cfg.path!r} names {len(folders)} artifacts; type one of {', '.join(map(str, folders))}")
    if namesakes := [str(path) for path in folders if path not in preferred]:
        say(f"{preferred[0]}; others of this name: {', '.join(namesakes)}")
    return preferred[0]
