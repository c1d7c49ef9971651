"""Config of the commands `export` and `import`."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_choice, require_drafter_name
from drafterforge.config.fields import section, setting
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig

MAIN = "main"  # the bundle of every command that names none
BUNDLES = ("bundle", "tar", "vllm-pool")  # formats that hold a bundle
SINGLE_DRAFTERS = ("sglang", "vllm")  # formats of one drafter each
READERS = {  # formats that read a key; keys that are not listed are read by all
    "layout": ("vllm",),
    "drafter": SINGLE_DRAFTERS,
    "weights": SINGLE_DRAFTERS,
    "licence": BUNDLES,
    "target_licence": BUNDLES,
}


@dataclass(frozen=True)
class ExportConfig:
    """`drafterforge export`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig, "contents of the bundle, and how its engine decodes")
    runtime: RuntimeConfig = section(RuntimeConfig, "of the bundle's engine; null: the default of each device")
    bundle: str = setting(
        "",
        "name or folder of the bundle; empty: `main`; format=sglang|vllm also reads a .tar or a hub id, and prefers "
        "drafters of runs_dir unless a bundle is named",
    )
    format: str = setting(
        "bundle",
        "bundle: a folder | tar: one reproducible file | sglang | vllm: single drafters for these servers | "
        "vllm-pool: a bundle that vLLM decodes with as a pool",
    )
    drafter: str = setting("", "format=sglang|vllm: name of the drafter to export; empty: all that the format can hold")
    layout: str = setting("", "format=vllm: speculators | plain: the layout of SGLang; empty: speculators")
    weights: str = setting("auto", "format=sglang|vllm: bfloat16 | float32 | auto: bfloat16 if that is exact")
    licence: str = setting(
        "", "licence of the drafters and policies made here, such as Apache-2.0; shipped ones keep theirs"
    )
    target_licence: str = setting("", "licence of the target; empty: not stated, except for the embedded default")
    out: str = setting("", "file or folder to write; empty: in runs_dir, beside the bundle")
    push: str = setting("", "repository on the hub to upload the bundle to: OWNER/NAME")
    private: bool = setting(True, "create the repository of push= as a private one")
    runs_dir: str = setting("runs", "folder where drafters and policies are looked up")
    overwrite: bool = setting(False, "replace an existing bundle or export")

    def __post_init__(self) -> None:
        require_choice("format", self.format, (*BUNDLES, *SINGLE_DRAFTERS))
        require(not self.push or self.format == "bundle", "push= uploads a bundle; type format=bundle")
        require(self.private or bool(self.push), "private= is read with push=OWNER/NAME only; leave it out")
        contents, nothing = (self.pool, self.runtime), (PoolConfig(drafters=self.pool.drafters), RuntimeConfig())
        require(
            self.format in BUNDLES or contents == nothing,
            f"format={self.format} holds single drafters, so pool.* and runtime.* are not read but for pool.drafters=; "
            "leave them out, or type format=vllm-pool",
        )
        if self.layout:
            require_choice("layout", self.layout, ("speculators", "plain"))
        require_choice("weights", self.weights, ("auto", "bfloat16", "float32"))
        for key, formats in READERS.items():
            value = getattr(self, key)
            require(
                value == getattr(ExportConfig, key) or self.format in formats,
                f"{key}={value} is read by format={'|'.join(formats)} only, not by format={self.format}; leave it out",
            )

    @property
    def bundle_name(self) -> str:
        """Name or folder of the bundle."""
        return self.bundle or MAIN

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that need not be there: other programs run single drafters."""
        return ("pool.drafters", "pool.scheduler", "pool.router") if self.format in SINGLE_DRAFTERS else ()


@dataclass(frozen=True)
class ImportConfig:
    """`drafterforge import`."""

    target: TargetConfig = section(TargetConfig)
    path: str = setting("", "folder or hub id of a published EAGLE-3 head or block drafter")
    revision: str | None = setting(None, "hub revision")
    format: str = setting("auto", "eagle3: layout of SafeAILab and SGLang | speculators | auto: from its config")
    layer_ids: list[int] = setting([], "three target layers whose input the head reads; empty: from its config")
    norm_before_residual: bool | None = setting(None, "for a speculators config without this key")
    name: str = setting("", "name of the drafter; empty: the last part of path")
    runs_dir: str = setting("runs", "folder where the drafter is written")
    overwrite: bool = setting(False, "replace a drafter of the same name")

    def __post_init__(self) -> None:
        require_choice("format", self.format, ("auto", "eagle3", "speculators"))
        require(len(self.layer_ids) in (0, 3), f"layer_ids must be three layers, got {list(self.layer_ids)}")
        require_drafter_name("name", self.name)
