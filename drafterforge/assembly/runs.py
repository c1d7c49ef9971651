"""Drafters, policies and routers of a target in a folder of runs, or shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.drafters import RETRIEVAL
from drafterforge.config.hints import command_for, typed_keys
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.causal_lm.kind import CausalLMKind
from drafterforge.drafters.registry import KINDS, kind_named, manifest_kind
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.load import Target

GENERAL = "general"  # the mixture of all domains
POLICY_COMMAND, ROUTER_COMMAND = "drafterforge train-policy", "drafterforge train-policy policy=router"


@dataclass(frozen=True)
class RunsFolder:
    """A `PoolSource`: what is in `folder` for the target comes before what is shipped for it."""

    folder: Path | str
    target: Target
    quiet: bool = False

    @property
    def typed(self) -> str:
        """Keys of a suggested command that finds the same target and runs."""
        return typed_keys(self.target.settings, self.folder)

    def names(self) -> list[str]:
        """All drafters of the target, those with weights of their own first and datastores last."""
        return sorted(
            list_artifacts(self.folder, self.target.name, "drafters"), key=lambda name: (self.rank(name), name)
        )

    def pool(self) -> list[str]:
        """The drafters that are known to gain something, and retrieval; see `unproven`."""
        if not (names := self.names()):
            raise ConfigError(
                f"the pool is empty: {self.folder} has no drafters for {self.target.name}; "
                f"type drafterforge train-drafter domain=sql{self.typed}"
            )
        unproven = self.unproven()
        return [*(name for name in names if name not in unproven), RETRIEVAL]

    def unproven(self) -> list[str]:
        """Drafters that join a pool only by name, as nothing shows that they beat what they would compete with.

        An expert that went on from another drafter has to be better than that on validation: its best step is not 0.
        An expert that did not is never compared with the target's generalist, so it is left out where there is one.
        """
        manifests = {name: Manifest.read(self.find(name)) for name in self.names()}
        general = [name for name, manifest in manifests.items() if domain_of(manifest) == GENERAL]
        has_generalist = any("val_accept_length" in manifests[name].metrics for name in general)
        return [
            name
            for name, manifest in manifests.items()
            if name not in general
            and "val_accept_length" in manifest.metrics
            and (manifest.metrics.get("best_step") == 0 if goes_on(manifest) else has_generalist)
        ]

    def rank(self, name: str) -> int:
        """See `DrafterKind.pool_rank`."""
        folder = self.find(name)
        return kind_named(manifest_kind(Manifest.read(folder).config)).pool_rank(folder)

    def find(self, name: str) -> Path:
        """The folder of a drafter given by name or by path."""
        return find_drafter(self.folder, self.target.name, name, self.typed)

    def manifest(self, name: str) -> Manifest:
        """The manifest of a drafter, whose files are whole."""
        return open_drafter(self.find(name), self.target)

    def drafter(self, name: str) -> DrafterSource:
        """Where a drafter's files are; it and what it adds to are whole, and for this target.

        name: that of a trained or shipped drafter, its folder, `retrieval`, or the folder of a small language model.
        """
        folder = locate_drafter(self.folder, self.target.name, name, self.typed)
        if folder is None:
            return DrafterSource(name, name, None)
        if not (folder / MANIFEST).is_file():
            return DrafterSource(name, CausalLMKind.name, folder)
        return source_in(folder, self.target, name)

    def weights(self, name: str) -> tuple[str, str]:
        """The name in a drafter's manifest, and the fingerprint of its weights."""
        manifest = self.manifest(name)
        return manifest.name, fingerprint_of(manifest)

    def part(self, name: str, kind: str) -> Path:
        """The folder of a policy or a router, whole and for this target."""
        hint = ROUTER_COMMAND if kind == "router" else POLICY_COMMAND
        folder = find_artifact(self.folder, self.target.name, "policies", name, hint=hint + self.typed)
        open_artifact(folder, "policies", target_fingerprint=self.target.fingerprint, target=self.target.name)
        return folder


def find_drafter(runs_dir: Path | str, target: str, name: str, typed: str = "") -> Path:
    """The folder of a trained or shipped drafter given by name or by path.  typed: see `config.hints.typed_target`."""
    return find_artifact(runs_dir, target, "drafters", name, hint=command_for(name) + typed)


def locate_drafter(runs_dir: Path | str, target: str, name: str, typed: str = "") -> Path | None:
    """The folder of any drafter, a small language model too; None for one that needs no files."""
    if name in KINDS and not KINDS[name].needs_files:
        return None
    folder = Path(name).expanduser()
    return folder if is_language_model(folder, typed) else find_drafter(runs_dir, target, name, typed)


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


def is_language_model(folder: Path, typed: str = "") -> bool:
    """Whether a folder holds a language model rather than an artifact of ours."""
    config = folder / "config.json"
    if not config.is_file() or (folder / MANIFEST).is_file():
        return False
    if '"eagle_config"' in (text := config.read_text(errors="replace")) or "Eagle3" in text:
        raise ArtifactError(
            f"{folder} looks like an EAGLE-3 head of another program; type `drafterforge import path={folder}{typed}`"
        )
    return True


def domain_of(manifest: Manifest) -> str:
    """The domain that a drafter was trained for; `general` for one that does not say."""
    return manifest.config.get("domain") or GENERAL


def goes_on(manifest: Manifest) -> bool:
    """Whether a drafter's training began with another drafter."""
    return any(parent["kind"] == "drafters" for parent in manifest.parents)


def kind_of(manifest: Manifest) -> str:
    """The kind of a `drafters` artifact."""
    return manifest_kind(manifest.config)


def fingerprint_of(manifest: Manifest) -> str:
    """What a drafter's manifest says of its weights."""
    hashes = [file["sha256"] for name, file in sorted(manifest.files.items()) if name.endswith(".safetensors")]
    return "-".join(sha256[:16] for sha256 in hashes)
