"""Pack drafters, policies and what was measured of them into a bundle that opens as a user would open it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import SHIPPED, find_artifact, list_artifacts
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.bundles import is_name, open_bundle, tokenizer_sha256
from drafterforge.assembly.engines import POOL, check_names
from drafterforge.assembly.pools import build_pool, check_selector, pool_names, say_of_reading
from drafterforge.assembly.runs import RunsFolder
from drafterforge.bundle.record import BUNDLE, BundleRecord, Defaults, DrafterEntry, PartEntry, TargetReference
from drafterforge.bundle.write import write_bundle
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.hints import typed_target
from drafterforge.config.names import parse_hybrid
from drafterforge.config.progress import say
from drafterforge.drafters.base import DrafterSource
from drafterforge.errors import ArtifactError
from drafterforge.targets.load import Target, load_target

LICENCES = {"smollm2-135m": "Apache-2.0"}  # of targets whose weights come with the package's own loader
NOT_NEEDED = ("curves.json", "curves.png", "rows.json", "logs/")  # of an artifact, when it decodes
MIN_PROMPTS = 8  # of a figure worth telling others
REPORTED = ("domain", "method", "num_prompts", "mat", "speedup", "mismatches", "dtype", "device")


def make_bundle(cfg: ExportConfig, folder: Path) -> BundleRecord:
    """Gather, write, and open once as a user would."""
    if (folder / BUNDLE).is_file() and not cfg.overwrite:
        raise ArtifactError(f"{folder} exists already; type overwrite=true to replace it, or bundle=OTHER")
    check_selector(cfg.pool, typed_target(cfg))
    check_names(POOL, cfg.pool, cfg.runs_dir, cfg.target.folder_name, typed_target(cfg))
    target = load_target(cfg.target)
    say_of_reading(cfg.pool, target)
    runs = RunsFolder(cfg.runs_dir, target)
    build_pool(cfg.pool, cfg.runtime, runs)  # what does not decode is not exported
    parts, names = Parts(), []
    for given in pool_names(runs, cfg.pool.drafters):
        names.append(given if parse_hybrid(given) else Path(given).name)  # of a folder's path
        for part in parse_hybrid(given) or (given,):
            add_drafter(cfg, target, parts, dataclasses.replace(runs.drafter(part), name=Path(part).name))
    for kind, name in (("policy", cfg.pool.scheduler), ("router", cfg.pool.router)):
        if name:
            add_policy(cfg, target, parts, kind, name)
    add_latency(cfg, target, parts)
    shape = {key: getattr(cfg.runtime, key) for key in ("num_tokens", "depth", "top_k", "numerics")}
    record = BundleRecord(
        name=cfg.bundle if is_name(cfg.bundle) else folder.resolve().name,
        target=reference_of(cfg, target),
        drafters=parts.drafters,
        parts=parts.parts,
        defaults=Defaults(
            names,
            cfg.pool.selector,
            dict(cfg.pool.options),
            cfg.pool.every,
            Path(cfg.pool.scheduler).name,
            Path(cfg.pool.router).name,
            **shape,
        ),
        licences={"target": reference_of(cfg, target).licence, "drafters": ", ".join(parts.licences)},
        created=max(parts.created, default=""),
    )
    record = write_bundle(
        folder, record, parts.files, cfg.overwrite, check=lambda inside: open_bundle(inside, target=target)
    )
    if Path(cfg.target.model).is_dir() and cfg.target.source == "hf":
        say(f"the target is named by its folder, {cfg.target.model}; elsewhere type target=hf target.model=FOLDER")
    size = sum(file.bytes for file in record.files.values())
    say(
        f"{folder}: {len(record.drafters)} drafters, {len(record.parts)} parts, {size / 1e6:.1f} MB, digest "
        f"{record.digest[:12]}; type drafterforge serve bundle={folder}, or drafterforge inspect {folder}"
    )
    return record


@dataclass
class Parts:
    """What has been gathered so far."""

    drafters: list[DrafterEntry] = field(default_factory=list)
    parts: list[PartEntry] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)  # of the artifacts taken

    @property
    def licences(self) -> list[str]:
        """Of the drafters that have files."""
        return sorted({entry.licence or "not stated" for entry in self.drafters if entry.path})

    def take(self, manifest: Manifest, folder: Path, place: str) -> None:
        """Files of an artifact that decoding needs."""
        self.created.append(manifest.created)
        self.digests.add(manifest.digest)
        self.files |= {f"{place}/{name}": folder / name for name in manifest.files if not name.startswith(NOT_NEEDED)}


def reference_of(cfg: ExportConfig, target: Target) -> TargetReference:
    """What names the target, and tells it from any other."""
    local = Path(cfg.target.model).expanduser()
    return TargetReference(
        name=target.name,
        source=cfg.target.source,
        model=str(local.resolve()) if local.is_dir() and cfg.target.model else cfg.target.model,
        revision=cfg.target.revision,
        fingerprint=target.fingerprint,
        tokenizer_sha256=tokenizer_sha256(target.folder),
        model_type=target.config.model_type,
        vocab_size=target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        num_layers=target.config.num_hidden_layers,
        taps=list(target.backbone.taps),
        licence=cfg.target_licence or (LICENCES.get(target.name, "") if cfg.target.source == "wheel" else ""),
    )


def add_drafter(cfg: ExportConfig, target: Target, parts: Parts, source: DrafterSource) -> None:
    """A drafter, and first what it adds to."""
    if any(entry.name == source.name for entry in parts.drafters):
        return
    if source.folder is None:
        parts.drafters.append(DrafterEntry(source.name, source.kind, "", "", "", "", {}, {}))
        return
    base = ""
    if source.base is not None:
        base = Manifest.read(source.base).name
        add_drafter(cfg, target, parts, DrafterSource(base, source.kind, source.base))
    manifest = Manifest.read(source.folder)
    place = f"drafters/{source.name}"
    parts.take(manifest, source.folder, place)
    shipped = SHIPPED in source.folder.absolute().parents
    config = manifest.config
    training = {**manifest.metrics, "drafter": config.get("drafter", {}), "trainer": config.get("trainer", {})}
    parts.drafters.append(
        DrafterEntry(
            name=source.name,
            kind=source.kind,
            path=place,
            base=base,
            domain=str(config.get("domain", "")),
            licence=cfg.licence or ("Apache-2.0" if shipped else ""),
            training=training,
            evaluation={"rows": list(reported(cfg, target, source.name, manifest.digest))},
        )
    )


def reported(cfg: ExportConfig, target: Target, name: str, digest: str) -> Iterator[dict[str, Any]]:
    """Rows of reports on this drafter as it is now, decoding alone."""
    for report in list_artifacts(cfg.runs_dir, target.name, "reports"):
        folder = find_artifact(cfg.runs_dir, target.name, "reports", report)
        path = folder / "report.json"
        if not path.is_file() or digest not in {parent["sha256"] for parent in Manifest.read(folder).parents}:
            continue
        content = json.loads(path.read_bytes())
        for row in content.get("rows", []):
            if row.get("drafters") == [name] and row.get("num_prompts", 0) >= MIN_PROMPTS:
                yield {key: row.get(key, content.get(key)) for key in REPORTED}


def add_policy(cfg: ExportConfig, target: Target, parts: Parts, kind: str, name: str) -> None:
    """A scheduler's policy, or a router."""
    folder = find_artifact(cfg.runs_dir, target.name, "policies", name)
    manifest = open_artifact(folder, "policies", target_fingerprint=target.fingerprint, target=target.name)
    place = f"{'policies' if kind == 'policy' else 'routers'}/{folder.name}"
    parts.take(manifest, folder, place)
    about = {**manifest.metrics, "drafter": manifest.config.get("drafter", {}).get("name", "")}
    if kind == "policy":
        about["method"] = manifest.config.get("policy", {}).get("method", "")
    parts.parts.append(PartEntry(folder.name, kind, place, about))


def add_latency(cfg: ExportConfig, target: Target, parts: Parts) -> None:
    """Latency profiles of drafters that are in the bundle."""
    for name in list_artifacts(cfg.runs_dir, target.name, "latency"):
        folder = find_artifact(cfg.runs_dir, target.name, "latency", name)
        manifest = open_artifact(folder, "latency", target_fingerprint=target.fingerprint, target=target.name)
        if parts.digests & {parent["sha256"] for parent in manifest.parents}:
            place = f"latency/{name}"
            parts.take(manifest, folder, place)
            about = {"device": manifest.config.get("device", ""), "dtype": manifest.config.get("dtype", "")}
            parts.parts.append(PartEntry(name, "latency", place, {**about, **manifest.metrics}))
