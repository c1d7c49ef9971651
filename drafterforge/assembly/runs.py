"""Drafters, policies and routers of a target in a folder of runs, or shipped with the package."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from drafterforge.artifacts.folder import is_complete, open_artifact
from drafterforge.artifacts.learned import absent_drafters, learned_drafters
from drafterforge.artifacts.locate import find_artifact, is_path, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.sources import DrafterSummary
from drafterforge.config.hints import ROUTER, command_for, command_for_policy, command_for_router
from drafterforge.config.names import RETRIEVAL
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.causal_lm.kind import CausalLMKind
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.registry import KINDS, kind_named, manifest_kind
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, shorten
from drafterforge.targets.load import Target

GENERAL = "general"  # the mixture of all domains
MIN_VAL_PROMPTS = 8  # validation prompts that show whether an expert is better than what it was trained from


@dataclass(frozen=True)
class RunsFolder:
    """A `PoolSource`: the target's artifacts in `folder`, then those shipped with the package."""

    folder: Path | str
    target: Target
    quiet: bool = False

    def names(self) -> list[str]:
        """Drafters of the target, in the order of `rank`: full weights first, datastores last.

        Without experts that were learned from traffic and do not draft, see `absent_drafters`, and without drafters
        that read other layers than this target is tapped at.
        """
        return [name for name in self._drafting() if self._reads_taps(name)]

    def other_taps(self) -> list[str]:
        """Drafters that `names` leaves out, because they read other layers than this target is tapped at."""
        return [name for name in self._drafting() if not self._reads_taps(name)]

    def _drafting(self) -> list[str]:
        names = {*list_artifacts(self.folder, self.target.name, "drafters")}
        names -= absent_drafters(str(self.folder), self.target.name)
        return sorted(names, key=lambda name: (self.rank(name), name))

    def _reads_taps(self, name: str) -> bool:
        folder = self.find(name)
        try:
            taps = kind_named(kind_of(Manifest.read(folder))).taps(folder)
        except ArtifactError:  # opening the drafter says what is wrong
            return True
        backbone = getattr(self.target, "backbone", None)  # a server's target has none here
        return taps is None or backbone is None or taps == tuple(backbone.taps)

    def pool(self) -> list[str]:
        """All drafters but the unproven ones, and retrieval."""
        if not (names := self.names()):
            raise ConfigError(
                f"the pool is empty: {self.folder} has no drafters for {self.target.name}; "
                f"type `drafterforge train-drafter domain=sql`"
            )
        unproven = self.unproven()
        return [*(name for name in names if name not in unproven), RETRIEVAL]

    def named(self) -> list[str]:
        return []

    def learned(self) -> set[str]:
        return learned_drafters(str(self.folder), self.target.name)

    def unproven(self) -> list[str]:
        """Experts that the default pool leaves out, because no measurement shows that they gain anything.

        An expert that was trained from another drafter must beat it on validation, on at least `MIN_VAL_PROMPTS`
        prompts: its best step must not be 0. Manifests of earlier versions do not count the prompts, so any number is
        accepted. An expert that was trained from the start was never compared with the generalist, so it is left out if
        the target has a generalist.  What was learned from traffic drafts only once it has beaten all others there.
        """
        learned = self.learned()
        manifests = {name: Manifest.read(self.find(name)) for name in self.names()}
        general = [name for name, manifest in manifests.items() if domain_of(manifest) == GENERAL]
        has_generalist = any("val_accept_length" in manifests[name].metrics for name in general)
        return [
            name
            for name, manifest in manifests.items()
            if name not in general
            and name not in learned
            and "val_accept_length" in manifest.metrics
            and (not beats_parent(manifest) if has_parent_drafter(manifest) else has_generalist)
        ]

    def rank(self, name: str) -> int:
        """See `DrafterKind.pool_rank`."""
        return self.summary(name).rank

    def summaries(self) -> list[DrafterSummary]:
        return [self.summary(name) for name in self.names()]

    def summary(self, name: str) -> DrafterSummary:
        """What a drafter given by name or by path is chosen by."""
        folder = self.find(name)
        manifest = Manifest.read(folder)
        kind = kind_of(manifest)
        return DrafterSummary(name, kind, domain_of(manifest), kind_named(kind).pool_rank(folder))

    def find(self, name: str) -> Path:
        """The folder of a drafter given by name or by path."""
        return find_drafter(self.folder, self.target.name, name)

    def manifest(self, name: str) -> Manifest:
        return drafter_manifest(self.find(name), self.target)

    def drafter(self, name: str) -> DrafterSource:
        """Where a drafter's files are; its files, and those of its generalist, have been checked.

        name: of a trained or shipped drafter, its folder, `retrieval`, or the folder of a small language model.
        """
        folder = locate_drafter(self.folder, self.target.name, name)
        if folder is None:
            return DrafterSource(name, name, None)
        if not (folder / MANIFEST).is_file():
            return DrafterSource(name, CausalLMKind.name, folder)
        return source_in(folder, self.target, name)

    def identity(self, name: str) -> tuple[str, str]:
        """The name in a drafter's manifest, and the fingerprint of its weights."""
        manifest = self.manifest(name)
        return manifest.name, fingerprint_of(manifest)

    def part(self, name: str, kind: str) -> Path:
        """The checked folder of a policy or a router of this target."""
        hint = command_for_router(name) if kind == "router" else command_for_policy(name)
        folder = find_artifact(self.folder, self.target.name, "policies", name, hint=hint)
        open_artifact(folder, "policies", target_fingerprint=self.target.fingerprint, target=self.target.name)
        return folder

    def default_router(self) -> Path | None:
        """The router with the name that `train-policy policy=router` gives it, if it belongs to this target."""
        with contextlib.suppress(ArtifactError):
            return self.part(ROUTER, "router")
        return None

    def cost_folders(self) -> list[Path]:
        return []


def find_drafter(runs_dir: Path | str, target: str, name: str) -> Path:
    """The folder of a trained or shipped drafter given by name or by path."""
    return find_artifact(runs_dir, target, "drafters", name, hint=command_for(name))


def locate_drafter(runs_dir: Path | str, target: str, name: str) -> Path | None:
    """The folder of any drafter, including a small language model; None if the drafter needs no files."""
    if name in KINDS and not KINDS[name].needs_files:
        return None
    folder = Path(name).expanduser()
    if is_path(name) and is_language_model(folder):
        return folder
    try:
        return find_drafter(runs_dir, target, name)
    except ArtifactError:
        if is_language_model(folder):  # in the current folder
            return folder
        raise


def drafter_manifest(folder: Path, target: Target) -> Manifest:
    """The manifest of a drafter; ArtifactError if its files are damaged or it was trained for another target."""
    return open_artifact(folder, "drafters", target_fingerprint=target.fingerprint, target=target.name)


def source_in(folder: Path, target: Target, name: str) -> DrafterSource:
    """The checked `drafters` artifact at `folder`, with its generalist if it is an adapter."""
    kind = kind_of(drafter_manifest(folder, target))
    base = kind_named(kind).base_of(folder)
    if base is not None:
        drafter_manifest(base, target)
    return DrafterSource(name, kind, folder, base)


def open_for_decoding(folder: Path, target: Target) -> Drafter:
    """The checked and loaded drafter of the `drafters` artifact at `folder`, to decode outside a pool."""
    source = source_in(folder, target, folder.name)
    return kind_named(source.kind).load(source, target)


def is_language_model(folder: Path) -> bool:
    """Whether a folder holds a language model rather than one of our artifacts."""
    config = folder / "config.json"
    if not config.is_file() or (folder / MANIFEST).is_file():
        return False
    if '"eagle_config"' in (text := config.read_text(errors="replace")) or "Eagle3" in text:
        raise ArtifactError(
            f"{folder} looks like an EAGLE-3 head of another program; type `drafterforge import path={folder}`"
        )
    return True


def domain_of(manifest: Manifest) -> str:
    """The domain that a drafter was trained for; `general` if its manifest names none."""
    domain = manifest.config.get("domain")
    return domain if domain and isinstance(domain, str) else GENERAL


def has_parent_drafter(manifest: Manifest) -> bool:
    """Whether a drafter was trained from another drafter."""
    return any(parent["kind"] == "drafters" for parent in manifest.parents)


def beats_parent(manifest: Manifest) -> bool:
    """Whether validation shows that a drafter is better than the one it was trained from."""
    num_prompts = manifest.metrics.get("val_prompts", MIN_VAL_PROMPTS)
    return manifest.metrics.get("best_step") != 0 and num_prompts >= MIN_VAL_PROMPTS


def kind_of(manifest: Manifest) -> str:
    return manifest_kind(manifest.config)


def fingerprint_of(manifest: Manifest) -> str:
    """The fingerprint of a drafter's weights, from the hashes in its manifest."""
    hashes = [file["sha256"] for name, file in sorted(manifest.files.items()) if name.endswith(".safetensors")]
    return "-".join(sha256[:16] for sha256 in hashes)


def require_no_experts(folder: Path) -> None:
    """ConfigError if LoRA experts beside the drafter in `folder`, which is to be replaced, add to it.

    They need exactly its weights.  A damaged drafter, which serves no expert any more, may be replaced.
    """
    if not is_complete(folder, verify=True):
        return
    digest, experts = Manifest.read(folder).digest, []
    for path in sorted(folder.parent.glob(f"[!.]*/{MANIFEST}")):
        with contextlib.suppress(DrafterforgeError):  # damaged, or of a kind that is not registered
            manifest = Manifest.read(path.parent)
            is_child = digest in [parent["sha256"] for parent in manifest.parents]
            if is_child and kind_named(kind_of(manifest)).is_adapter(path.parent):
                experts.append(path.parent.name)
    if experts:
        raise ConfigError(
            f"{folder} is the generalist of {shorten(', '.join(experts))}, which need exactly its weights; type "
            f"name=OTHER, or delete these experts in {folder.parent} first"
        )


def is_generalist(folder: Path) -> bool:
    """Whether a manifest says that a LoRA can be added: an EAGLE-3 drafter of all domains, with full weights."""
    with contextlib.suppress(ArtifactError):  # a damaged one cannot be used
        manifest = Manifest.read(folder)
        is_eagle3 = kind_of(manifest) == Eagle3Kind.name
        return is_eagle3 and domain_of(manifest) == GENERAL and not kind_named(Eagle3Kind.name).is_adapter(folder)
    return False
