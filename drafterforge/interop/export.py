"""EAGLE-3 drafters of a bundle or of the runs, LoRA merged, in a layout that another program serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.bundles import check_bundle, files_in, find_bundle, locate, named_bundle, which_target
from drafterforge.assembly.runs import kind_of
from drafterforge.bundle.record import BUNDLE
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.hints import command_for, typed_target
from drafterforge.drafters.base import DrafterSource
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import NORMS_31
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.layout import TargetFacts, read_target, refuse_export, write_export
from drafterforge.interop.sglang import write_sglang
from drafterforge.interop.vllm import LAYOUTS, write_vllm
from drafterforge.targets.load import target_name

FORMATS = ("sglang", "vllm")
DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}
Loaders = dict[str, tuple[Callable[[], Eagle3Drafter], str]]  # by name: how to load it, and what it adds to


def export_drafters(cfg: ExportConfig) -> Iterator[str]:
    """Write them; yields the lines to print: where they are from, what was written, how to serve it."""
    facts = read_target(cfg.target)
    bundle = bundle_of(cfg)
    if bundle is not None:
        yield f"from the bundle {bundle}"
    found = drafters_of_runs(cfg, facts) if bundle is None else drafters_of_bundle(cfg, facts, bundle)
    if cfg.out and len(found) > 1:
        raise ConfigError(f"out= is one folder, but there are {', '.join(found)}; type drafter=NAME")
    label = "-plain" if cfg.layout == "plain" else ""
    paths = {name: Path(cfg.out or exports_dir(cfg) / f"{name}-{cfg.format}{label}") for name in found}
    for path in paths.values():
        refuse_export(path.expanduser(), cfg.overwrite)  # before any is written
    for name, (load, generalist) in found.items():
        yield from write_drafter(cfg, load(), facts, name, generalist, paths[name])


def bundle_of(cfg: ExportConfig) -> Path | None:
    """The bundle that is named; None where it is only the default's name, and there is none of it."""
    where = cfg.bundle, target_name(cfg.target), cfg.runs_dir
    if cfg.bundle == ExportConfig.bundle and not (named_bundle(*where) / BUNDLE).is_file():
        return None
    return locate(find_bundle(*where, typed_target(cfg)))


def drafters_of_bundle(cfg: ExportConfig, facts: TargetFacts, folder: Path) -> Loaders:
    """Those that are asked for, or all of the bundle in `folder`."""
    record = check_bundle(folder)
    if record.target.fingerprint != facts.fingerprint:
        raise ArtifactError(
            f"{folder} serves target {record.target.name!r} with fingerprint {record.target.fingerprint}, but "
            f"{facts.name!r} has {facts.fingerprint}; {which_target(record.target)}"
        )
    asked = asked_for(cfg)
    found: Loaders = {}
    for entry in [record.drafter(name) for name in asked] or record.drafters:
        if cfg.format in kind_named(entry.kind).exports:
            found[entry.name] = loader(files_in(folder, record, entry.name), facts, entry.base)
        elif asked:
            raise no_head(f"drafter {entry.name!r} of {folder}", entry.kind)
    return some(found, str(folder), typed_target(cfg))


def drafters_of_runs(cfg: ExportConfig, facts: TargetFacts) -> Loaders:
    """Those that are asked for, by name or folder, or all that were trained for the target or are shipped."""
    asked = asked_for(cfg)
    found: Loaders = {}
    for name in asked or list_artifacts(cfg.runs_dir, facts.name, "drafters"):
        folder = find_artifact(cfg.runs_dir, facts.name, "drafters", name, hint=command_for(name) + typed_target(cfg))
        manifest = open_artifact(folder, "drafters", target_fingerprint=facts.fingerprint, target=facts.name)
        kind = kind_named(kind_of(manifest))
        if cfg.format in kind.exports:
            base = kind.base_of(folder)
            generalist = Manifest.read(base).name if base else ""
            found[manifest.name] = loader(DrafterSource(name, kind.name, folder, base), facts, generalist)
        elif asked:
            raise no_head(str(folder), kind.name)
    return some(found, cfg.runs_dir, typed_target(cfg))


def asked_for(cfg: ExportConfig) -> list[str]:
    """Names of drafters; none: all."""
    return [cfg.drafter] if cfg.drafter else list(cfg.pool.drafters)


def no_head(which: str, kind: str) -> ArtifactError:
    """The error about a drafter that other programs do not read."""
    return ArtifactError(f"{which} is a {kind} drafter; only EAGLE-3 drafters have a layout to export")


def some(found: Loaders, where: str, typed: str) -> Loaders:
    """Those found, of which there must be one.  typed: keys of a suggested command."""
    if not found:
        raise ArtifactError(
            f"there is no EAGLE-3 drafter to export in {where}; type drafterforge train-drafter domain=sql{typed}"
        )
    return found


def loader(source: DrafterSource, facts: TargetFacts, generalist: str) -> tuple[Callable[[], Eagle3Drafter], str]:
    """How to load a drafter, its additions merged, and what it adds to."""
    return partial(kind_named(source.kind).export, source, facts.embedding), generalist


def exports_dir(cfg: ExportConfig) -> Path:
    """Where exports go that no `out=` names."""
    return Path(cfg.runs_dir) / target_name(cfg.target) / "exports"


def write_drafter(
    cfg: ExportConfig, drafter: Eagle3Drafter, facts: TargetFacts, name: str, generalist: str, path: Path
) -> list[str]:
    """One drafter, to the folder `path`.  generalist: what additions were merged into; empty: none were."""
    path = path.expanduser().resolve()
    layout, dtype = cfg.layout or LAYOUTS[0], DTYPES[cfg.weights]
    with write_export(path, cfg.overwrite) as filled:
        if cfg.format == "sglang":
            command = write_sglang(filled, drafter, facts, path, dtype)
        else:
            command = write_vllm(filled, drafter, facts, path, layout, dtype)
    merged = f", its additions merged into the weights of {generalist}" if generalist else ""
    size = (path / "model.safetensors").stat().st_size / 1e6
    lines = [f"wrote {path}: drafter {name}{merged}, {size:.1f} MB"]
    if norms := [norm for norm in NORMS_31 if getattr(drafter.spec, norm)]:
        lines.append(f"it has {' and '.join(norms)}, which other programs than SGLang and vLLM do not know")
    return [*lines, f"serve it with: {command}"]
