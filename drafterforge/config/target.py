"""The big model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.checks import require, require_choice
from drafterforge.config.fields import setting
from drafterforge.errors import ArtifactError


@dataclass(frozen=True)
class TargetConfig:
    """The big model whose output is reproduced."""

    name: str = setting("smollm2-135m", "folder under runs/; empty with target=hf: taken from the model")
    source: str = setting("wheel", "wheel: the embedded default | hf: a hub id or a local folder")
    model: str = setting("", "hub id or local folder, for source=hf")
    revision: str | None = setting(None, "hub revision")
    dtype: str = setting("auto", "auto: bfloat16 where the device computes in it, else float32")
    device: str = setting("auto", "auto: cuda where there is one, else cpu")
    forward: str = setting("auto", "lean: our fused path | modules: the model's own | auto: lean if any")
    taps: list[int] = setting([], "layers whose input drafters read; empty: 2, half, last but two")

    def __post_init__(self) -> None:
        """Check the values that do not depend on the machine."""
        require_choice("target.source", self.source, ("wheel", "hf"))
        found = ",".join(map(str, self.taps))
        require(len(self.taps) in (0, 3), f"target.taps must name three layers, low, mid and high, got [{found}]")
        for key in ("model", "revision"):
            given = getattr(self, key) and self.source == "wheel"
            require(not given, f"target.{key}= is read by target=hf only; type target=hf target.model=...")
        require_choice("target.dtype", self.dtype, ("auto", "float32", "bfloat16", "float16", "float64"))
        require_choice("target.forward", self.forward, ("auto", "lean", "modules"))

    @property
    def folder_name(self) -> str:
        """What its artifacts lie under: the name, else the last part of its model."""
        return self.name or Path(self.model).name.lower()

    def require_model(self) -> None:
        """Refuse target=hf without a model, or with a folder that is not there."""
        if self.source != "hf":
            return
        require(bool(self.model), "target=hf needs a model: type target.model=HUB_ID or target.model=FOLDER")
        folder = Path(self.model).expanduser()
        if (folder.is_absolute() or self.model.startswith((".", "~"))) and not folder.is_dir():
            wanted = "wanted one with config.json and *.safetensors"
            raise ArtifactError(f"target.model={self.model} is no folder; {wanted}")
