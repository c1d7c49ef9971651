"""Config of the commands that make and measure artifacts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drafterforge.config.checks import require, require_at_least, require_drafter_name, require_seed, require_seeds
from drafterforge.config.data import POOL_DOMAINS, DataConfig, DomainConfig
from drafterforge.config.drafter import DRAFTERS, DrafterConfig
from drafterforge.config.evaluation import VLLM, EvalConfig, SuiteConfig
from drafterforge.config.fields import section, setting
from drafterforge.config.policy import POLICIES, NetworkPolicyConfig, PolicyConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.replay import KNOTS, GridConfig, LatencyConfig, LiveConfig, TracesConfig
from drafterforge.config.router import RouterConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.config.variants import variant

ANSWER_KEYS = ("data.answers", "data.endpoint", "data.max_new_tokens", "data.temperature")
GENERAL = "general"  # the generalist, whose trees a policy chooses by default


@dataclass(frozen=True)
class PrepareDataConfig:
    """`drafterforge prepare-data`."""

    target: TargetConfig = section(TargetConfig)
    domain: DomainConfig = section(DomainConfig)
    data: DataConfig = section(DataConfig)
    name: str = setting("", "name of what the command writes; empty: the domain's")
    runs_dir: str = setting("runs", "folder where artifacts are looked up and written")
    seed: int = setting(0, "random seed of prompts, sampling and training")
    overwrite: bool = setting(False, "replace an artifact that was made with other settings")

    def __post_init__(self) -> None:
        require_seed(self.seed)


@dataclass(frozen=True)
class TrainDrafterConfig(PrepareDataConfig):
    """`drafterforge train-drafter`; `name` names the drafter and the answers that the command prepares.

    Without a name, both are named after the domain; drafters of other kinds than EAGLE-3 append their kind.
    """

    answers: list[str] = setting(
        [], "names or folders of the training answers; empty: prepare the domain's", input="answers"
    )
    val_answers: list[str] = setting(
        [], "answers for validation and decoding; empty: those of answers=", input="answers"
    )
    drafter: DrafterConfig = variant(DRAFTERS, "eagle3", key="kind")
    trainer: TrainerConfig = section(TrainerConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    eval: EvalConfig = section(EvalConfig)

    _answer_keys: ClassVar[tuple[str, ...]] = (*ANSWER_KEYS, "data.max_prompt_tokens")  # not read with answers=

    def __post_init__(self) -> None:
        super().__post_init__()
        require_drafter_name("name" if self.name else "domain", self.drafter_name)
        for key in ("answers", "val_answers") if self.data.stream else ():
            require(not getattr(self, key), f"data.stream= has answers of its own; leave out {key}=")
        self._require_no_unread_prompts()
        require(
            not self.data.stream or self.trainer.num_answers is None,
            "trainer.num_answers= is not read with data.stream=, which is read until it ends; leave it out",
        )
        require(
            self.drafter.num_taps in (None, self.target.num_taps),
            f"drafter={self.drafter.kind} reads {self.drafter.num_taps} layers of the target, but target.taps names "
            f"{self.target.num_taps}; type drafter=block, or leave target.taps out",
        )

    def _require_no_unread_prompts(self) -> None:
        """ConfigError if prompts are given besides answers, which have prompts of their own."""
        key = "path" if self.data.path else "dataset"
        prompts = f"data={self.data.source}" + (f" {key}={value}" if (value := getattr(self.data, key)) else "")
        unread = self.data.source in ("jsonl", "hf") or (self.data.source == "grammar" and bool(self.data.path))
        require(
            not self.answers or not unread,
            f"answers= has prompts of its own, so {prompts} would not be read; type `drafterforge prepare-data "
            f"domain={self.domain.name} {prompts} name=OTHER`, then answers=[{','.join([*self.answers, 'OTHER'])}], or "
            "leave one of them out",
        )

    def require_read(self, typed: Iterable[str]) -> None:
        """ConfigError for a typed key that says which prompts are answered, or how, besides answers.  typed: keys."""
        for key in typed if self.answers else ():
            require(
                key not in self._answer_keys,
                f"{key}= says how prompts are answered, so it is not read with answers=; leave it out, or type it for "
                "prepare-data",
            )
            reason = f"{key}= says which prompts are answered, so it is not read with answers=; leave it out, or type "
            require(not key.startswith("data.num_"), f"{reason}trainer.num_answers= for the number of training answers")
            require(not key.startswith("domain.weights"), f"{reason}domain=general to learn from all their domains")

    @property
    def drafter_name(self) -> str:
        """Name of the drafter and its report."""
        kind = self.drafter.kind
        return self.name or self.domain.name + ("" if kind == "eagle3" else f"-{kind}")


@dataclass(frozen=True)
class QuickstartConfig(TrainDrafterConfig):
    """`drafterforge quickstart`; `name` names the answers, the drafter, the bundle and the report."""

    pool: PoolConfig = section(PoolConfig, "decodes the first prompts; pool.drafters= names what else the bundle holds")
    first_prompts: int = setting(4, "held-out prompts decoded before training")
    first_tokens: int = setting(64, "length limit of the answers to first_prompts")
    _answer_keys: ClassVar[tuple[str, ...]] = ANSWER_KEYS  # data.max_prompt_tokens bounds what is decoded first

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.name), "quickstart needs a name for its artifacts; type name=quickstart")
        require(
            self.drafter.is_adapter,
            "quickstart tunes a LoRA expert, got drafter.tuning=full; leave it out, or type `drafterforge "
            "train-drafter`",
        )
        require((self.trainer.devices or 1) == 1, "quickstart trains on one device; leave trainer.devices out")
        require(not self.val_answers, "val_answers= is read by train-drafter only; leave it out")
        require(not self.data.stream, "data.stream= is read by prepare-data and train-drafter only; leave it out")
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
    drafter: str = setting("general", "name or folder of the drafter whose steps are measured", input="drafters")
    domains: list[str] = setting([*POOL_DOMAINS], "domains of the prompts")
    name: str = setting("", "name of the latency profile; empty: the drafter's")
    runs_dir: str = setting("runs", "folder where drafters are looked up and the profile is written")
    seed: int = setting(0, "random seed of prompts and trees")
    overwrite: bool = setting(False, "measure again and replace the profile")

    def __post_init__(self) -> None:
        require_seed(self.seed)
        self.runtime.require_match()
        require(not self.latency.is_named, "calibrate measures this machine; leave out latency= and latency.path=")


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
    drafter: str = setting(GENERAL, "name or folder of the drafter whose trees the policy chooses", input="drafters")
    name: str = setting("", "name of the policy; empty: policy.name, or its method")
    runs_dir: str = setting("runs", "folder where artifacts are looked up and written")
    seed: int = setting(0, "random seed of prompts and training")
    seeds: list[int] = setting([], "further training seeds, a policy NAME-seedN each; the report has mean and spread")
    overwrite: bool = setting(False, "replace an artifact that was made with other settings")

    def __post_init__(self) -> None:
        require_seeds(self.seed, self.seeds)
        require(
            self.policy.method == "router" or self.name != "router",
            "name=router is reserved for the pool's router; type name=OTHER",
        )
        require(
            not self.seeds or isinstance(self.policy, NetworkPolicyConfig),
            f"seeds= is read by policies with a network only, not by policy={self.policy.method}",
        )
        require(
            self.policy.method == "router" or self.router == RouterConfig(),
            f"router.* keys are read by policy=router only, not by policy={self.policy.method}",
        )
        require(
            self.policy.method != "router" or self.drafter in ("", GENERAL),
            f"drafter={self.drafter} is not read by policy=router, which chooses among all drafters of the pool; leave "
            "it out, or type router.labels=measured router.drafters=[A,B]",
        )
        require(
            Path(self.drafter).name == self.drafter,
            f"drafter={self.drafter} is a path, but traces and profiles are stored by a drafter's name; type "
            "drafter=NAME runs_dir=FOLDER",
        )
        drafters = self.traces.drafters
        require(
            self.policy.method in ("joint", "router") or not drafters or self.drafter in drafters,
            f"traces.drafters={drafters} lacks drafter={self.drafter}, whose trees the policy chooses; add it",
        )
        self.runtime.require_match()

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that the policy's method does not read, so that they need not be there."""
        return ("drafter", "traces.drafters") if self.policy.method == "router" else ()


@dataclass(frozen=True)
class EvaluateConfig:
    """`drafterforge eval`."""

    target: TargetConfig = section(TargetConfig)
    suite: SuiteConfig = section(SuiteConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    bundle: str = setting(
        "", "suite=vllm: name or folder of the bundle that is served; empty: `main`, which is made if it is missing"
    )
    name: str = setting("", "name of the report; empty: the suite's")
    limit: int = setting(0, "largest number of prompts of each domain or benchmark; 0: the suite's")
    overwrite: bool = setting(False, "discard the measurements of an interrupted run")
    compare: str = setting(
        "", "compare two reports, A,B as names or paths, and decode nothing; exit code 1 if B is worse"
    )
    runs_dir: str = setting("runs", "folder where drafters are looked up and the report is written")
    seed: int = setting(0, "random seed of the prompt stream and of randomised selectors")

    def __post_init__(self) -> None:
        require_seed(self.seed)
        self.runtime.require_match()
        require_at_least("limit", self.limit, 0)
        require(not self.bundle or self.suite.name == VLLM, f"bundle={self.bundle} is read by suite=vllm only")
        reports = [report.strip() for report in self.compare.split(",")]
        is_pair = len(reports) == 2 and all(reports)
        require(not self.compare or is_pair, f"compare must be A,B, two reports by name or path, got {self.compare!r}")

    def require_read(self, typed: Iterable[str]) -> None:
        """ConfigError for a typed key of the suite that it does not read.  typed: keys."""
        if not self.compare:
            self.suite.require_read(key.split(".")[1] for key in typed if key.startswith("suite."))


@dataclass(frozen=True)
class DoctorConfig:
    """`drafterforge doctor`."""

    target: TargetConfig = section(TargetConfig)
    runs_dir: str = setting("runs", "folder where artifacts are looked up")


@dataclass(frozen=True)
class InspectConfig:
    """`drafterforge inspect PATH`."""

    path: str = setting("", "folder of an artifact or a bundle, its name, or a bundle's .tar")
    runs_dir: str = setting("runs", "folder where names are looked up")

    def __post_init__(self) -> None:
        require(bool(self.path), "inspect needs an artifact or a bundle: type `drafterforge inspect NAME_OR_PATH`")
