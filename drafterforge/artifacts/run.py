"""How a command makes an artifact: reuse an existing one, or stage resumable work, then write the folder."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging, require_same_settings, staging_folder


class NamedTarget(Protocol):
    """A target as manifests name it."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class ArtifactRun:
    """An artifact that exists already or has to be made; see `artifact_run`."""

    path: Path
    kind: str
    target: NamedTarget
    settings: Mapping[str, Any]
    parents: Sequence[Manifest]
    overwrite: bool
    existing: Manifest | None  # the artifact at `path`, if it was made with these settings
    alternative: str = "name=OTHER"  # what a user types to keep an artifact of other settings

    @property
    def identity(self) -> dict[str, Any]:
        """The settings and the target, which determine the artifact's content."""
        return {
            "config": self.settings,
            "target": self.target.name,
            "target_fingerprint": self.target.fingerprint,
        }

    @property
    def staging_dir(self) -> Path:
        """The folder of unfinished work, which need not exist."""
        return staging_folder(self.path)

    def stage(self, **more: Any) -> Path:
        """The staging folder; work of other settings in it raises ArtifactError, or is deleted with `overwrite`.

        more: further values that determine the content of the shards.
        """
        return open_staging(self.path, {**self.identity, **more}, replace=self.overwrite, alternative=self.alternative)

    def require_stageable(self, **more: Any) -> None:
        """ArtifactError if `stage` would refuse unfinished work of other settings.  more: as of `stage`."""
        if not self.overwrite:
            require_same_settings(self.path, {**self.identity, **more}, self.alternative)

    @contextlib.contextmanager
    def write(self, metrics: dict[str, Any] | None = None) -> Iterator[Path]:
        """Yields a folder to fill, which becomes the artifact when the block ends; then deletes the staging folder.

        metrics: read when the block ends, so the block may fill it.
        """
        with write_artifact(
            self.path,
            kind=self.kind,
            name=self.path.name,
            parents=self.parents,
            metrics=metrics,
            replace=self.overwrite,
            **self.identity,
        ) as folder:
            yield folder
        self.drop_staging()

    def drop_staging(self) -> None:
        """Delete unfinished work."""
        drop_staging(self.path)


def artifact_run(
    path: Path | str,
    kind: str,
    target: NamedTarget,
    settings: Mapping[str, Any],
    parents: Sequence[Manifest] = (),
    *,
    overwrite: bool = False,
    alternative: str = "name=OTHER",
    verify: bool = True,
) -> ArtifactRun:
    """The run that makes the artifact at `path`; `existing` is set if it was made before with equal settings.

    alternative: what a user types to keep an artifact of other settings.  verify: hash every file of an existing one.
    Raises ArtifactError if `path` holds a damaged artifact, or one of other settings or another target; with
    `overwrite` it is replaced instead.
    """
    path = Path(path)
    run = ArtifactRun(path, kind, target, settings, parents, overwrite, existing=None, alternative=alternative)
    existing = reuse_artifact(path, kind, overwrite=overwrite, alternative=alternative, verify=verify, **run.identity)
    if existing is not None and not overwrite:
        run.drop_staging()  # its writer may have been killed before it could
    return dataclasses.replace(run, existing=existing)
