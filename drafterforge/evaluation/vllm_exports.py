"""The folders from which vLLM loads drafters: exports of a runs folder, reused until their drafters change."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from drafterforge.artifacts.atomic import file_sha256, save_json_atomic
from drafterforge.artifacts.bundles import find_bundle, named_bundle_dir
from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.bundles import locate
from drafterforge.assembly.packing import make_bundle
from drafterforge.assembly.pools import pool_names
from drafterforge.assembly.runs import RunsFolder, find_drafter, kind_of
from drafterforge.bundle.record import BUNDLE, BundleRecord
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.names import RETRIEVAL, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.served_target import ServedTarget
from drafterforge.interop.export import check_bundle_of, export_drafters, exports_dir
from drafterforge.interop.layout import FILES, is_export
from drafterforge.interop.vllm.pool_folder import FOLDER, FORMAT, PoolFolder, split_names, write_pool

LAYOUT = {"format": "vllm", "layout": "plain"}  # what stock vLLM loads


@dataclass(frozen=True)
class ServedDrafters:
    """The drafters of a bundle, or of the runs folder, that vLLM can run."""

    export: ExportConfig  # of single drafters
    model: str  # the target that vLLM serves
    names: list[str]  # the generalist comes first
    bundle: Path | None = None  # its folder; None: drafters are those of the runs folder
    record: BundleRecord | None = None

    def drafter(self, name: str) -> Path:
        """The folder of one drafter, LoRA merged."""
        path = self._path(f"{name}-{LAYOUT['format']}-{LAYOUT['layout']}")
        origin = path.with_name(f".{path.name}.json")  # what the export was made from
        sources = [file_sha256(source) for source in self._sources(name)]
        with suppress(ArtifactError):
            if is_export(path) and read_json(origin) == [*sources, weights_time(path)]:
                say(f"drafter {name}: {path}, exported earlier")
                return path
        bundle = str(self.bundle or "")
        for line in export_drafters(replace(self.export, bundle=bundle, drafter=name, out=str(path), overwrite=True)):
            say(line)
        save_json_atomic(origin, [*sources, weights_time(path)])
        return path

    def pool(self) -> PoolFolder:
        """The folder of the bundle's pool."""
        path = self._path(FORMAT)
        copy = path / FOLDER / BUNDLE
        if copy.is_file() and copy.read_bytes() == (self.bundle / BUNDLE).read_bytes():
            say(f"pool: {path}, exported earlier")
        else:
            for line in write_pool(self.bundle, path, self.model, overwrite=True):
                say(line)
        return PoolFolder.open(path)

    def _path(self, label: str) -> Path:
        """The folder of an export; that of a bundle's drafter has the bundle's name before its own."""
        prefix = "" if self.record is None else f"{self.record.name}-"
        return (exports_dir(self.export) / f"{prefix}{label}").expanduser().resolve()

    def _sources(self, name: str) -> list[Path]:
        """Files that hold the hashes of a drafter's files."""
        if self.bundle is not None:
            return [self.bundle / BUNDLE]
        folder = find_drafter(self.export.runs_dir, self.export.target.folder_name, name)
        base = kind_named(kind_of(Manifest.read(folder))).base_of(folder)
        return [part / MANIFEST for part in (folder, base) if part is not None]


def find_drafters(cfg: EvaluateConfig, target: ServedTarget, needs_pool: bool) -> ServedDrafters:
    """The drafters to serve.  needs_pool: a bundle is made if there is none."""
    options = {"target": cfg.target, "pool": cfg.pool, "runtime": cfg.runtime, "runs_dir": cfg.runs_dir}
    export = ExportConfig(bundle=cfg.bundle, **options, **LAYOUT)
    bundle = bundle_of(cfg, export, needs_pool)
    if bundle is None:
        return ServedDrafters(export, target.facts.model, names_in_runs(cfg, target))
    record = check_bundle_of(bundle, target.facts)
    return ServedDrafters(export, target.facts.model, split_names(bundle, record)[0], bundle, record)


def bundle_of(cfg: EvaluateConfig, export: ExportConfig, needs_pool: bool) -> Path | None:
    """The folder of the bundle to serve; None if none is named, there is none, and none is needed."""
    if cfg.bundle:
        folder = locate(find_bundle(cfg.bundle, cfg.target.folder_name, cfg.runs_dir))
    else:
        folder = named_bundle_dir(export.bundle_name, cfg.target.folder_name, cfg.runs_dir)
        if not (folder / BUNDLE).is_file():
            if not needs_pool:
                return None
            say(f"packing the pool into {folder}")
            make_bundle(replace(export, format="bundle", layout=""), folder)
            return folder
    unread = "" if cfg.pool == PoolConfig() else "; keys of pool. say what a new bundle holds, and are not read"
    say(f"the drafters are those of {folder}{unread}")
    return folder


def names_in_runs(cfg: EvaluateConfig, target: ServedTarget) -> list[str]:
    """Names of the runs folder's drafters that vLLM can run."""
    runs = RunsFolder(cfg.runs_dir, target, quiet=True)
    names = [name for name in parts_of(pool_names(runs, cfg.pool.drafters)) if name != RETRIEVAL]
    formats = {name: kind_named(runs.summary(name).kind).exports for name in names}
    names = [name for name in names if FORMAT in formats[name]]  # as in a pool, vLLM serves them as EAGLE-3 drafters
    if skipped := [name for name in formats if name not in names and LAYOUT["format"] in formats[name]]:
        say(f"suite=vllm times EAGLE-3 drafters only; it leaves out {', '.join(skipped)}")
    if not names:
        raise ArtifactError(
            f"{cfg.runs_dir} has no EAGLE-3 drafter for {target.name}; type `drafterforge train-drafter domain=sql`"
        )
    return names


def weights_time(path: Path) -> int:
    """When the weights of an export were written, in ns: another program may have written others since."""
    return (path / FILES[-1]).stat().st_mtime_ns
