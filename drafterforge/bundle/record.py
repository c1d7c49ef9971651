"""The `bundle.json` of a bundle: what it is for, what it holds, what its engine does by default, every file's hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.manifest import canonical_json, plain_json
from drafterforge.artifacts.typed import read_json, typed
from drafterforge.config.names import parts_of
from drafterforge.config.runtime import MOST_NODES, RuntimeConfig
from drafterforge.drafters.registry import KINDS
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.schedulers.actions import MOST_CANDIDATES
from drafterforge.tree.grow import TreeShape

BUNDLE = "bundle.json"
SCHEMA_VERSION = 1  # raised when a record of this version would be misread by older code
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # version -> content of the next version
WEIGHTS = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_CONTROL = re.compile(r"\\u00[01]|[\x7f-\x9f]")  # in JSON: what terminals obey, but for line ends and tabs


@dataclass(frozen=True)
class TargetReference:
    """The one target that a bundle's drafters serve, and where to get it."""

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
    taps: list[int]  # layers whose inputs are the feature
    licence: str


@dataclass(frozen=True)
class DrafterEntry:
    """One drafter of the pool."""

    name: str
    kind: str  # name of a `DrafterKind` that has files
    path: str  # its folder in the bundle; empty: retrieval from the prompt and the answer alone
    base: str  # the drafter that a LoRA expert adds to; empty: it has weights of its own
    domain: str
    licence: str
    training: dict[str, Any]  # settings and figures
    evaluation: dict[str, Any]  # method, domain, MAT, speed-up and dtype of its report


@dataclass(frozen=True)
class PartEntry:
    """A policy, a router or a latency profile."""

    name: str
    kind: str  # policy | router | latency
    path: str
    about: dict[str, Any]  # settings and figures


@dataclass(frozen=True)
class Defaults:
    """What the engine does unless told otherwise."""

    drafters: list[str]  # in the order that selectors count by
    selector: str = "hedgespec"
    options: dict[str, Any] = field(default_factory=dict)
    every: int = 1
    scheduler: str = ""  # a policy of the bundle
    router: str = ""  # a router of the bundle
    num_tokens: int | None = None  # of static trees; null: what suits the device
    depth: int | None = None
    top_k: int | None = None
    numerics: str = "auto"

    def check(self) -> None:
        """Refuse what no engine does."""
        if self.every < 1:
            raise ArtifactError(f"{BUNDLE}: defaults.every is {self.every}, wanted 1 cycle or more")
        try:
            RuntimeConfig(self.num_tokens, self.depth, self.top_k, self.numerics)
        except ConfigError as error:
            raise ArtifactError(f"{BUNDLE}: defaults that no engine has: {shorten(error, 200)}") from None
        widest = min(self.top_k or 1, max((self.num_tokens or MOST_NODES) - 1, 1))  # as trees are drafted
        candidates = TreeShape(1, self.depth or 1, widest).pool_size
        if candidates > MOST_CANDIDATES:
            raise ArtifactError(
                f"{BUNDLE}: defaults.depth={self.depth} and top_k={self.top_k} are {candidates:,} candidates a tree; "
                f"wanted {MOST_CANDIDATES:,} at most"
            )


@dataclass(frozen=True)
class FileEntry:
    """One file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class BundleRecord:
    """All of `bundle.json`; `digest` is what two equal bundles share."""

    name: str
    target: TargetReference
    drafters: list[DrafterEntry]
    parts: list[PartEntry]
    defaults: Defaults
    licences: dict[str, str]  # of target, drafters and data
    created: str  # of its newest part, UTC, so that the same parts give the same bytes
    files: dict[str, FileEntry] = field(default_factory=dict)  # by posix path; all but this one
    kind: str = "bundle"
    schema_version: int = SCHEMA_VERSION
    drafterforge_version: str = __version__

    @property
    def digest(self) -> str:
        """Sha256 of the canonical JSON of this record."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()

    def to_json(self) -> bytes:
        """The bytes of `bundle.json`; they carry their own digest, so damage shows."""
        content = plain_json(asdict(self)) | {"digest": self.digest}
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    def drafter(self, name: str) -> DrafterEntry:
        """The drafter of this name."""
        return _named(self.drafters, name, "drafter")

    def fingerprint(self, name: str) -> str:
        """Of a drafter's weights, from the hashes of its files; policies name it."""
        own = f"{self.drafter(name).path}/"
        weights = [one for file, one in sorted(self.files.items()) if file.startswith(own) and file.endswith(WEIGHTS)]
        return "-".join(one.sha256[:16] for one in weights)

    def part(self, name: str, kind: str) -> PartEntry:
        """The part of this name and kind."""
        return _named([part for part in self.parts if part.kind == kind], name, kind)

    def __post_init__(self) -> None:
        """Refuse names that are doubled, strange or not there."""
        for what, entries in (("drafters", self.drafters), ("parts", self.parts)):
            names = [(getattr(one, "kind", "") if what == "parts" else "", one.name) for one in entries]
            if doubled := {name for name in names if names.count(name) > 1}:
                raise ArtifactError(f"{BUNDLE}: {what} names {quote(doubled.pop()[1])} more than once")
        for entry in (*self.drafters, *self.parts):
            if not _NAME.fullmatch(entry.name):
                raise ArtifactError(f"{BUNDLE}: {quote(entry.name)} is no name; wanted letters, digits and . _ + -")
        for entry in self.drafters:
            if entry.kind not in KINDS:
                raise ArtifactError(
                    f"{BUNDLE}: drafter {quote(entry.name)} is of kind {quote(entry.kind)}; wanted {', '.join(KINDS)}"
                )
            if entry.base and self.drafter(entry.base).base:
                raise ArtifactError(
                    f"{BUNDLE}: {quote(entry.name)} adds to {quote(entry.base)}, which is an addition itself"
                )
        if not self.defaults.drafters:
            raise ArtifactError(f"{BUNDLE}: defaults.drafters is empty; wanted at least one drafter's name")
        self.defaults.check()
        for name in parts_of(self.defaults.drafters):
            self.drafter(name)
        for kind, name in (("policy", self.defaults.scheduler), ("router", self.defaults.router)):
            if name:
                self.part(name, kind)


def _named(entries: list, name: str, what: str) -> Any:
    found = [entry for entry in entries if entry.name == name]
    if not found:
        names = ", ".join(entry.name for entry in entries) or "none"
        raise ArtifactError(f"the bundle has no {what} {quote(name)}; it has {names}")
    return found[0]


def read_record(folder: Path) -> BundleRecord:
    """The record of the bundle in `folder`, migrated to this version; files are not looked at.

    Raises ArtifactError when it is missing, damaged or newer than this program.
    """
    path = folder / BUNDLE
    if not path.is_file():
        raise ArtifactError(f"{folder} is no bundle: it has no {BUNDLE}; type drafterforge export bundle=NAME")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != "bundle":
        raise ArtifactError(f"{path} is damaged (no bundle's record)")
    version = content.get("schema_version")
    if type(version) is not int or version < min([SCHEMA_VERSION, *MIGRATIONS]):
        raise ArtifactError(f"{path} has schema version {shorten(version)}, which no drafterforge wrote")
    if version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path} has schema version {version}, made by drafterforge {shorten(content.get('drafterforge_version'))}"
            f", but {__version__} reads up to {SCHEMA_VERSION}; type `pip install --upgrade drafterforge`"
        )
    digest = content.pop("digest", None)
    try:
        plain = canonical_json(content)
    except RecursionError:
        plain = b""
    if hashlib.sha256(plain).hexdigest() != digest:
        raise ArtifactError(f"{path} is damaged (its content does not match its own digest)")
    if _CONTROL.search(plain.decode("utf-8", "replace")):
        raise ArtifactError(f"{path} holds control characters; wanted plain text")
    while content["schema_version"] < SCHEMA_VERSION:
        content = MIGRATIONS[content["schema_version"]](content)
    return typed(BundleRecord, content, BUNDLE)
