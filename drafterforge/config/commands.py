"""Commands that make and measure artifacts."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_seed
from drafterforge.config.data import POOL_DOMAINS, DataConfig, DomainConfig
from drafterforge.config.drafter import DRAFTERS, DrafterConfig
from drafterforge.config.evaluation import EvalConfig, SuiteConfig
from drafterforge.config.fields import section, setting
from drafterforge.config.policy import POLICIES, PolicyConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.replay import KNOTS, GridConfig, LatencyConfig, LiveConfig, TracesConfig
from drafterforge.config.router import RouterConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.config.variants import variant


@dataclass(frozen=True)
class PrepareDataConfig:
    """`drafterforge prepare-data`."""

    target: TargetConfig = section(TargetConfig)
    domain: DomainConfig = section(DomainConfig)
    data: DataConfig = section(DataConfig)
    name: str = setting("", "name of the answers; empty: the domain's")
    runs_dir: str = setting("runs", "where artifacts are looked up and written")
    seed: int = setting(0, "of prompts, sampling and training")
    overwrite: bool = setting(False, "replace an artifact that was made with other settings")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_seed(self.seed)


@dataclass(frozen=True)
class TrainDrafterConfig(PrepareDataConfig):
    """`drafterforge train-drafter`; its name is the drafter's, and of the answers it prepares.

    Without a name the answers are called as the domain, and the drafter so too, with its kind unless it is EAGLE-3.
    """

    answers: list[str] = setting([], "name or folder to learn from, or [several]; empty: prepared", input="answers")
    val_answers: list[str] = setting([], "those that validate and are decoded; empty: of answers=", input="answers")
    drafter: DrafterConfig = variant(DRAFTERS, "eagle3", key="kind")
    trainer: TrainerConfig = section(TrainerConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    eval: EvalConfig = section(EvalConfig)

    def __post_init__(self) -> None:
        """Check ranges, and that the drafter can be called by its name."""
        super().__post_init__()
        require(self.name != "retrieval", "name=retrieval means the drafter without a datastore; type name=OTHER")
        require(self.name != "pool", "name=pool means all drafters together; type name=OTHER")
        require(self.name.count("+") != 1, f"name={self.name} would mean two drafters in one; type a name without +")
        for name in ("retrieval", "pool"):  # of a domain of one's own
            require(self.drafter_name != name, f"domain={name} would call a drafter {name}; type name=OTHER")

    @property
    def drafter_name(self) -> str:
        """What the drafter and its report are called."""
        kind = self.drafter.kind
        return self.name or self.domain.name + ("" if kind == "eagle3" else f"-{kind}")


@dataclass(frozen=True)
class QuickstartConfig(TrainDrafterConfig):
    """`drafterforge quickstart`; its name is that of the answers, the drafter, the bundle and the report."""

    pool: PoolConfig = section(PoolConfig, "what is shown first, and goes into the bundle")
    first_prompts: int = setting(4, "held-out prompts decoded before anything is trained")
    first_tokens: int = setting(64, "length limit of their answers")

    def __post_init__(self) -> None:
        """Check that there is an expert to tune, and keys that only train-drafter reads."""
        super().__post_init__()
        require(bool(self.name), "quickstart needs a name for what it makes; type name=quickstart")
        require(
            self.drafter.adds,
            "quickstart tunes a LoRA expert, got drafter.tuning=full; leave it out, or type drafterforge train-drafter",
        )
        require(not self.val_answers, "val_answers= is read by train-drafter only; leave it out")
        for key in ("chain", "check_float32"):
            require(not getattr(self.eval, key), f"eval.{key}=true is read by train-drafter only; leave it out")
        require_at_least("first_prompts", self.first_prompts, 1)
        require_at_least("first_tokens", self.first_tokens, 1)


@dataclass(frozen=True)
class CalibrateConfig:
    """`drafterforge calibrate`."""

    target: TargetConfig = section(TargetConfig)
    grid: GridConfig = section(lambda: GridConfig(name="calibration", num_tokens=[*KNOTS]))
    latency: LatencyConfig = section(LatencyConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    drafter: str = setting("general", "whose steps are measured", input="drafters")
    domains: list[str] = setting([*POOL_DOMAINS], "of the prompts")
    name: str = setting("", "of the profile; empty: the drafter's")
    runs_dir: str = setting("runs", "where drafters are looked up and the profile is written")
    seed: int = setting(0, "of prompts and trees")
    overwrite: bool = setting(False, "measure anew")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_seed(self.seed)


@dataclass(frozen=True)
class TrainPolicyConfig:
    """`drafterforge train-policy`."""

    target: TargetConfig = section(TargetConfig)
    policy: PolicyConfig = variant(POLICIES, "marginal", key="method")
    grid: GridConfig = section(GridConfig)
    traces: TracesConfig = section(TracesConfig)
    latency: LatencyConfig = section(LatencyConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    live: LiveConfig = section(LiveConfig)
    router: RouterConfig = section(RouterConfig)
    drafter: str = setting("general", "whose trees are scheduled", input="drafters")
    name: str = setting("", "of the policy; empty: that of policy=, or its method")
    runs_dir: str = setting("runs", "where artifacts are looked up and written")
    seed: int = setting(0, "of prompts and training")
    overwrite: bool = setting(False, "replace an artifact that was made with other settings")

    def __post_init__(self) -> None:
        """Check ranges, and that keys of the router are for one."""
        require_seed(self.seed)
        require(
            self.policy.method == "router" or self.router == RouterConfig(),
            f"keys of router. are read by policy=router only, not by policy={self.policy.method}",
        )

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that the policy's method does not read, so that they need not be there."""
        return ("drafter",) if self.policy.method == "router" else ()


@dataclass(frozen=True)
class EvaluateConfig:
    """`drafterforge eval`."""

    target: TargetConfig = section(TargetConfig)
    suite: SuiteConfig = section(SuiteConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    name: str = setting("", "name of the report; empty: the suite's")
    limit: int = setting(0, "most prompts of each domain or benchmark; 0: as the suite says")
    overwrite: bool = setting(False, "forget what an interrupted run has measured already")
    compare: str = setting(
        "", "decode nothing, set two reports side by side: A,B as names or paths; exit 1 if B is worse"
    )
    runs_dir: str = setting("runs", "where drafters are looked up and the report is written")
    seed: int = setting(0, "of the stream and of selectors that draw")

    def __post_init__(self) -> None:
        """Check ranges, and that what is configured is what the replay plays."""
        require_seed(self.seed)
        require_at_least("limit", self.limit, 0)
        two = [one.strip() for one in self.compare.split(",")]
        require(not self.compare or (len(two) == 2 and all(two)), f"compare must be A,B, got {self.compare!r}")
        require(
            self.pool.every == 1 or not self.suite.replay,
            f"eval replays drafters that read after every cycle, got pool.every={self.pool.every}; "
            "leave it out, or time it alone with suite.replay=false",
        )


@dataclass(frozen=True)
class PlanConfig:
    """`drafterforge plan`."""

    target: TargetConfig = section(TargetConfig)
    data: DataConfig = section(DataConfig)
    trainer: TrainerConfig = section(TrainerConfig)
    num_domains: int = setting(len(POOL_DOMAINS), "drafters of the pool, one a domain")
    prompt_tokens: int = setting(128, "tokens of a prompt, about")
    draft_vocab_size: int = setting(16384, "as drafter.draft_vocab_size of train-drafter")
    trained_head: bool = setting(True, "as drafter.head=own of train-drafter; false: target")
    batch_size: int = setting(8, "requests served together")
    context: int = setting(2048, "tokens of a served request, prompt and answer")
    bandwidth_gb_s: float | None = setting(None, "gigabytes that the device reads per second; null: timed on this one")
    tflops: float | None = setting(None, "teraflops of the device in the target's dtype; null: timed on this one")
    runs_dir: str = setting("runs", "where measured rates are looked up")

    def __post_init__(self) -> None:
        """Check ranges."""
        for key in ("num_domains", "prompt_tokens", "draft_vocab_size", "batch_size", "context"):
            require_at_least(key, getattr(self, key), 1)
        for key in ("bandwidth_gb_s", "tflops"):
            value = getattr(self, key)
            require(value is None or value > 0, f"{key} must be > 0, got {value}")
        given = self.bandwidth_gb_s is None, self.tflops is None
        require(given[0] == given[1], "bandwidth_gb_s and tflops describe another device; type both, or neither")


@dataclass(frozen=True)
class DoctorConfig:
    """`drafterforge doctor`."""

    target: TargetConfig = section(TargetConfig)
    runs_dir: str = setting("runs", "where artifacts are looked up")


@dataclass(frozen=True)
class InspectConfig:
    """`drafterforge inspect PATH`."""

    path: str = setting("", "folder of an artifact or a bundle, its name, or a bundle's .tar")
    runs_dir: str = setting("runs", "where names are looked up")

    def __post_init__(self) -> None:
        """Check that there is something to look at."""
        require(bool(self.path), "inspect needs a folder: type drafterforge inspect PATH")
