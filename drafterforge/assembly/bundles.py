"""Open a bundle by name, path or hub id: check its files, load the target, build the engine."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.locate import is_folder
from drafterforge.assembly.build import auto_engine, build_engine
from drafterforge.assembly.runs import GENERAL
from drafterforge.assembly.sources import DrafterSummary
from drafterforge.bundle.archive import is_archive, unpack_to_cache
from drafterforge.bundle.files import check_files, file_stamps, folder_of
from drafterforge.bundle.hub import download, is_hub_id
from drafterforge.bundle.record import BUNDLE, COSTS, BundleRecord, Defaults, TargetReference, read_record
from drafterforge.config.names import AUTO, POOL, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import MATCH, RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.base import DrafterSource
from drafterforge.drafters.registry import KINDS, kind_named
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, quote, shorten
from drafterforge.runtime.engine import Engine
from drafterforge.selectors import check_options, takes_advice
from drafterforge.targets.load import Target, load_target

MAX_ERROR_CHARS = 800
MAX_HUB_ID = 200  # characters, more than any hub id has


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Shorten errors to one line of bounded length, because they quote files of unknown origin."""
    try:
        yield
    except DrafterforgeError as error:
        if len(str(error)) <= MAX_ERROR_CHARS and "\n" not in str(error):
            raise
        text = " ".join(str(error).split())
        shortened = text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 200]} ... {text[-180:]}"
        raise type(error)(shortened) from error


@short_errors()
def open_bundle(
    path: str | Path,
    *,
    target: Target | TargetConfig | str | None = None,
    drafter: str = AUTO,
    selector: str | None = None,
    scheduler: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    runtime: RuntimeConfig | None = None,
    max_batch: int = 8,
    carry: bool = False,
) -> Engine:
    """The engine of the bundle at `path`: a folder, a `.tar` of one, or a hub id (`name/bundle`, `name/bundle@rev`).

    target: a folder or hub id, a configuration, or a loaded target; None: the target that the bundle names.
    drafter: decode with this drafter or hybrid only, without a selector or scheduler; `pool`: with all drafters;
        `auto`: with the settings given to `export`; without any, as `auto_engine` decides; empty: plain decoding.
    selector, scheduler: replace the bundle's defaults; scheduler="" means none.
    runtime: static tree and numerics; fields that are None or `auto` are taken from the bundle.
    carry: see `auto_engine`.
    Raises ArtifactError or ConfigError if the bundle is damaged or was made for another target.
    """
    if runtime is not None and runtime.verify != MATCH:
        raise ConfigError(
            "runtime.verify=rejection decodes with a drafter of a runs folder, not with a bundle; leave it out"
        )
    folder = locate(path)
    with verified_record(folder) as record:
        defaults = record.defaults
        check_options(defaults.selector_name, defaults.options)
        single = drafter not in (AUTO, POOL)
        for name in parts_of(([drafter] if drafter else []) if single else defaults.drafters):
            drafter_source(folder, record, name)  # report a wrong name before the target is loaded
        pool = pool_config(record, selector, scheduler)
        if not isinstance(target, Target):
            target = load_target(target_config(record.target, target, device, dtype))
        check_target(record.target, target, folder)
        source = BundleFolder(folder, record, target)
        runtime = with_defaults(runtime or RuntimeConfig(), record.defaults)
        if single:
            return build_engine(source, drafter, PoolConfig(), runtime, max_batch)
        if drafter == AUTO and selector is scheduler is None and defaults.automatic:
            return auto_engine(source, runtime, max_batch, carry)[0]
        return build_engine(source, POOL, pool, runtime, max_batch, seed=None)


def pool_config(record: BundleRecord, selector: str | None, scheduler: str | None) -> PoolConfig:
    """The bundle's pool; a selector or scheduler that is not None replaces the default."""
    defaults = record.defaults
    use_default = selector in (None, defaults.selector_name)
    selector = defaults.selector_name if use_default else selector
    router = defaults.router if takes_advice(selector) else ""
    if selector == "router" and not router:
        routers = [part.name for part in record.parts if part.kind == "router"]
        if not routers:
            raise ConfigError("the bundle has no router for selector=router; type pool.selector=hedgespec")
        router = routers[0]
    return PoolConfig(
        drafters=list(defaults.drafters),
        selector=selector,
        options=dict(defaults.options) if use_default else {},
        scheduler=defaults.scheduler if scheduler is None else scheduler,
        router=router,
    )


@dataclass(frozen=True)
class BundleFolder:
    """A `PoolSource`: the checked bundle in `folder`, with its loaded target."""

    folder: Path
    record: BundleRecord
    target: Target
    quiet: bool = True

    def pool(self) -> list[str]:
        """Names of the bundle's default drafters."""
        return list(self.record.defaults.drafters)

    def named(self) -> list[str]:
        """The drafters that `export` was told, without those that are packed only because an expert needs them."""
        return self.pool()

    def unproven(self) -> list[str]:
        return []  # the bundle names all drafters of its pool

    def learned(self) -> set[str]:
        return set()  # a bundle has no traffic

    def other_taps(self) -> list[str]:
        return []  # opening a bundle refuses drafters of other taps

    def summaries(self) -> list[DrafterSummary]:
        summaries = []
        for entry in self.record.drafters:
            if entry.path:
                rank = kind_named(entry.kind).pool_rank(self.drafter(entry.name).folder)
                summaries.append(DrafterSummary(entry.name, entry.kind, entry.domain or GENERAL, rank))
        return sorted(summaries, key=lambda drafter: (drafter.rank, drafter.name))

    def drafter(self, name: str) -> DrafterSource:
        return drafter_source(self.folder, self.record, name)

    def identity(self, name: str) -> tuple[str, str]:
        return self.record.drafter(name).name, self.record.fingerprint(name)

    def part(self, name: str, kind: str) -> Path:
        return folder_of(self.folder, self.record.part(name, kind).path, self.record)

    def default_router(self) -> Path | None:
        names = [part.name for part in self.record.parts if part.kind == "router"]
        return self.part(names[0], "router") if names else None

    def cost_folders(self) -> list[Path]:
        parts = [part for part in self.record.parts if part.kind == COSTS]
        return [folder_of(self.folder, part.path, self.record) for part in parts]


@contextlib.contextmanager
def verified_record(folder: Path) -> Iterator[BundleRecord]:
    """Yields the record of a bundle after checking its files; ArtifactError if they change before the block ends."""
    record = read_record(folder)
    stamps = file_stamps(folder, record)
    check_files(folder, record)
    yield record
    if file_stamps(folder, record) != stamps:
        raise ArtifactError(f"{folder} changed while it was being opened; type the same command again")


@short_errors()
def locate(path: str | Path) -> Path:
    """The local folder of a bundle; unpacks an archive and downloads a hub id."""
    folder = Path(path).expanduser()
    restore_interrupted(folder)
    if folder.is_dir():
        return folder
    if folder.is_file():
        if is_archive(folder):
            return unpack_to_cache(folder)
        raise ArtifactError(f"{folder} is not a bundle; expected a folder with {BUNDLE}, a .tar of one, or a hub id")
    if is_hub_id(str(path)):
        return download(str(path))
    raise ArtifactError(f"no bundle at {folder}; expected a folder with {BUNDLE}, a .tar of one, or a hub id")


def check_bundle(folder: Path, hashes: bool = True) -> BundleRecord:
    """The record of the bundle in `folder`; ArtifactError if a file is missing or damaged."""
    record = read_record(folder)
    check_files(folder, record, hashes)
    return record


def target_config(
    reference: TargetReference, override: TargetConfig | str | None, device: str, dtype: str
) -> TargetConfig:
    """How to load the target: from `override` (a configuration, folder or hub id), else as the bundle says."""
    if isinstance(override, TargetConfig):
        return override if override.taps else dataclasses.replace(override, taps=list(reference.taps))
    settings = {"name": reference.name, "device": device, "dtype": dtype, "taps": list(reference.taps)}
    if override:
        return TargetConfig(source="hf", model=str(override), **settings)
    model = reference.model
    if (model.startswith(("/", "~", ".")) or len(model) > MAX_HUB_ID) and not is_folder(model):
        raise ArtifactError(
            f"the bundle was made with its target {quote(reference.name)} in {quote(model, 200)}, which does not exist "
            f"on this machine; {target_hint(reference)}"
        )
    return TargetConfig(source=reference.source, model=model, revision=reference.revision, **settings)


def check_target(reference: TargetReference, target: Target, folder: Path) -> None:
    """ArtifactError if `target` is not the one that the bundle's drafters were trained for."""
    if target.fingerprint == reference.fingerprint:
        return
    same_tokenizer = tokenizer_sha256(target.folder) == reference.tokenizer_sha256
    difference = "weights or config differ" if same_tokenizer else "the tokenizer differs"
    raise ArtifactError(
        f"{folder} was made for target {quote(reference.name)} with fingerprint {shorten(reference.fingerprint)}, but "
        f"this {quote(target.name)} has {target.fingerprint} ({difference}); {target_hint(reference)}"
    )


def target_hint(reference: TargetReference) -> str:
    """What to type to open the target that the bundle was made for."""
    if reference.source == "wheel":
        return "leave target= out: it is the embedded default"
    return "type target=hf target.model=FOLDER_OR_HUB_ID of that target, in Python target=FOLDER_OR_HUB_ID"


def tokenizer_sha256(folder: Path) -> str:
    """The sha256 of tokenizer.json in a target's folder; empty if there is none."""
    path = folder / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def drafter_source(folder: Path, record: BundleRecord, name: str) -> DrafterSource:
    """Where a drafter's files are in the bundle at `folder`."""
    if name in KINDS and not KINDS[name].needs_files:
        return DrafterSource(name, name, None)
    entry = record.drafter(name)
    kind = kind_named(entry.kind)
    if not kind.needs_files and not entry.path:
        return DrafterSource(name, entry.kind, None)
    path = folder_of(folder, entry.path, record)
    if not entry.base:
        return DrafterSource(name, entry.kind, path)
    if not kind.is_adapter(path):
        raise ArtifactError(f"{path} has no adapter/, but {BUNDLE} says that it is an adapter of {quote(entry.base)}")
    return DrafterSource(name, entry.kind, path, folder_of(folder, record.drafter(entry.base).path, record))


def with_defaults(runtime: RuntimeConfig, defaults: Defaults) -> RuntimeConfig:
    """`runtime` with the bundle's defaults for fields that are None or `auto`."""
    shape = {
        key: getattr(defaults if getattr(runtime, key) is None else runtime, key)
        for key in ("num_tokens", "depth", "top_k")
    }
    return RuntimeConfig(numerics=defaults.numerics if runtime.numerics == "auto" else runtime.numerics, **shape)
