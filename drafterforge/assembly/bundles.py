"""Open a bundle by name, path or hub id: every check first, then the target, then what it decodes with."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.assembly.pools import build_pool, open_alone
from drafterforge.bundle.archive import is_archive, unpacked
from drafterforge.bundle.files import check_files, folder_of, stamps
from drafterforge.bundle.hub import downloaded, is_hub_id
from drafterforge.bundle.record import BUNDLE, BundleRecord, Defaults, TargetReference, read_record
from drafterforge.config.names import parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.base import DrafterSource
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, quote, shorten
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.shapes import choose_shape
from drafterforge.selectors import check_options, heeds_advice
from drafterforge.targets.load import Target, load_target

LONGEST = 800  # characters of an error


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """What a stranger's file says is told in part only, however long it is."""
    try:
        yield
    except DrafterforgeError as error:
        if len(str(error)) <= LONGEST and "\n" not in str(error):
            raise
        text = " ".join(str(error).split())
        shorter = text if len(text) <= LONGEST else f"{text[: LONGEST - 200]} ... {text[-180:]}"
        raise type(error)(shorter) from error


@short_errors()
def open_bundle(
    path: str | Path,
    *,
    target: Target | TargetConfig | str | None = None,
    drafter: str = "",
    selector: str | None = None,
    scheduler: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    runtime: RuntimeConfig | None = None,
    max_batch: int = 8,
) -> Engine:
    """The engine of the bundle at `path`: a folder, a `.tar` of one, or a hub id (`name/bundle`, `name/bundle@rev`).

    target: a folder or hub id of the target, a configuration, or the loaded one; None: where the bundle says it is.
    drafter: decode with this one alone, without selection and scheduling.  selector, scheduler: others than the
    bundle's defaults; a scheduler of "" is none.  device, dtype: where and in what the target is loaded.  runtime:
    static tree and numerics; what is null or `auto` is the bundle's.
    Raises ArtifactError or ConfigError, in one line, on anything but a whole bundle of this very target.
    """
    folder = locate(path)
    with unchanged(folder) as record:
        defaults = record.defaults
        check_options(defaults.selector, defaults.options)
        for name in parts_of([drafter] if drafter else defaults.drafters):
            files_in(folder, record, name)  # a wrong name should not wait for the target
        if not isinstance(target, Target):
            target = load_target(target_config(record.target, target, device, dtype))
        check_target(record.target, target, folder)
        source = BundleFolder(folder, record, target)
        runtime = filled(runtime or RuntimeConfig(), record)
        if drafter:
            alone = open_alone(drafter, source)
            shape = choose_shape(runtime, target.device, target.dtype, kind_name(alone))
            return Engine(target, alone, shape, max_batch, runtime.numerics)
        pool, shape = build_pool(pool_config(defaults, selector, scheduler), runtime, source, seed=None)
        return Engine(target, pool, shape, max_batch, runtime.numerics)


def pool_config(defaults: Defaults, selector: str | None, scheduler: str | None) -> PoolConfig:
    """The bundle's pool, with another selector or scheduler where one is given."""
    kept = selector in (None, defaults.selector)
    selector = defaults.selector if kept else selector
    return PoolConfig(
        drafters=list(defaults.drafters),
        selector=selector,
        options=dict(defaults.options) if kept else {},
        every=defaults.every,
        scheduler=defaults.scheduler if scheduler is None else scheduler,
        router=defaults.router if heeds_advice(selector) else "",
    )


@dataclass(frozen=True)
class BundleFolder:
    """A `PoolSource`: the bundle in `folder`, whose files are whole and whose target this is."""

    folder: Path
    record: BundleRecord
    target: Target
    quiet: bool = True

    def pool(self) -> list[str]:
        """Names of the bundle's default drafters."""
        return list(self.record.defaults.drafters)

    def unproven(self) -> list[str]:
        """None: whoever made the bundle has named its drafters."""
        return []

    def drafter(self, name: str) -> DrafterSource:
        """Where a drafter's files are in the bundle."""
        return files_in(self.folder, self.record, name)

    def weights(self, name: str) -> tuple[str, str]:
        """A drafter's name, and the fingerprint of its weights."""
        return self.record.drafter(name).name, self.record.fingerprint(name)

    def part(self, name: str, kind: str) -> Path:
        """The folder of a policy or a router of the bundle."""
        return folder_of(self.folder, self.record.part(name, kind).path, self.record)


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[BundleRecord]:
    """Yields the record of a whole bundle; ArtifactError if its files are others when the block ends."""
    record = read_record(folder)
    before = stamps(folder, record)
    check_files(folder, record)
    yield record
    if stamps(folder, record) != before:
        raise ArtifactError(f"{folder} was changed while it was opened; type the same command again")


@short_errors()
def locate(path: str | Path) -> Path:
    """The local folder of a bundle, fetched or unpacked where it is not one already."""
    folder = Path(path).expanduser()
    restore_interrupted(folder)
    if folder.is_dir():
        return folder
    if folder.is_file():
        if is_archive(folder):
            return unpacked(folder)
        raise ArtifactError(f"{folder} is no bundle; wanted a folder with {BUNDLE}, a .tar of one, or a hub id")
    if is_hub_id(str(path)):
        return downloaded(str(path))
    raise ArtifactError(f"no bundle at {folder}; wanted a folder with {BUNDLE}, a .tar of one, or a hub id")


def check_bundle(folder: Path, hashes: bool = True) -> BundleRecord:
    """The record of the bundle in `folder`, whose files are all there and whole."""
    record = read_record(folder)
    check_files(folder, record, hashes)
    return record


def target_config(
    reference: TargetReference, given: TargetConfig | str | None, device: str, dtype: str
) -> TargetConfig:
    """How to load the target: as the bundle says, or from where the caller says."""
    if isinstance(given, TargetConfig):
        return given if given.taps else dataclasses.replace(given, taps=list(reference.taps))
    where = {"name": reference.name, "device": device, "dtype": dtype, "taps": list(reference.taps)}
    if given:
        return TargetConfig(source="hf", model=str(given), **where)
    model = reference.model
    if model.startswith(("/", "~", ".")) and not Path(model).expanduser().is_dir():
        raise ArtifactError(
            f"the bundle's target {quote(reference.name)} was at {quote(model, 200)} where it was made, and is not "
            f"here; {which_target(reference)}"
        )
    return TargetConfig(source=reference.source, model=model, revision=reference.revision, **where)


def check_target(reference: TargetReference, target: Target, folder: Path) -> None:
    """Refuse another target than the one that the bundle's drafters were trained for."""
    if target.fingerprint == reference.fingerprint:
        return
    found = tokenizer_sha256(target.folder)
    other = "tokenizer" if found != reference.tokenizer_sha256 else "weights or config"
    raise ArtifactError(
        f"{folder} serves target {quote(reference.name)} with fingerprint {shorten(reference.fingerprint)}, but "
        f"this {quote(target.name)} has {target.fingerprint} (another {other}); {which_target(reference)}"
    )


def which_target(reference: TargetReference) -> str:
    """What to type for the target that the bundle was made for."""
    if reference.source == "wheel":
        return "leave target= out: it is the embedded default"
    return "type target=hf target.model=FOLDER_OR_HUB_ID of that target, in Python target=FOLDER_OR_HUB_ID"


def tokenizer_sha256(folder: Path) -> str:
    """Of tokenizer.json in a target's folder; empty without one."""
    path = folder / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def files_in(folder: Path, record: BundleRecord, name: str) -> DrafterSource:
    """Where a drafter's files are in the bundle at `folder`."""
    entry = record.drafter(name)
    kind = kind_named(entry.kind)
    if not kind.needs_files and not entry.path:
        return DrafterSource(name, entry.kind, None)
    path = folder_of(folder, entry.path, record)
    if not entry.base:
        return DrafterSource(name, entry.kind, path)
    if not kind.is_adapter(path):
        raise ArtifactError(f"{path} has no adapter/, though {BUNDLE} says that it adds to {quote(entry.base)}")
    return DrafterSource(name, entry.kind, path, folder_of(folder, record.drafter(entry.base).path, record))


def filled(given: RuntimeConfig, record: BundleRecord) -> RuntimeConfig:
    """What is given, and for the rest what the bundle says."""
    defaults = record.defaults
    shape = {
        key: getattr(defaults if getattr(given, key) is None else given, key)
        for key in ("num_tokens", "depth", "top_k")
    }
    return RuntimeConfig(numerics=defaults.numerics if given.numerics == "auto" else given.numerics, **shape)


def is_name(text: str) -> bool:
    """Whether a text can be the name of an artifact, not only a path."""
    return "/" not in text and not text.startswith((".", "~"))


def named_bundle(bundle: str, target: str, runs_dir: Path | str) -> Path:
    """The folder of a bundle of this name, whether or not it is there."""
    if not is_name(bundle):
        raise ConfigError(f"bundle={bundle} is no name (no '/', no leading '.'); type bundle=NAME, or out=FOLDER")
    folder = artifact_dir(runs_dir, target, "bundles", bundle)
    restore_interrupted(folder)
    return folder


def find_bundle(bundle: str, target: str, runs_dir: Path | str, typed: str = "") -> str | Path:
    """What `bundle=` means: the target's bundle of that name, or the path or hub id that it is.

    typed: keys of a suggested command, see `config.hints.typed_target`.
    """
    if not is_name(bundle):
        return bundle
    folder = named_bundle(bundle, target, runs_dir)
    if (folder / BUNDLE).is_file():
        return folder
    if Path(bundle).exists():
        return bundle
    there = sorted(path.parent.name for path in folder.parent.glob(f"*/{BUNDLE}") if path.parent.name[0] != ".")
    elsewhere = sorted(Path(runs_dir).glob(f"*/bundles/{glob.escape(bundle)}/{BUNDLE}"))
    todo = f"type bundle={elsewhere[0].parent}" if elsewhere else f"type drafterforge export bundle={bundle}{typed}"
    raise ArtifactError(
        f"no bundle named {bundle!r} for target {target!r} in {runs_dir} "
        f"(there is: {', '.join(there) or 'none'}); {todo}, or give a folder, a .tar or a hub id"
    )
