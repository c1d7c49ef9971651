"""Every configuration key, its default and one line of meaning; YAML in `configs/` picks values.

`drafterforge COMMAND --help` prints the comment beside each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drafterforge.errors import ConfigError

POOL_DOMAINS = (  # of the shipped pool's experts: what is measured by default
    "sql",
    "python",
    "math",
    "chat",
    "science",
    "medical",
    "summarization",
    "translation",
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    _require(value in choices, f"{key} must be one of {', '.join(choices)}, got {value!r}")


def _at_least(key: str, value: float | None, least: float) -> None:
    _require(value is None or value >= least, f"{key} must be >= {least}, got {value}")


def _counts(group: object, prefix: str, names: str) -> None:
    for name in names.split():
        _at_least(f"{prefix}.{name}", getattr(group, name), 1)


def _share(key: str, value: float) -> None:
    _require(0.0 <= value <= 1.0, f"{key} must lie in [0, 1], got {value}")


LORA_TARGETS = ("fc", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


@dataclass(frozen=True)
class TargetConfig:
    """The big model whose output is reproduced."""

    name: str = "smollm2-135m"  # folder under runs/; empty with target=hf: taken from the model
    source: str = "wheel"  # wheel: the embedded default | hf: a hub id or a local folder
    model: str = ""  # hub id or local folder, for source=hf
    revision: str | None = None  # hub revision
    dtype: str = "auto"  # auto: bfloat16 where the device computes in it, else float32
    device: str = "auto"  # auto: cuda where there is one, else cpu
    forward: str = "auto"  # lean: our fused path | modules: the model's own | auto: lean if any
    taps: list[int] = field(default_factory=list)  # layers whose input drafters read; empty: 2, half, last but two

    def __post_init__(self) -> None:
        """Check the values that do not depend on the machine."""
        _one_of("target.source", self.source, ("wheel", "hf"))
        found = ",".join(map(str, self.taps))
        _require(len(self.taps) in (0, 3), f"target.taps must name three layers, low, mid and high, got [{found}]")
        for key in ("model", "revision"):
            given = getattr(self, key) and self.source == "wheel"
            _require(not given, f"target.{key}= is read by target=hf only; type target=hf target.model=...")
        _one_of("target.dtype", self.dtype, ("auto", "float32", "bfloat16", "float16", "float64"))
        _one_of("target.forward", self.forward, ("auto", "lean", "modules"))


@dataclass(frozen=True)
class DomainConfig:
    """A kind of traffic: its prompt grammar, its mixture, and the papers' data set for it."""

    name: str = "sql"  # folder name of its answers and drafters
    grammar: bool = True  # whether the package has a prompt grammar of its own for it
    weights: dict[str, float] = field(default_factory=dict)  # general only: share of each domain; 0 leaves it out
    dataset: str = ""  # hub id used by data=hf when dataset= is not given
    dataset_config: str | None = None  # its configuration on the hub
    dataset_split: str = "train"  # its split that prompts are taken from
    column: str = ""  # its prompt column

    @property
    def alone(self) -> str:
        """The domain that answers are picked by: its name; of a mixture nothing, which takes all."""
        return "" if any(weight > 0 for weight in self.weights.values()) else self.name


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from and how the target answers them."""

    source: str = "grammar"  # grammar | jsonl | hf
    path: str = ""  # data=jsonl: a file with one {"messages": [...]} a line, or a folder of such files
    licences: list[str] = field(default_factory=list)  # data=jsonl: lines whose licence begins so; empty: all lines
    domain_names: dict[str, str] = field(default_factory=dict)  # data=jsonl: what domains of its lines are called here
    dataset: str = ""  # data=hf: hub id or local folder; empty: the domain's own
    dataset_config: str | None = None  # data=hf: configuration of that data set
    dataset_split: str = ""  # data=hf: its split; empty: the domain's own, or train
    column: str = ""  # data=hf: a column of prompt strings, or of message lists
    streaming: bool = True  # data=hf: read rows as they arrive, without downloading the whole set
    num_train: int = 2000  # prompts answered for training
    num_val: int = 48  # prompts that choose the checkpoint
    num_test: int = 100  # held-out prompts for decoding
    answers: str = "target"  # target: the target answers | given: keep the assistant turns
    max_prompt_tokens: int = 1024  # longer prompts are left out and counted
    max_new_tokens: int = 192  # length limit of one answer
    temperature: float = 0.0  # 0: greedy
    batch_size: int = 64  # answers decoded together
    shard_size: int = 256  # answers per resumable shard
    features: str = "cached"  # cached: features and teacher on disk | online: recomputed

    def __post_init__(self) -> None:
        """Check ranges, and that a source has what it needs."""
        _one_of("data.source", self.source, ("grammar", "jsonl", "hf"))
        _one_of("data.answers", self.answers, ("target", "given"))
        _one_of("data.features", self.features, ("cached", "online"))
        if self.source == "jsonl":
            _require(bool(self.path), "data=jsonl needs a file: type path=FILE.jsonl")
        else:
            _require(not self.path, f"path= is read by data=jsonl only, not by data={self.source}")
            for key in ("licences", "domain_names"):
                found = f"data.{key}= is read by data=jsonl only, not by data={self.source}"
                _require(not getattr(self, key), f"{found}; type data=jsonl path=FILE.jsonl")
        for key in ("dataset", "dataset_config", "dataset_split", "column"):
            given = getattr(self, key) and self.source != "hf"
            _require(not given, f"{key}= is read by data=hf only, not by data={self.source}")
        _counts(self, "data", "num_train num_val num_test batch_size shard_size")
        _counts(self, "data", "max_prompt_tokens max_new_tokens")
        _at_least("data.temperature", self.temperature, 0.0)


@dataclass(frozen=True)
class CausalLMConfig:
    """Size of a small causal LM of the target's family and vocabulary; null keeps the target's proportions."""

    num_layers: int = 2  # decoder layers; drafter.init=warm takes them from the target, evenly spaced
    hidden_size: int | None = None  # width
    num_heads: int | None = None  # attention heads
    intermediate_size: int | None = None  # width of the MLP
    train_embeddings: bool | None = None  # embeddings and head too; null: only where they cannot be the target's

    def __post_init__(self) -> None:
        """Check ranges."""
        _counts(self, "drafter.causal_lm", "num_layers hidden_size num_heads intermediate_size")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank additions that make an expert of a generalist (drafter.tuning=lora)."""

    rank: int = 16  # inner width of every addition
    alpha: float = 32.0  # additions are scaled by alpha / rank
    targets: list[str] = field(default_factory=lambda: list(LORA_TARGETS))  # projections that get one

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least("drafter.lora.rank", self.rank, 1)
        _require(self.alpha > 0, f"drafter.lora.alpha must be > 0, got {self.alpha}")
        _require(bool(self.targets), "drafter.lora.targets must name a projection, such as [q_proj]")
        for name in self.targets:
            _one_of("drafter.lora.targets", name, LORA_TARGETS)


@dataclass(frozen=True)
class DrafterConfig:
    """Kind, architecture and start of a drafter."""

    kind: str = "eagle3"  # eagle3 | causal_lm: a small LM, distilled | retrieval: a datastore of the answers
    draft_vocab_size: int = 16384  # most frequent answer tokens the drafter can propose
    head: str = "own"  # own: trained with the rest | target: the target's rows, frozen; not stored if it ties them
    init: str = "warm"  # warm: from the target | scratch: random | a drafter's name or folder
    fc_norm: bool = False  # EAGLE-3.1: norm each of the three features before they are joined
    norm_output: bool = False  # EAGLE-3.1: drafted tokens read their parents' outputs after the final norm
    causal_lm: CausalLMConfig = field(default_factory=CausalLMConfig)
    tuning: str = "full"  # full: every weight | lora: low-rank additions to the drafter that init names
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        """Check ranges."""
        _one_of("drafter.kind", self.kind, ("eagle3", "causal_lm", "retrieval"))
        _at_least("drafter.draft_vocab_size", self.draft_vocab_size, 2)
        _require(bool(self.init), "drafter.init must be warm, scratch, or a drafter's name or folder")
        _one_of("drafter.head", self.head, ("own", "target"))
        _require(
            self.head == "own" or (self.kind == "eagle3" and self.tuning == "full"),
            f"drafter.head=target keeps an EAGLE-3 drafter from training its head, got drafter.kind={self.kind} and "
            f"drafter.tuning={self.tuning}; leave it out: a LoRA expert without lm_head in drafter.lora.targets keeps "
            "its generalist's",
        )
        _one_of("drafter.tuning", self.tuning, ("full", "lora"))
        _require(
            self.tuning == "full" or self.kind == "eagle3",
            f"drafter.tuning=lora adds to an EAGLE-3 drafter, got drafter.kind={self.kind}; type drafter.tuning=full",
        )
        named = self.init not in ("warm", "scratch")
        for key in ("fc_norm", "norm_output"):
            _require(
                not getattr(self, key) or (self.kind == "eagle3" and not named),
                f"drafter.{key}=true shapes a new EAGLE-3 drafter, got drafter.kind={self.kind} and drafter.init="
                f"{self.init}; leave it out, or type drafter.kind=eagle3 drafter.init=warm",
            )
        _require(
            self.tuning == "full" or named,
            f"drafter.tuning=lora adds to a trained drafter, got drafter.init={self.init}; type drafter.init=general",
        )


@dataclass(frozen=True)
class TrainerConfig:
    """Distillation: training-time test, optimiser, batches, validation."""

    ttt_steps: int = 7  # draft positions unrolled during training, as at decode time
    val_ttt_steps: int | None = None  # drafted tokens of the chain that validation measures; null: ttt_steps
    step_decay: float = 0.8  # weight of TTT step i is step_decay ** i
    num_answers: int | None = None  # learn from so many training answers only, of every domain its share; null: all
    max_steps: int = 400  # optimiser steps
    tokens_per_batch: int = 2048  # packed tokens (prompt and answer) in one micro-batch
    accumulate: int = 1  # micro-batches per optimiser step
    lr: float = 1.0e-3  # peak learning rate of AdamW
    min_lr_ratio: float = 0.05  # cosine ends at lr * min_lr_ratio
    warmup_ratio: float = 0.03  # share of max_steps with a rising learning rate
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])  # AdamW's
    weight_decay: float = 0.0  # AdamW's
    grad_clip: float = 1.0  # largest gradient norm
    precision: str = "auto"  # bf16-mixed | 32-true | auto: bf16-mixed on tensor cores and AMX
    checkpoint_steps: bool = True  # recompute each TTT step backwards instead of storing it
    loss_chunk: int = 128  # rows of logits alive at once
    val_every: int = 50  # optimiser steps between validations
    patience: int = 8  # validations without a better accept length before stopping
    log_every: int = 5  # optimiser steps between logged values
    loggers: list[str] = field(default_factory=lambda: ["csv", "tensorboard"])  # of csv, tensorboard, wandb, mlflow
    project: str = "drafterforge"  # project of wandb, experiment of mlflow
    wandb_mode: str = "offline"  # offline: beside the other logs, for `wandb sync` | online | disabled
    mlflow_uri: str = ""  # tracking server or database; empty: files beside the other logs

    def __post_init__(self) -> None:
        """Check ranges."""
        _counts(self, "trainer", "ttt_steps max_steps tokens_per_batch accumulate loss_chunk")
        _counts(self, "trainer", "val_every patience log_every")
        _at_least("trainer.num_answers", self.num_answers, 1)
        _at_least("trainer.val_ttt_steps", self.val_ttt_steps, 1)
        _require(self.lr > 0, f"trainer.lr must be > 0, got {self.lr}")
        _require(self.step_decay > 0, f"trainer.step_decay must be > 0, got {self.step_decay}")
        _share("trainer.min_lr_ratio", self.min_lr_ratio)
        _share("trainer.warmup_ratio", self.warmup_ratio)
        _at_least("trainer.weight_decay", self.weight_decay, 0.0)
        _at_least("trainer.grad_clip", self.grad_clip, 0.0)
        _require(len(self.betas) == 2, f"trainer.betas must be two numbers, got {list(self.betas)}")
        for beta in self.betas:
            _require(0.0 <= beta < 1.0, f"trainer.betas must lie in [0, 1), got {list(self.betas)}")
        _one_of("trainer.precision", self.precision, ("auto", "bf16-mixed", "32-true"))
        for name in self.loggers:
            _one_of("trainer.loggers", name, ("csv", "tensorboard", "wandb", "mlflow"))
        _one_of("trainer.wandb_mode", self.wandb_mode, ("offline", "online", "disabled"))
        _require(bool(self.project), "trainer.project must be a name")

    @property
    def validated_steps(self) -> int:
        """Drafted tokens of the chain that validation measures."""
        return self.val_ttt_steps or self.ttt_steps


MOST_NODES, MOST_LEVELS = 1024, 256  # of a tree that is asked for; larger ones never pay


@dataclass(frozen=True)
class RuntimeConfig:
    """Shape of the draft tree (null: the device's own default), and numerics."""

    num_tokens: int | None = None  # nodes verified per cycle, root included
    depth: int | None = None  # drafted levels
    top_k: int | None = None  # beam and children per node
    numerics: str = "auto"  # invariant: half precision decodes as its autoregressive self | fast | auto: if it can

    def __post_init__(self) -> None:
        """Check ranges."""
        _one_of("runtime.numerics", self.numerics, ("auto", "fast", "invariant"))
        _at_least("runtime.num_tokens", self.num_tokens, 1)
        _at_least("runtime.depth", self.depth, 0)
        _at_least("runtime.top_k", self.top_k, 1)
        for key, most in (("num_tokens", MOST_NODES), ("depth", MOST_LEVELS), ("top_k", MOST_NODES)):
            value = getattr(self, key)
            _require(value is None or value <= most, f"runtime.{key} must be <= {most}, got {value}")


@dataclass(frozen=True)
class EvalConfig:
    """Decoding of held-out prompts after training."""

    num_prompts: int = 20  # held-out prompts decoded
    max_new_tokens: int = 128  # tokens decoded for each
    chain: bool = True  # also decode with a plain chain as deep as the tree
    check_float32: bool = True  # also compare with autoregressive decoding in float32

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least("eval.num_prompts", self.num_prompts, 1)
        _at_least("eval.max_new_tokens", self.max_new_tokens, 1)


@dataclass(frozen=True)
class PrepareDataConfig:
    """`drafterforge prepare-data`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    domain: DomainConfig = field(default_factory=DomainConfig)
    data: DataConfig = field(default_factory=DataConfig)
    name: str = ""  # name of the answers; empty: the domain's
    runs_dir: str = "runs"  # where artifacts are looked up and written
    seed: int = 0  # of prompts, sampling and training
    overwrite: bool = False  # replace an artifact that was made with other settings

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(0 <= self.seed < 2**32, f"seed must lie in [0, 2**32), got {self.seed}")


@dataclass(frozen=True)
class ImportConfig:
    """`drafterforge import`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    path: str = ""  # folder or hub id of a published EAGLE-3 head
    revision: str | None = None  # of a hub id
    format: str = "auto"  # eagle3: SafeAILab's and SGLang's | speculators | auto: as its config tells
    layer_ids: list[int] = field(default_factory=list)  # layers whose input it reads, if its config is not clear
    norm_before_residual: bool | None = None  # where a speculators config does not say
    name: str = ""  # of the drafter; empty: the last part of path
    runs_dir: str = "runs"  # where the drafter is written
    overwrite: bool = False  # replace a drafter of that name

    def __post_init__(self) -> None:
        """Check what can be told without the head."""
        _one_of("format", self.format, ("auto", "eagle3", "speculators"))
        _require(len(self.layer_ids) in (0, 3), f"layer_ids must be three layers, got {list(self.layer_ids)}")
        _require(self.name not in ("retrieval", "pool"), f"name={self.name} means another drafter; type name=OTHER")


@dataclass(frozen=True)
class TrainDrafterConfig(PrepareDataConfig):
    """`drafterforge train-drafter`; its name is the drafter's, and of the answers it prepares.

    Without a name the answers are called as the domain, and the drafter so too, with its kind unless it is EAGLE-3.
    """

    answers: list[str] = field(default_factory=list)  # name or folder to learn from, or [several]; empty: prepared
    val_answers: list[str] = field(default_factory=list)  # those that validate and are decoded; empty: of answers=
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        """Check ranges, and that the drafter can be called by its name."""
        super().__post_init__()
        _require(self.name != "retrieval", "name=retrieval means the drafter without a datastore; type name=OTHER")
        _require(self.name != "pool", "name=pool means all drafters together; type name=OTHER")
        _require(self.name.count("+") != 1, f"name={self.name} would mean two drafters in one; type a name without +")

    @property
    def drafter_name(self) -> str:
        """What the drafter and its report are called."""
        kind = self.drafter.kind
        return self.name or self.domain.name + ("" if kind == "eagle3" else f"-{kind}")


SUITES = ("quick", "domains", "papers", "mixed", "ood", "scaling")
METHODS = ("generalist", "expert", "retrieval", "default", "generalist+retrieval", "hf_generate", "hf_prompt_lookup")


@dataclass(frozen=True)
class SuiteConfig:
    """What `eval` decodes."""

    name: str = "mixed"  # quick | domains | papers | mixed: a stream of all domains | ood: in other words | scaling
    domains: list[str] = field(default_factory=lambda: list(POOL_DOMAINS))  # with a prompt grammar
    questions: str = ""  # papers: folder, file or hub id of question files
    benchmarks: list[str] = field(default_factory=list)  # papers: names of its files; empty: all
    num_prompts: int = 64  # requests; of papers for each benchmark, its turns apart
    conversations: float = 0.25  # mixed: share of requests that go on from an answer of another domain
    tuning_prompts: int = 32  # further requests, on which constants of bandits are tuned; 0: the defaults
    replay: bool = True  # look at every position of the answers, and replay all selectors exactly
    selectors: list[str] = field(default_factory=list)  # selectors to replay; empty: all
    schedulers: list[str] = field(default_factory=list)  # policies to replay each selector with, beside one tree
    pool_orders: int = 4  # in which drafters join, averaged over, where selectors are replayed in smaller pools
    timed_prompts: int = 8  # requests decoded one by one for tokens/s, methods taking turns; 0: none
    methods: list[str] = field(default_factory=lambda: list(METHODS))  # those, drafters, selectors, X/Y, X+retrieval
    openvino: str = ""  # folder of the target in OpenVINO's files, for the method openvino
    check_live: bool = True  # decode with every drafter and the selector in batches too, and compare with the replay
    max_new_tokens: int = 128  # length limit of an answer
    batch_size: int = 8  # requests decoded together where nothing is timed
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.5, 1.0])  # scaling: those timed
    batch_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8])  # scaling: those timed
    context_lengths: list[int] = field(default_factory=lambda: [256, 512, 1024])  # scaling: tokens before an answer
    pool_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])  # scaling: drafters, as far as there are

    def __post_init__(self) -> None:
        """Check ranges."""
        _one_of("suite.name", self.name, SUITES)
        _counts(self, "suite", "num_prompts max_new_tokens batch_size pool_orders")
        _at_least("suite.tuning_prompts", self.tuning_prompts, 0)
        _at_least("suite.timed_prompts", self.timed_prompts, 0)
        _share("suite.conversations", self.conversations)
        _require(bool(self.domains), "suite.domains must name a domain, such as [sql]")
        for key, least in (("temperatures", 0), ("batch_sizes", 1), ("context_lengths", 1), ("pool_sizes", 1)):
            for value in getattr(self, key):
                _at_least(f"suite.{key}", value, least)
        _require(
            self.replay or self.timed_prompts > 0,
            "suite.replay=false and suite.timed_prompts=0 leave nothing to measure; leave one of them out",
        )


@dataclass(frozen=True)
class PoolConfig:
    """Which drafters decode together, and how one is picked for every cycle."""

    drafters: list[str] = field(default_factory=list)  # names or folders; empty: all of the target, and retrieval
    selector: str = "hedgespec"  # see drafterforge/selectors/README.md
    options: dict[str, Any] = field(default_factory=dict)  # its own, such as {estimator: ratio_rb}
    every: int = 1  # cycles between passes in which all drafters read what is committed
    scheduler: str = ""  # name or folder of a policy that chooses the trees; empty: one tree
    router: str = ""  # name or folder of a router that advises the selector; empty: none

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least("pool.every", self.every, 1)


@dataclass(frozen=True)
class EvaluateConfig:
    """`drafterforge eval`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    suite: SuiteConfig = field(default_factory=SuiteConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    name: str = ""  # name of the report; empty: the suite's
    limit: int = 0  # most prompts of each domain or benchmark; 0: as the suite says
    overwrite: bool = False  # forget what an interrupted run has measured already
    compare: str = ""  # decode nothing, set two reports side by side: A,B as names or paths; exit 1 if B is worse
    runs_dir: str = "runs"  # where drafters are looked up and the report is written
    seed: int = 0  # of the stream and of selectors that draw

    def __post_init__(self) -> None:
        """Check ranges, and that what is configured is what the replay plays."""
        _require(0 <= self.seed < 2**32, f"seed must lie in [0, 2**32), got {self.seed}")
        _at_least("limit", self.limit, 0)
        two = [one.strip() for one in self.compare.split(",")]
        _require(not self.compare or (len(two) == 2 and all(two)), f"compare must be A,B, got {self.compare!r}")
        _require(
            self.pool.every == 1 or not self.suite.replay,
            f"eval replays drafters that read after every cycle, got pool.every={self.pool.every}; "
            "leave it out, or time it alone with suite.replay=false",
        )


@dataclass(frozen=True)
class GridConfig:
    """Tree shapes that a scheduler chooses from; to draft nothing is always one of them."""

    name: str = "cpu"  # named in policies and reports
    num_tokens: list[int] = field(default_factory=lambda: [1, 4, 8, 12, 16, 24, 32, 48, 64])  # nodes, root included
    depths: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5, 6, 7, 8])  # drafted levels
    top_ks: list[int] = field(default_factory=lambda: [1, 2, 4, 8])  # beam and children per node

    def __post_init__(self) -> None:
        """Check that they rise."""
        for key in ("num_tokens", "depths", "top_ks"):
            values = getattr(self, key)
            rising = bool(values) and values[0] >= 1 and values == sorted(set(values))
            _require(rising, f"grid.{key} must be rising numbers from 1 on, got {values}")


@dataclass(frozen=True)
class TracesConfig:
    """What is recorded of the target and its drafters, once for all policies."""

    name: str = ""  # of the artifact; empty: the policy's drafter
    drafters: list[str] = field(default_factory=list)  # EAGLE-3 drafters; empty: the policy's
    domains: list[str] = field(default_factory=lambda: list(POOL_DOMAINS))  # with a prompt grammar
    num_train: int = 200  # answers that policies learn from, of tasks that no drafter learned from
    num_test: int = 80  # answers that measure them, of further tasks
    max_new_tokens: int = 128  # length limit of an answer
    told_top_k: int = 4  # width whose candidates' scores are recorded, for policy=ltd
    batch_size: int = 8  # answers decoded together
    shard_size: int = 16  # answers per resumable shard

    def __post_init__(self) -> None:
        """Check ranges."""
        _counts(self, "traces", "num_train num_test max_new_tokens told_top_k batch_size shard_size")
        _at_least("traces.max_new_tokens", self.max_new_tokens, 2)
        _require(bool(self.domains), "traces.domains must name a domain, such as [sql]")


@dataclass(frozen=True)
class LatencyConfig:
    """How a device's costs are measured."""

    path: str = ""  # a profile to use instead of this device's own, such as another device's
    num_prompts: int = 24  # answers decoded with trees drawn from the grid, to fit
    num_held_out: int = 12  # answers decoded with one tree each, to compare with what the fit predicts
    max_new_tokens: int = 128  # length limit of an answer
    probe_tokens: int = 16  # tokens decoded without a drafter beside each answer

    def __post_init__(self) -> None:
        """Check ranges."""
        _counts(self, "latency", "num_prompts num_held_out")
        _at_least("latency.max_new_tokens", self.max_new_tokens, 2)
        _at_least("latency.probe_tokens", self.probe_tokens, 2)


KNOTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)  # node counts that are measured; between them is interpolated


@dataclass(frozen=True)
class CalibrateConfig:
    """`drafterforge calibrate`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    grid: GridConfig = field(default_factory=lambda: GridConfig(name="calibration", num_tokens=[*KNOTS]))
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    drafter: str = "general"  # whose steps are measured
    domains: list[str] = field(default_factory=lambda: list(POOL_DOMAINS))  # of the prompts
    name: str = ""  # of the profile; empty: the drafter's
    runs_dir: str = "runs"  # where drafters are looked up and the profile is written
    seed: int = 0  # of prompts and trees
    overwrite: bool = False  # measure anew

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(0 <= self.seed < 2**32, f"seed must lie in [0, 2**32), got {self.seed}")


@dataclass(frozen=True)
class PolicyConfig:
    """What is trained."""

    name: str = ""  # of a variant, such as resps-text, which names its artifact; empty: the method's
    method: str = "marginal"  # resps | ltd | planner | marginal | router | joint: drafter and tree by a selector
    objective: str = "average"  # average: tokens - rho x seconds | throughput | accept_length | time, as papers reward
    parts: list[str] = field(default_factory=lambda: ["children", "length"])  # features, text, children, length
    train_every: int = 1  # cycles an action is kept in training
    every: int = 1  # cycles an action is kept in decoding
    temperature: float = 0.0  # of choosing in decoding; 0: the best
    actor: list[int] = field(default_factory=lambda: [128, 128])  # hidden layers of the network that chooses
    critic: list[int] = field(default_factory=lambda: [128, 128])  # hidden layers of PPO's critic
    total_cycles: int = 400000  # replayed cycles that PPO learns from
    num_envs: int = 16  # answers that PPO plays at once
    num_steps: int = 64  # decisions per answer between PPO's updates
    batch_size: int = 32  # decisions per optimiser step
    epochs: int = 4  # passes over what was played
    lr: float = 3e-4  # learning rate
    schedule: str = "constant"  # constant | linear: of the learning rate
    gamma: float = 0.99  # discount
    lam: float = 0.95  # of generalised advantages
    entropy: float = 0.01  # weight of the entropy; 0.1: max-entropy
    weight_decay: float = 0.1  # planner: of the network that chooses
    planner_rounds: int = 60  # planner: evaluations of the policy
    decides: str = "both"  # ltd: depth | size | both, taking turns | independent: both, each trained alone
    rounds: int = 2  # ltd: turns of each of the two
    max_depth: int = 8  # ltd, marginal: deepest tree
    size_actor: list[int] | None = None  # ltd: hidden layers of the size policy; null: as actor
    size_gamma: float | None = None  # ltd: discount of the size policy; null: as gamma
    arms: int = 8  # joint: pairs of drafter and tree to choose from

    def __post_init__(self) -> None:
        """Check ranges."""
        _one_of("policy.method", self.method, ("resps", "ltd", "planner", "marginal", "router", "joint"))
        _one_of("policy.objective", self.objective, ("average", "throughput", "accept_length", "time"))
        _one_of("policy.decides", self.decides, ("depth", "size", "both", "independent"))
        _one_of("policy.schedule", self.schedule, ("constant", "linear"))
        _counts(self, "policy", "train_every every total_cycles num_envs num_steps batch_size epochs rounds max_depth")
        _counts(self, "policy", "planner_rounds arms")
        _at_least("policy.weight_decay", self.weight_decay, 0.0)
        _at_least("policy.temperature", self.temperature, 0.0)
        for key in ("gamma", "lam", "size_gamma"):
            if getattr(self, key) is not None:
                _share(f"policy.{key}", getattr(self, key))
        for key in ("size_actor", "size_gamma"):
            given = getattr(self, key) is not None and self.method != "ltd"
            _require(not given, f"policy.{key}= is read by policy=ltd only, not by policy.method={self.method}")
        for part in self.parts:
            _one_of("policy.parts", part, ("features", "text", "children", "length"))
        _require(bool(self.parts), "policy.parts must name what the policy sees, such as [children]")


@dataclass(frozen=True)
class RouterConfig:
    """The classifier that sees a prompt and names its drafter (policy=router)."""

    domains: list[str] = field(default_factory=lambda: list(POOL_DOMAINS))  # with a prompt grammar
    features: str = "target"  # target: what its prefill computes anyway | text: those of a small text encoder
    encoder: str = ""  # router.features=text: folder or hub id of the encoder
    labels: str = "domains"  # domains: a prompt's own | measured: which drafter drafts its answer best
    drafters: list[str] = field(default_factory=list)  # router.labels=measured: names; empty: the whole pool
    max_new_tokens: int = 48  # router.labels=measured: length limit of the answers that drafters are measured on
    num_train: int = 400  # training prompts of each domain
    num_val: int = 60  # prompts of each domain that calibrate its confidence
    num_test: int = 100  # held-out prompts of each domain; they are also asked in other words
    rephrased: float = 0.5  # share of the training prompts that are put in other words
    held_out_kinds: list[str] = field(default_factory=list)  # of rephrasing, tested but not trained on: role, ...
    hidden: int = 64  # width of the MLP's inner layer; 0: a linear head
    max_steps: int = 150  # optimiser steps
    batch_size: int = 256  # prompts per step
    lr: float = 3.0e-3  # learning rate of AdamW
    weight_decay: float = 0.01  # AdamW's
    label_smoothing: float = 0.05  # probability that hard labels give to all labels alike
    label_temperature: float = 0.1  # measured labels: softmax of accept lengths, divided by this

    def __post_init__(self) -> None:
        """Check ranges, and that an encoder is named where one is needed."""
        _one_of("router.features", self.features, ("target", "text"))
        _require(
            (self.features == "text") == bool(self.encoder),
            "router.encoder= goes with router.features=text, and only with it; type both or neither",
        )
        _one_of("router.labels", self.labels, ("domains", "measured"))
        _require(
            not self.drafters or self.labels == "measured",
            "router.drafters= is read by router.labels=measured only; type both or neither",
        )
        _at_least("router.max_new_tokens", self.max_new_tokens, 2)
        _counts(self, "router", "num_train num_val num_test max_steps batch_size")
        for key in ("rephrased", "label_smoothing"):
            _share(f"router.{key}", getattr(self, key))
        for key in ("hidden", "weight_decay"):
            _at_least(f"router.{key}", getattr(self, key), 0)
        for key in ("lr", "label_temperature"):
            _require(getattr(self, key) > 0, f"router.{key} must be > 0, got {getattr(self, key)}")


@dataclass(frozen=True)
class LiveConfig:
    """Decoding of held-out prompts with what was trained."""

    num_prompts: int = 24  # decoded one by one, methods taking turns; 0: replay only
    policies: list[str] = field(default_factory=list)  # further policies, by name, decoded beside the new one

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least("live.num_prompts", self.num_prompts, 0)


@dataclass(frozen=True)
class TrainPolicyConfig:
    """`drafterforge train-policy`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    drafter: str = "general"  # whose trees are scheduled
    name: str = ""  # of the policy; empty: that of policy=, or its method
    runs_dir: str = "runs"  # where artifacts are looked up and written
    seed: int = 0  # of prompts and training
    overwrite: bool = False  # replace an artifact that was made with other settings

    def __post_init__(self) -> None:
        """Check ranges."""
        _require(0 <= self.seed < 2**32, f"seed must lie in [0, 2**32), got {self.seed}")


@dataclass(frozen=True)
class GenerateConfig:
    """`drafterforge generate`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    drafter: str = ""  # a drafter's name or folder | pool | retrieval | a small LM's folder; empty: autoregressive
    bundle: str = ""  # a bundle's name, folder, .tar or hub id; drafter= then is one of its own, empty: its pool
    prompt: str = ""  # taken verbatim; empty: read from standard input
    max_new_tokens: int = 256  # length limit of the answer
    temperature: float = 0.0  # 0: the most probable token each time
    top_k: int = 0  # sample among the k most probable tokens; 0: all
    top_p: float = 1.0  # sample among the fewest tokens that hold this probability
    min_p: float = 0.0  # sample among tokens at least this times as probable as the best
    repetition_penalty: float = 1.0  # above 1: tokens of the text so far become less probable
    stop: list[str] = field(default_factory=list)  # strings that end the answer, left out of it; "\\n" too
    seed: int = 0  # of sampling: the same prompt and seed give the same text, with any drafter
    colour: str = "auto"  # drafted tokens in green: auto (on a terminal) | always | never
    runs_dir: str = "runs"  # where the drafter is looked up

    def __post_init__(self) -> None:
        """Check ranges."""
        _at_least("max_new_tokens", self.max_new_tokens, 1)
        _one_of("colour", self.colour, ("auto", "always", "never"))


@dataclass(frozen=True)
class ServeConfig:
    """`drafterforge serve`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    bundle: str = ""  # name or folder of a bundle; empty: target= and drafter=
    drafter: str = ""  # a drafter's name or folder | pool | retrieval | a small LM's folder; empty: autoregressive
    host: str = "127.0.0.1"  # address that is listened at; 0.0.0.0: every address of this machine
    port: int = 8000  # 0: a free one
    api_key: str = field(default="", repr=False)  # that clients have to send; better: DRAFTERFORGE_API_KEY=KEY
    max_batch: int = 8  # answers decoded together
    max_waiting: int = 64  # answers that may wait for a place; more are refused
    max_choices: int = 8  # answers that one request may ask for, by n= or by several prompts
    max_body_bytes: int = 4194304  # of a request
    max_new_tokens: int = 1024  # most tokens of an answer, and how many where a request does not say
    timeout_s: float = 300.0  # from a request's arrival to the end of its answer
    grace_s: float = 10.0  # that answers under way may go on after Ctrl-C or SIGTERM
    runs_dir: str = "runs"  # where the drafter is looked up

    def __post_init__(self) -> None:
        """Check ranges."""
        for key in ("max_batch", "max_choices", "max_body_bytes", "max_new_tokens"):
            _at_least(key, getattr(self, key), 1)
        for key in ("max_waiting", "grace_s"):
            _at_least(key, getattr(self, key), 0)
        _require(0 <= self.port < 2**16, f"port must lie in [0, 65535], got {self.port}")
        _require(self.timeout_s > 0, f"timeout_s must be > 0, got {self.timeout_s}")
        most = self.max_batch + self.max_waiting
        _require(
            self.max_choices <= most,
            f"max_choices={self.max_choices} could never be taken by max_batch={self.max_batch} and "
            f"max_waiting={self.max_waiting}; type max_choices={most}",
        )


@dataclass(frozen=True)
class QuickstartConfig(TrainDrafterConfig):
    """`drafterforge quickstart`; its name is that of the answers, the drafter, the bundle and the report."""

    pool: PoolConfig = field(default_factory=PoolConfig)  # what is shown first, and goes into the bundle
    first_prompts: int = 4  # held-out prompts decoded before anything is trained
    first_tokens: int = 64  # length limit of their answers

    def __post_init__(self) -> None:
        """Check that there is an expert to tune, and keys that only train-drafter reads."""
        super().__post_init__()
        _require(bool(self.name), "quickstart needs a name for what it makes; type name=quickstart")
        _require(
            self.drafter.tuning == "lora",
            f"quickstart tunes a LoRA expert, got drafter.tuning={self.drafter.tuning}; leave it out, or type "
            "drafterforge train-drafter",
        )
        _require(not self.val_answers, "val_answers= is read by train-drafter only; leave it out")
        for key in ("chain", "check_float32"):
            _require(not getattr(self.eval, key), f"eval.{key}=true is read by train-drafter only; leave it out")
        _at_least("first_prompts", self.first_prompts, 1)
        _at_least("first_tokens", self.first_tokens, 1)


@dataclass(frozen=True)
class ExportConfig:
    """`drafterforge export`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)  # what the bundle holds, and how its engine decodes
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  # of its engine; null: what suits each device
    bundle: str = "main"  # name or folder of the bundle; for format=sglang|vllm also a .tar or a hub id
    format: str = "bundle"  # bundle: a folder | tar: one reproducible file | sglang | vllm: drafters for these servers
    drafter: str = ""  # for format=sglang|vllm: which one; empty: every EAGLE-3 drafter
    layout: str = ""  # for format=vllm: speculators, the default, or plain, which is SGLang's
    weights: str = "auto"  # for format=sglang|vllm: bfloat16 | float32 | auto: bfloat16 where it loses nothing
    licence: str = ""  # of drafters and policies, such as Apache-2.0; empty: that of what is shipped, else not stated
    target_licence: str = ""  # of the target; empty: known for the embedded default, else not stated
    out: str = ""  # file or folder to write; empty: in runs_dir, beside the bundle
    push: str = ""  # OWNER/NAME on the hub to upload the bundle to
    private: bool = True  # whether a repository that push= makes is private
    runs_dir: str = "runs"  # where drafters and policies are looked up
    overwrite: bool = False  # make the bundle or the export anew

    def __post_init__(self) -> None:
        """Check ranges, and keys that contradict each other."""
        _one_of("format", self.format, ("bundle", "tar", "sglang", "vllm"))
        _require(bool(self.bundle), "bundle= is empty; type bundle=NAME")
        _require(not self.push or self.format == "bundle", "push= uploads a bundle; type format=bundle")
        if self.layout:
            _one_of("layout", self.layout, ("speculators", "plain"))
        _require(not self.layout or self.format == "vllm", f"layout={self.layout} is read with format=vllm only")
        _one_of("weights", self.weights, ("auto", "bfloat16", "float32"))


@dataclass(frozen=True)
class DoctorConfig:
    """`drafterforge doctor`."""

    target: TargetConfig = field(default_factory=TargetConfig)
    runs_dir: str = "runs"  # where artifacts are looked up


@dataclass(frozen=True)
class InspectConfig:
    """`drafterforge inspect PATH`."""

    path: str = ""  # folder of an artifact or a bundle, its name, or a bundle's .tar
    runs_dir: str = "runs"  # where names are looked up

    def __post_init__(self) -> None:
        """Check that there is something to look at."""
        _require(bool(self.path), "inspect needs a folder: type drafterforge inspect PATH")
