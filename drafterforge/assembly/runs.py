"""Drafters, policies and routers of a target in a folder of runs, or shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.drafters import RETRIEVAL
from drafterforge.config.hints import command_for
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.causal_lm.kind import CausalLMKind
from drafterforge.drafters.registry import KINDS, kind_named, manifest_kind
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.load import Target


@dataclass(frozen=True)
class RunsFolder:
    """A `PoolSource`: what is in `folder` for the target comes before what is shipped for it."""

    folder: Path | str
    target: Target
    quiet: bool = False

    def names(self) -> list[str]:
        """All drafters of the target, those with weights of their own first and datastores last."""
        return sorted(
            list_artifacts(self.folder, self.target.name, "drafters"), key=lambda name: (self.rank(name), name)
        )

    def pool(self) -> list[str]:
        """All drafters of the target, and retrieval."""
        if not (names := self.names()):
            raise ConfigError(
                f"the pool is empty: {self.folder} has no drafters for {self.target.name}; "
                "type drafterforge train-drafter domain=sql"
            )
        return [*names, RETRIEVAL]

    def rank(self, name: str) -> int:
        """See `DrafterKind.pool_rank`."""
        folder = self.find(name)
        return kind_named(manifest_kind(Manifest.read(folder).config)).pool_rank(folder)

    def find(self, name: str) -> Path:
        """The folder of a drafter given by name or by path."""
        return find_artifact(self.folder, self.target.name, "drafters", name, hint=command_for(name))

    def manifest(self, name: str) -> Manifest:
        """The manifest of a drafter, whose files are whole."""
        return open_drafter(self.find(name), self.target)

    def drafter(self, name: str) -> DrafterSource:
        """Where a drafter's files are; it and what it adds to are whole, and for this target.

        name: that of a trained or shipped drafter, its folder, `retrieval`, or the folder of a small language model.
        """
        if name in KINDS and not KINDS[name].needs_files:
            return DrafterSource(name, name, None)
        if is_language_model(folder := Path(name).expanduser()):
            return DrafterSource(name, CausalLMKind.name, folder)
        return source_in(self.find(name), self.target, name)

    def weights(self, name: str) -> tuple[str, str]:
        """The name in a drafter's manifest, and the fingerprint of its weights."""
        manifest = self.manifest(name)
        return manifest.name, fingerprint_of(manifest)

    def part(self, name: str, kind: str) -> Path:
        """The folder of a policy or a router, whole and for this target."""
        hint = "drafterforge train-policy" + (" policy=router" if kind == "router" else "")
        folder = find_artifact(self.folder, self.target.name, "policies", name, hint=hint)
        open_artifact(folder, "policies", target_fingerprint=self.target.fingerprint, target=self.target.name)
        return folder


def open_drafter(folder: Path, target: Target) -> Manifest:
    """Check that a drafter is whole and was trained for this target."""
    return open_artifact(folder, "drafters", target_fingerprint=target.fingerprint, target=target.name)


def source_in(folder: Path, target: Target, name: str) -> DrafterSource:
    """The `drafters` artifact at `folder`, and what it adds to, whole and for this target."""
    kind = kind_of(open_drafter(folder, target))
    base = kind_named(kind).base_of(folder)
    if base is not None:
        open_drafter(base, target)
    return DrafterSource(name, kind, folder, base)


def open_any(folder: Path, target: Target) -> Drafter:
    """The drafter of any kind in the `drafters` artifact at `folder`, checked, ready to decode alone."""
    source = source_in(folder, target, folder.name)
    return kind_named(source.kind).load(source, target)


def is_language_model(folder: Path) -> bool:
    """Whether a folder holds a language model rather than an artifact of ours."""
    config = folder / "config.json"
    if not config.is_file() or (folder / MANIFEST).is_file():
        return False
    if '"eagle_config"' in (text := config.read_text(errors="replace")) or "Eagle3" in text:
        raise ArtifactError(
            f"{folder} looks like an EAGLE-3 head of another program; type `drafterforge import path={folder}`"
        )
    return True


def kind_of(manifest: Manifest) -> str:
    """The kind of a `drafters` artifact."""
    return manifest_kind(manifest.config)


def fingerprint_of(manifest: Manifest) -> str:
    """What a drafter's manifest says of its weights."""
    hashes = [file["sha256"] for name, file in sorted(manifest.files.items()) if name.endswith(".safetensors")]
    return "-".join(sha256[:16] for sha256 in hashes)
