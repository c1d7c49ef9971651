"""The folder that vLLM opens as the draft model of a pool: a bundle, and the `config.json` that vLLM reads.

config.json   dimensions of the EAGLE-3 drafters, their names, and the bundle's path if it is not here
bundle/       the bundle, unchanged
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from drafterforge.artifacts.atomic import report_write_errors, write_bytes_atomic
from drafterforge.artifacts.folder import write_folder
from drafterforge.artifacts.json_input import read_json
from drafterforge.assembly.bundles import check_bundle, drafter_source, locate
from drafterforge.bundle.archive import is_archive
from drafterforge.bundle.files import folder_of
from drafterforge.bundle.hub import holds_bundle
from drafterforge.bundle.record import BUNDLE, BundleRecord
from drafterforge.config.names import parts_of
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ArtifactError
from drafterforge.router.router import SPEC, Router
from drafterforge.targets.smollm2 import cache_dir

FORMAT = "vllm-pool"
ARCHITECTURE = "PoolLlamaForCausalLMEagle3"  # vLLM requires a name that ends with Eagle3
POOL = "drafterforge_pool"  # key of config.json: names of the drafters that vLLM runs
BUNDLE_PATH = "drafterforge_bundle"  # key of config.json: path of a bundle that lies elsewhere
FOLDER = "bundle"
DEPTH = 3  # drafted tokens a cycle in the printed command
FREE_FIELDS = ("max_positions", "bos_token_id", "eos_token_id", "pad_token_id")  # in which stacked drafters may differ


@dataclass(frozen=True)
class PoolFolder:
    """A pool folder whose bundle was checked."""

    folder: Path
    bundle: Path  # the bundle's folder
    record: BundleRecord
    stacked: list[str]  # drafters that vLLM runs, in the order in which they are stacked
    lookups: list[str]  # drafters that look up text on the host

    @staticmethod
    def open(folder: Path) -> PoolFolder:
        """Open `folder`; ArtifactError if it is damaged or is no pool folder."""
        config = read_json(folder / "config.json")
        config = config if isinstance(config, dict) else {}
        names, bundle = config.get(POOL), folder / str(config.get(BUNDLE_PATH, FOLDER))
        if not isinstance(names, list):
            raise ArtifactError(f"{folder} is not a pool folder; type `drafterforge export format={FORMAT}`")
        if not (bundle / BUNDLE).is_file():
            raise ArtifactError(
                f"the bundle of {folder}, at {bundle}, is gone; give the bundle's path as the model, or type "
                f"`drafterforge export format={FORMAT}`"
            )
        record = check_bundle(bundle)
        pool = PoolFolder(folder, bundle, record, names, split_names(bundle, record)[1])
        unknown = [name for name in names if name not in [entry.name for entry in record.drafters]]
        if unknown or not names:
            raise ArtifactError(f"{folder / 'config.json'} names the drafters {names}, which its bundle does not hold")
        check_dimensions(bundle, record, names)
        return pool

    @staticmethod
    def of_bundle(bundle: Path) -> PoolFolder:
        """A pool folder in the cache for the bundle in `bundle`, which is not copied."""
        bundle = bundle.resolve()
        record = check_bundle(bundle)
        stacked, lookups = split_names(bundle, record)
        config = pool_config(bundle, record, stacked) | {BUNDLE_PATH: str(bundle)}
        name = hashlib.sha256(json.dumps([record.digest, config]).encode()).hexdigest()
        folder = cache_dir() / "vllm-pools" / name[:32]
        with report_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config)
        return PoolFolder(folder, bundle, record, stacked, lookups)

    @property
    def spec(self) -> DrafterSpec:
        """The dimensions that all drafters share."""
        return spec_of(drafter_source(self.bundle, self.record, self.stacked[0]))

    def stack(self, embedding: Tensor) -> StackedDrafters:
        """The drafters that vLLM runs, in the dtype and on the device of `embedding`, the target's [V, H]."""
        shared: dict[Any, Any] = {}
        drafters = [self._load(name, embedding, shared) for name in self.stacked]
        return kind_named(drafters[0].kind).stack(drafters)

    def lookup(self, name: str, embedding: Tensor) -> Drafter:
        """A drafter that looks up text."""
        return self._load(name, embedding, None)

    def router(self) -> Router | None:
        """The bundle's router, if it reads the target's features; one that reads text is left out."""
        entry = next((part for part in self.record.parts if part.kind == "router"), None)
        if entry is None:
            return None
        folder = folder_of(self.bundle, entry.path, self.record)
        spec = read_json(folder / SPEC)
        is_text = isinstance(spec, dict) and spec.get("kind") == "text"  # loading would open its encoder
        return None if is_text else Router.load(folder)

    def _load(self, name: str, embedding: Tensor, shared: dict[Any, Any] | None) -> Drafter:
        backbone = SimpleNamespace(embedding=embedding, taps=self.spec.tap_layers)  # the target itself is vLLM's
        target = SimpleNamespace(backbone=backbone)
        source = drafter_source(self.bundle, self.record, name)
        return kind_named(source.kind).load(source, target, shared)


def find_pool(model: str) -> PoolFolder | None:
    """The pool of a pool folder, a bundle's folder or `.tar`, or a bundle's hub id; None for other draft models."""
    path = Path(model).expanduser()
    if is_pool_folder(path):
        return PoolFolder.open(path)
    is_bundle = (path / BUNDLE).is_file() or (path.is_file() and is_archive(path))
    if is_bundle or (not path.exists() and holds_bundle(model)):
        return PoolFolder.of_bundle(locate(model))
    return None


def is_pool_folder(path: Path) -> bool:
    """Whether `path` is a pool folder, intact or damaged."""
    config = path / "config.json"
    return (path / FOLDER / BUNDLE).is_file() or (config.is_file() and POOL.encode() in config.read_bytes())


def split_names(bundle: Path, record: BundleRecord) -> tuple[list[str], list[str]]:
    """Names of the bundle's drafters that vLLM runs, experts beside their generalist, and of those that look up text.

    ArtifactError if there is none of the first, or a drafter of another kind.
    """
    sources = {name: drafter_source(bundle, record, name) for name in parts_of(record.defaults.drafters)}
    runs = [name for name, source in sources.items() if FORMAT in kind_named(source.kind).exports]
    lookups = [name for name, source in sources.items() if kind_named(source.kind).reads_on_host]
    refused = [name for name in sources if name not in (*runs, *lookups)]
    if refused or not runs:
        what = f"has {', '.join(refused)}" if refused else "has no EAGLE-3 drafter"
        raise ArtifactError(
            f"the bundle {record.name} {what}; vLLM can run EAGLE-3 drafters and retrieval only; type "
            + export_command(record, refused if runs else list(sources))
        )
    roots = [record.drafter(name).base or name for name in runs]
    order = sorted(range(len(runs)), key=lambda index: (roots.index(roots[index]), index))
    return [runs[index] for index in order], lookups


def export_command(record: BundleRecord, left_out: list[str]) -> str:
    """The command that exports the bundle without these drafters."""
    names = [name for name in record.defaults.drafters if set(left_out).isdisjoint(parts_of([name]))]
    return f'`drafterforge export bundle={record.name} "pool.drafters=[{",".join(names) or "..."}]" overwrite=true`'


def check_dimensions(bundle: Path, record: BundleRecord, names: list[str]) -> None:
    """ArtifactError if the drafters of these names differ in dimensions; such drafters do not stack."""
    texts = {}  # of dimensions, which `StackedDrafters` compares
    for name in names:
        spec = vars(spec_of(drafter_source(bundle, record, name)))
        texts[name] = {key: str(value) for key, value in spec.items() if key not in FREE_FIELDS}
    first = texts[names[0]]
    if unlike := [name for name in names if texts[name] != first]:
        keys = ", ".join(key for key, text in texts[unlike[0]].items() if text != first[key])
        raise ArtifactError(
            f"{names[0]} and {unlike[0]} of the bundle {record.name} differ in {keys}, and vLLM runs drafters of equal "
            f"dimensions only; type {export_command(record, unlike)}"
        )


def write_pool(bundle: Path, out: Path, model: str, overwrite: bool) -> list[str]:
    """Write the pool folder `out` of the bundle in `bundle`; returns lines to print.  model: that vLLM serves."""
    record = check_bundle(bundle)
    stacked, lookups = split_names(bundle, record)
    config = pool_config(bundle, record, stacked)
    with write_folder(out, lambda: refuse_pool(out, overwrite)) as folder:
        shutil.copytree(bundle, folder / FOLDER)
        write_config(folder, config)
    return [f"wrote {out}: {', '.join([*stacked, *lookups])}", f"serve it with: {serve_command(out, model)}"]


def spec_of(source: DrafterSource) -> DrafterSpec:
    """The dimensions of a drafter."""
    path = (source.base or source.folder) / "config.json"
    return DrafterSpec.from_config(read_json(path), str(path))


def pool_config(bundle: Path, record: BundleRecord, names: list[str]) -> dict[str, Any]:
    """The `config.json` of a bundle's drafters of these names.

    SGLang sizes the draft model's KV cache by the number of layers: one of each drafter.
    """
    check_dimensions(bundle, record, names)
    spec = spec_of(drafter_source(bundle, record, names[0]))
    layers = {"num_hidden_layers": len(names)}
    return spec.to_config("bfloat16") | {"architectures": [ARCHITECTURE], POOL: names} | layers


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write the `config.json` of a pool folder."""
    write_bytes_atomic(folder / "config.json", json.dumps(config, indent=2).encode() + b"\n")


def serve_command(folder: Path, model: str) -> str:
    """The command that serves `model` with the pool in `folder`; the plug-in must be installed beside vLLM."""
    drafting = json.dumps({"method": "eagle3", "model": str(folder), "num_speculative_tokens": DEPTH})
    return f"vllm serve {shlex.quote(model)} --speculative-config {shlex.quote(drafting)}"


def refuse_pool(out: Path, overwrite: bool) -> None:
    """ArtifactError unless `out` is empty, or a pool folder and `overwrite` is set."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names != {"config.json", FOLDER}:
        raise ArtifactError(f"{out} exists and is not a pool folder; type out=OTHER, or move it")
    if not overwrite:
        raise ArtifactError(f"{out} exists already; type overwrite=true to replace it, or out=OTHER")
