"""Exports EAGLE-3 drafters of a bundle or of runs, LoRA merged, in the layout of another program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from drafterforge.artifacts.bundles import find_bundle, named_bundle_dir
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.learned import absent_drafters, without_learned
from drafterforge.artifacts.locate import SHIPPED, find_artifact, list_artifacts
from drafterforge.assembly.bundles import check_bundle, drafter_source, locate, target_hint
from drafterforge.assembly.runs import kind_of
from drafterforge.bundle.record import BUNDLE, BundleRecord
from drafterforge.config.bundle import MAIN, SINGLE_DRAFTERS, ExportConfig
from drafterforge.config.hints import command_for
from drafterforge.drafters.base import DrafterSource
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import NORMS_31
from drafterforge.drafters.registry import KINDS, kind_named
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.layout import TargetFacts, UnfitError, read_target, refuse_export, write_export
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.interop.vllm.layouts import LAYOUTS, write_vllm
from drafterforge.targets.load import target_name

DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}
Loaders = dict[str, tuple[Callable[[], Eagle3Drafter], str]]  # by name: loader, name of the generalist or ""


def export_drafters(cfg: ExportConfig) -> Iterator[str]:
    """Export the requested drafters; yields lines to print: source, files, a command to serve them."""
    facts = read_target(cfg.target)
    bundle = bundle_of(cfg)
    if bundle is not None:
        yield f"from the bundle {bundle}"
    elif (main_bundle(cfg) / BUNDLE).is_file():
        yield f"from {cfg.runs_dir}; for the drafters of the bundle {MAIN}, type bundle={MAIN}"
    loaders = drafters_of_runs(cfg, facts) if bundle is None else drafters_of_bundle(cfg, facts, bundle)
    if cfg.out and len(loaders) > 1:
        raise ConfigError(f"out= is one folder, but there are {', '.join(loaders)}; type drafter=NAME")
    label = "-plain" if cfg.layout == "plain" else ""
    paths = {name: Path(cfg.out or exports_dir(cfg) / f"{name}-{cfg.format}{label}") for name in loaders}
    for path in paths.values():
        refuse_export(path.expanduser(), overwrite=True)  # check all before writing any
    # existing exports first: if one differs from what would be written, none is written
    for name in sorted(loaders, key=lambda name: not paths[name].expanduser().exists()):
        load, generalist = loaders[name]
        try:
            yield from write_drafter(cfg, load(), facts, name, generalist, paths[name])
        except UnfitError as error:
            if requested_names(cfg):
                raise
            yield f"left out {name}: {error}"


def bundle_of(cfg: ExportConfig) -> Path | None:
    """The bundle to export from: the named one, else `main` for drafters that runs_dir lacks; None: runs_dir."""
    if cfg.bundle:
        return locate(find_bundle(cfg.bundle, target_name(cfg.target), cfg.runs_dir))
    names = requested_names(cfg)
    in_runs = bool(names) and all(is_in_runs(cfg, name) for name in names)
    return main_bundle(cfg) if not in_runs and (main_bundle(cfg) / BUNDLE).is_file() else None


def main_bundle(cfg: ExportConfig) -> Path:
    """The folder of the bundle that is read if none is named; it need not exist."""
    return named_bundle_dir(MAIN, target_name(cfg.target), cfg.runs_dir)


def is_in_runs(cfg: ExportConfig, name: str) -> bool:
    """Whether a drafter is in runs_dir, or is the path of one; False for one that is only shipped."""
    try:
        folder = find_artifact(cfg.runs_dir, target_name(cfg.target), "drafters", name)
    except ArtifactError:
        return False
    return SHIPPED not in folder.parents


def drafters_of_bundle(cfg: ExportConfig, facts: TargetFacts, folder: Path) -> Loaders:
    """The requested drafters, or all, of the bundle in `folder`."""
    record = check_bundle_of(folder, facts)
    names = requested_names(cfg)
    loaders: Loaders = {}
    for entry in [record.drafter(name) for name in names] or record.drafters:
        if cfg.format in kind_named(entry.kind).exports:
            loaders[entry.name] = loader_of(drafter_source(folder, record, entry.name), facts, entry.base)
        elif names:
            raise not_exportable(f"drafter {entry.name!r} of {folder}", entry.kind, cfg.format)
    return require_any(loaders, str(folder), cfg.format)


def check_bundle_of(folder: Path, facts: TargetFacts) -> BundleRecord:
    """The record of an undamaged bundle; ArtifactError if it is another target's."""
    record = check_bundle(folder)
    if record.target.fingerprint != facts.fingerprint:
        raise ArtifactError(
            f"{folder} serves target {record.target.name!r} with fingerprint {record.target.fingerprint}, but "
            f"{facts.name!r} has {facts.fingerprint}; {target_hint(record.target)}"
        )
    return record


def drafters_of_runs(cfg: ExportConfig, facts: TargetFacts) -> Loaders:
    """The requested drafters, by name or folder, or all trained and shipped drafters of the target."""
    names = requested_names(cfg)
    loaders: Loaders = {}
    for name in names or exported_names(cfg.runs_dir, facts.name):
        folder = find_artifact(cfg.runs_dir, facts.name, "drafters", name, hint=command_for(name))
        manifest = open_artifact(folder, "drafters", target_fingerprint=facts.fingerprint, target=facts.name)
        kind = kind_named(kind_of(manifest))
        if cfg.format in kind.exports:
            base = kind.base_of(folder)
            generalist = base.name if base else ""
            title = folder.resolve().name
            if title in loaders:
                raise ConfigError(f"two drafters are named {title}; name one of them, or rename its folder")
            loaders[title] = loader_of(DrafterSource(name, kind.name, folder, base), facts, generalist)
        elif names:
            raise not_exportable(str(folder), kind.name, cfg.format)
    return require_any(loaders, cfg.runs_dir, cfg.format)


def exported_names(runs_dir: str, target: str) -> list[str]:
    """All drafters of a target but those that learned from a server's traffic."""
    absent = absent_drafters(runs_dir, target)
    names = [name for name in list_artifacts(runs_dir, target, "drafters") if name not in absent]
    return without_learned(names, runs_dir, target)


def requested_names(cfg: ExportConfig) -> list[str]:
    """Names of the drafters to export; empty: all."""
    return [cfg.drafter] if cfg.drafter else list(cfg.pool.drafters)


def not_exportable(which: str, kind: str, format: str) -> ArtifactError:
    """The error for a drafter that this format cannot hold."""
    formats = [name for name in SINGLE_DRAFTERS if name in kind_named(kind).exports]
    hint = f"type format={'|'.join(formats)}" if formats else "no format for other programs holds such drafters alone"
    return ArtifactError(f"{which} is a {kind} drafter, which format={format} cannot hold; {hint}")


def require_any(loaders: Loaders, source: str, format: str) -> Loaders:
    """Return the loaders; ArtifactError if there are none."""
    if not loaders:
        kinds = ", ".join(name for name, kind in KINDS.items() if format in kind.exports)
        raise ArtifactError(
            f"{source} has no drafter that format={format} can hold ({kinds}); type `drafterforge train-drafter "
            "domain=sql`"
        )
    return loaders


def loader_of(source: DrafterSource, facts: TargetFacts, generalist: str) -> tuple[Callable[[], Eagle3Drafter], str]:
    """A function that loads a drafter, LoRA merged, and the name of its generalist."""
    return partial(kind_named(source.kind).export, source, facts.embedding), generalist


def exports_dir(cfg: ExportConfig) -> Path:
    """Default folder of exports, used without `out=`."""
    return Path(cfg.runs_dir) / target_name(cfg.target) / "exports"


def write_drafter(
    cfg: ExportConfig, drafter: Eagle3Drafter, facts: TargetFacts, name: str, generalist: str, path: Path
) -> list[str]:
    """Write one drafter to the folder `path`; returns lines to print.  generalist: of a merged LoRA expert, or ""."""
    path = path.expanduser().resolve()
    layout, dtype = cfg.layout or LAYOUTS[0], DTYPES[cfg.weights]
    with write_export(path, cfg.overwrite) as staging:
        if cfg.format == "sglang":
            command = write_sglang(staging, drafter, facts, path, dtype)
        else:
            command = write_vllm(staging, drafter, facts, path, layout, dtype)
    merge_note = f", its additions merged into the weights of {generalist}" if generalist else ""
    size = (path / "model.safetensors").stat().st_size / 1e6
    lines = [f"wrote {path}: drafter {name}{merge_note}, {size:.1f} MB"]
    if norms := [norm for norm in NORMS_31 if getattr(drafter.spec, norm)]:
        lines.append(f"it has {' and '.join(norms)}, which only SGLang and vLLM support")
    return [*lines, f"serve it with: {command}"]
