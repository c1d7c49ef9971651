"""Commands that pack and unpack drafters: `export` and `import`."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_choice
from drafterforge.config.fields import section, setting
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig


@dataclass(frozen=True)
class ExportConfig:
    """`drafterforge export`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig, "what the bundle holds, and how its engine decodes")
    runtime: RuntimeConfig = section(RuntimeConfig, "of its engine; null: what suits each device")
    bundle: str = setting("main", "name or folder of the bundle; for format=sglang|vllm also a .tar or a hub id")
    format: str = setting(
        "bundle", "bundle: a folder | tar: one reproducible file | sglang | vllm: drafters for these servers"
    )
    drafter: str = setting("", "for format=sglang|vllm: which one; empty: every EAGLE-3 drafter")
    layout: str = setting("", "for format=vllm: speculators, the default, or plain, which is SGLang's")
    weights: str = setting("auto", "for format=sglang|vllm: bfloat16 | float32 | auto: bfloat16 where it loses nothing")
    licence: str = setting(
        "", "of drafters and policies, such as Apache-2.0; empty: that of what is shipped, else not stated"
    )
    target_licence: str = setting("", "of the target; empty: known for the embedded default, else not stated")
    out: str = setting("", "file or folder to write; empty: in runs_dir, beside the bundle")
    push: str = setting("", "OWNER/NAME on the hub to upload the bundle to")
    private: bool = setting(True, "whether a repository that push= makes is private")
    runs_dir: str = setting("runs", "where drafters and policies are looked up")
    overwrite: bool = setting(False, "make the bundle or the export anew")

    def __post_init__(self) -> None:
        """Check ranges, and keys that contradict each other."""
        require_choice("format", self.format, ("bundle", "tar", "sglang", "vllm"))
        require(bool(self.bundle), "bundle= is empty; type bundle=NAME")
        require(not self.push or self.format == "bundle", "push= uploads a bundle; type format=bundle")
        if self.layout:
            require_choice("layout", self.layout, ("speculators", "plain"))
        require(not self.layout or self.format == "vllm", f"layout={self.layout} is read with format=vllm only")
        require_choice("weights", self.weights, ("auto", "bfloat16", "float32"))


@dataclass(frozen=True)
class ImportConfig:
    """`drafterforge import`."""

    target: TargetConfig = section(TargetConfig)
    path: str = setting("", "folder or hub id of a published EAGLE-3 head")
    revision: str | None = setting(None, "of a hub id")
    format: str = setting("auto", "eagle3: SafeAILab's and SGLang's | speculators | auto: as its config tells")
    layer_ids: list[int] = setting([], "layers whose input it reads, if its config is not clear")
    norm_before_residual: bool | None = setting(None, "where a speculators config does not say")
    name: str = setting("", "of the drafter; empty: the last part of path")
    runs_dir: str = setting("runs", "where the drafter is written")
    overwrite: bool = setting(False, "replace a drafter of that name")

    def __post_init__(self) -> None:
        """Check what can be told without the head."""
        require_choice("format", self.format, ("auto", "eagle3", "speculators"))
        require(len(self.layer_ids) in (0, 3), f"layer_ids must be three layers, got {list(self.layer_ids)}")
        require(self.name not in ("retrieval", "pool"), f"name={self.name} means another drafter; type name=OTHER")
