"""What `train-drafter` refuses before it loads anything; imports no torch."""

from __future__ import annotations

from drafterforge.artifacts.locate import SHIPPED
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.data.sources import check_rows
from drafterforge.errors import ArtifactError


def check_training(cfg: TrainDrafterConfig) -> None:
    """ArtifactError for prompts that cannot be read, or a drafter that would hide a shipped one of another domain."""
    shipped = SHIPPED / cfg.target.folder_name / "drafters" / cfg.drafter_name
    if (shipped / MANIFEST).is_file():
        domain = Manifest.read(shipped).config.get("domain")
        if domain != cfg.domain.name:
            raise ArtifactError(
                f"name={cfg.drafter_name} is the shipped drafter of domain={domain}, which a drafter of "
                f"domain={cfg.domain.name} would hide; type name=OTHER"
            )
    check_rows(cfg)
