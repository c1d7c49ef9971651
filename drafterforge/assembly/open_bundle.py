"""From a bundle's path or hub id to an engine: every check first, then the target, then what it decodes with."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.assembly.drafters import Source, open_named
from drafterforge.bundle.archive import is_archive, unpacked
from drafterforge.bundle.files import check_files, folder_of, stamps
from drafterforge.bundle.hub import downloaded, is_hub_id
from drafterforge.bundle.record import BUNDLE, BundleRecord, TargetReference, read_record
from drafterforge.config.names import parts_of
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.registry import kind_named, kind_of
from drafterforge.errors import ArtifactError, DrafterforgeError, quote, shorten
from drafterforge.router.router import Router
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.policy import check_observations, check_policy, load_policy
from drafterforge.selectors import check_options, heeds_advice
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

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
        names = [drafter] if drafter else defaults.drafters
        sources = {name: source_of(folder, record, name) for name in parts_of(names)}
        if not isinstance(target, Target):
            target = load_target(target_config(record.target, target, device, dtype))
        check_target(record.target, target, folder)
        drafters = open_named(names, sources.__getitem__, target)
        runtime = merged(runtime or RuntimeConfig(), record)
        if drafter:
            alone = drafters[drafter]
            shape = choose_shape(runtime, target.device, target.dtype, kind_name(alone))
            return Engine(target, alone, shape, max_batch, runtime.numerics)
        own = selector in (None, defaults.selector)
        chosen = defaults.selector if own else selector
        router = open_router(folder, record, target) if defaults.router and heeds_advice(chosen) else None
        policy = open_scheduler(
            folder, record, target, drafters, defaults.scheduler if scheduler is None else scheduler
        )
        pool = Pool(
            drafters,
            chosen,
            every=defaults.every,
            shapes={name: shape for name, one in drafters.items() if (shape := own_shape(one, target))},
            scheduler=policy,
            router=router,
            **(defaults.options if own else {}),
        )
        shape = choose_shape(runtime, target.device, target.dtype)
        pool.selector(shape)  # a mistake in its options should not wait for a prompt
        return Engine(target, pool, shape, max_batch, runtime.numerics)


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


def source_of(folder: Path, record: BundleRecord, name: str) -> Source:
    """Where a drafter's files are in the bundle."""
    entry = record.drafter(name)
    kind = kind_named(entry.kind)
    if not kind.needs_files and not entry.path:
        return Source(name, entry.kind, None)
    own = folder_of(folder, entry.path, record)
    if not entry.base:
        return Source(name, entry.kind, own)
    if not kind.adds(own):
        raise ArtifactError(f"{own} has no adapter/, though {BUNDLE} says that it adds to {quote(entry.base)}")
    return Source(name, entry.kind, own, folder_of(folder, record.drafter(entry.base).path, record))


def open_router(folder: Path, record: BundleRecord, target: Target) -> Router:
    """The bundle's router."""
    place = record.part(record.defaults.router, "router").path
    return Router.load(folder_of(folder, place, record), target.features_fingerprint)


def open_scheduler(
    folder: Path, record: BundleRecord, target: Target, drafters: Mapping[str, Drafter], name: str
) -> Scheduler | None:
    """The scheduler of this name, none without one; it must be of this target and of the bundle's drafter."""
    if not name:
        return None
    own = folder_of(folder, record.part(name, "policy").path, record)
    policy = load_policy(own)
    drafter = record.drafter(policy.spec.drafter)
    check_policy(policy, target.fingerprint, drafter.name, record.fingerprint(drafter.name), own)
    sizes = [one.spec.draft_vocab_size for one in drafters.values() if kind_of(one).scheduled]
    check_observations(policy, target.config.hidden_size, sizes, own)
    return policy


def merged(given: RuntimeConfig, record: BundleRecord) -> RuntimeConfig:
    """What is given, and for the rest what the bundle says."""
    own = {key: getattr(record.defaults, key) for key in ("num_tokens", "depth", "top_k")}
    shape = {key: value if getattr(given, key) is None else getattr(given, key) for key, value in own.items()}
    return RuntimeConfig(numerics=record.defaults.numerics if given.numerics == "auto" else given.numerics, **shape)


def own_shape(drafter: Drafter, target: Target) -> TreeShape | None:
    """Trees of a drafter whose levels cost nothing, or stop by themselves; None: the engine's."""
    kind = kind_of(drafter)
    return kind.default_shape(target.device, target.dtype) if kind.has_default_shape else None
