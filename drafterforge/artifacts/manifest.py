"""The `manifest.json` of an artifact: what it is, for which target, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.errors import ArtifactError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1  # raised when a manifest of this version would be misread by older code

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


HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")  # of an artifact; its beginning tells which


def plain_json(value: Any) -> Any:
    """Returns `value` as JSON gives it back: lists for tuples, text for paths, null for NaN."""
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
    """Returns the one spelling of `value` that is hashed: sorted keys, no spaces, UTF-8."""
    text = json.dumps(plain_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def first_difference(found: Any, wanted: Any, key: str = "") -> str:
    """Returns one line on the first key whose value differs, '' if none does."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            line = first_difference(found.get(name), wanted.get(name), f"{key}.{name}" if key else name)
            if line:
                return line
        return ""
    if found == wanted:
        return ""
    return f"{key}: {_short(found)} there, {_short(wanted)} now"


def _short(value: Any) -> str:
    text = HASH.sub(r"\1...", json.dumps(value))
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Manifest:
    """What an artifact is; its `digest` is how a child artifact names it as a parent."""

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
        """Returns the entry that a child's `parents` holds for this artifact."""
        return {"kind": self.kind, "name": self.name, "sha256": self.digest}

    def to_json(self) -> bytes:
        """Returns the bytes of `manifest.json`; they carry their own digest, so damage shows."""
        content = plain_json(asdict(self)) | {"digest": self.digest}
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of an artifact folder, and refuses a damaged or a newer one."""
        path = Path(folder) / MANIFEST
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ArtifactError(_damaged(path, "it is no JSON")) from error
        if not isinstance(content, dict):
            raise ArtifactError(_damaged(path, "it is no JSON object"))
        version = content.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ArtifactError(
                f"{path} has schema version {version}, made by drafterforge "
                f"{content.get('drafterforge_version', '?')}, but {__version__} reads up to "
                f"{SCHEMA_VERSION}; type `pip install --upgrade drafterforge`"
            )
        digest = content.pop("digest", None)
        wanted = {item.name for item in fields(cls)}
        if set(content) != wanted:
            odd = ", ".join(sorted(wanted ^ set(content)))
            raise ArtifactError(_damaged(path, f"missing or unknown keys: {odd}"))
        for key, kind in _TYPES.items():
            if not isinstance(content[key], kind):
                raise ArtifactError(_damaged(path, f"{key} is no {kind.__name__}"))
        for name, entry in content["files"].items():
            if not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"}:
                raise ArtifactError(_damaged(path, f"files.{name} wants sha256 and bytes"))
        manifest = cls(**content)
        if manifest.digest != digest:
            raise ArtifactError(_damaged(path, "its content does not match its own digest"))
        return manifest


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is damaged ({reason}); make it again with overwrite=true"
