"""The `manifest.json` of an artifact: its kind, name, target, config, parents, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from drafterforge import __version__
from drafterforge.errors import ArtifactError, quote, shorten

MANIFEST = "manifest.json"
MAX_BYTES = 64 << 20  # of the file; one that names 100,000 files has 13 MiB
SCHEMA_VERSION = 1  # incremented when older code would misread a manifest

_TYPES = {
    "kind": str,
    "schema_version": int,
    "name": str,
    "target": str,
    "target_fingerprint": str,
    "config": dict,
    "files": dict,
    "parents": list,
    "metrics": dict,
    "created": str,
    "drafterforge_version": str,
}
PARENT_KEYS = {"kind": str, "name": str, "sha256": str}  # of an entry of `parents`
HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")  # a sha256; messages keep its first 8 digits


def plain_json(value: Any) -> Any:
    """`value` as a JSON round trip returns it: lists for tuples, text for paths, None for NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()  # a NumPy or torch scalar
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of `value`, which is hashed: sorted keys, no spaces, UTF-8."""
    text = json.dumps(plain_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def first_difference(stored: Any, current: Any, key: str = "") -> str:
    """One line about the first key whose stored and current values differ, `kind` first; empty if none does."""
    if isinstance(stored, dict) and isinstance(current, dict):
        for name in sorted(stored.keys() | current.keys(), key=lambda name: (name != "kind", name)):
            line = first_difference(stored.get(name), current.get(name), f"{key}.{name}" if key else name)
            if line:
                return line
        return ""
    if stored == current:
        return ""
    before, now = _short(stored), _short(current)
    if isinstance(stored, list) and isinstance(current, list) and (before == now or _has_dicts(stored + current)):
        entries = enumerate(zip_longest(stored, current))
        return next(filter(None, (first_difference(*pair, f"{key}[{index}]") for index, pair in entries)))
    return f"{key}: {before} there, {now} now"


def _has_dicts(entries: list[Any]) -> bool:
    return any(isinstance(entry, dict) for entry in entries)


def _short(value: Any) -> str:
    text = HASH.sub(r"\1...", json.dumps(value))
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`; artifacts made from this one name its `digest` among their parents."""

    kind: str
    name: str
    target: str
    target_fingerprint: str
    config: dict[str, Any]
    files: dict[str, dict[str, Any]]  # relative posix name -> {"sha256", "bytes"}
    created: str  # UTC, ISO 8601
    parents: list[dict[str, str]] = field(default_factory=list)  # {"kind", "name", "sha256"}
    metrics: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    drafterforge_version: str = __version__

    @cached_property
    def digest(self) -> str:
        """Sha256 of the canonical JSON of this manifest."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()

    def as_parent(self) -> dict[str, str]:
        """The entry for this artifact in the `parents` of another."""
        return {"kind": self.kind, "name": self.name, "sha256": self.digest}

    def to_json(self) -> bytes:
        """The bytes of `manifest.json`, with their own digest, by which `read` detects damage."""
        content = plain_json(asdict(self)) | {"digest": self.digest}
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of an artifact folder; ArtifactError if it is damaged or of a newer schema version."""
        path = Path(folder) / MANIFEST
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ArtifactError(_damaged(path, f"it has more than {MAX_BYTES:,} bytes"))
            content = json.loads(path.read_bytes())
            json.dumps(content, ensure_ascii=False).encode()  # fails on half of a surrogate pair
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ArtifactError(_damaged(path, "it is not JSON, or nested too deeply")) from error
        if not isinstance(content, dict):
            raise ArtifactError(_damaged(path, "it is not a JSON object"))
        version = content.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ArtifactError(
                f"{path} has schema version {version}, made by drafterforge "
                f"{content.get('drafterforge_version', '?')}, but {__version__} reads up to "
                f"{SCHEMA_VERSION}; type `pip install --upgrade drafterforge`"
            )
        digest = content.pop("digest", None)
        keys = {field.name for field in fields(cls)}
        if set(content) != keys:
            odd = shorten(", ".join(sorted(keys ^ set(content))))
            raise ArtifactError(_damaged(path, f"missing or unknown keys: {odd}"))
        for key, kind in _TYPES.items():
            if not isinstance(content[key], kind):
                raise ArtifactError(_damaged(path, f"{key} is not of type {kind.__name__}"))
        for name, entry in content["files"].items():
            if not is_entry(entry, {"sha256": str, "bytes": int}):
                raise ArtifactError(
                    _damaged(path, f"files.{shorten(name)} must have a text sha256 and a number of bytes")
                )
            if PurePosixPath(name).is_absolute() or not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
                raise ArtifactError(_damaged(path, f"{quote(name)} is no path inside the folder"))
        for entry in content["parents"]:
            if not is_entry(entry, PARENT_KEYS):
                raise ArtifactError(
                    _damaged(path, "each of its parents must have a kind, a name and a sha256, as text")
                )
        manifest = cls(**content)
        try:
            is_intact = manifest.digest == digest
        except RecursionError as error:
            raise ArtifactError(_damaged(path, "it is nested too deeply")) from error
        if not is_intact:
            raise ArtifactError(_damaged(path, "its content does not match its digest"))
        return manifest


def is_entry(value: Any, keys: Mapping[str, type]) -> bool:
    """Whether a value is an object with exactly these keys, of these types."""
    return isinstance(value, dict) and value.keys() == keys.keys() and all(type(value[k]) is keys[k] for k in keys)


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is damaged ({reason}); make it again with overwrite=true"
