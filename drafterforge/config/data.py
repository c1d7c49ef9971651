"""Traffic: domains, and where prompts and answers come from."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.fields import setting
from drafterforge.prompts.domains import domains

POOL_DOMAINS = domains()  # all with a grammar: the shipped pool's experts, and what is measured by default


@dataclass(frozen=True)
class DomainConfig:
    """A kind of traffic: its prompt grammar, its mixture, and the papers' data set for it."""

    name: str = setting("sql", "folder name of its answers and drafters")
    grammar: bool = setting(True, "whether the package has a prompt grammar of its own for it")
    weights: dict[str, float] = setting({}, "general only: share of each domain; 0 leaves it out")
    dataset: str = setting("", "hub id used by data=hf when dataset= is not given")
    dataset_config: str | None = setting(None, "its configuration on the hub")
    dataset_split: str = setting("train", "its split that prompts are taken from")
    column: str = setting("", "its prompt column")

    @property
    def alone(self) -> str:
        """The domain that answers are picked by: its name; of a mixture nothing, which takes all."""
        return "" if any(weight > 0 for weight in self.weights.values()) else self.name


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from and how the target answers them."""

    source: str = setting("grammar", "grammar | jsonl | hf")
    path: str = setting(
        "",
        'data=jsonl: a file of {"messages": [...]} lines, or a folder; data=grammar: a grammar',
        input="path",
    )
    licences: list[str] = setting([], "data=jsonl: lines whose licence begins so; empty: all lines")
    domain_names: dict[str, str] = setting({}, "data=jsonl: what domains of its lines are called here")
    dataset: str = setting("", "data=hf: hub id or local folder; empty: the domain's own")
    dataset_config: str | None = setting(None, "data=hf: configuration of that data set")
    dataset_split: str = setting("", "data=hf: its split; empty: the domain's own, or train")
    column: str = setting("", "data=hf: a column of prompt strings, or of message lists")
    streaming: bool = setting(True, "data=hf: read rows as they arrive, without downloading the whole set")
    num_train: int = setting(2000, "prompts answered for training")
    num_val: int = setting(48, "prompts that choose the checkpoint")
    num_test: int = setting(100, "held-out prompts for decoding")
    answers: str = setting("target", "target: the target answers | given: keep the assistant turns")
    max_prompt_tokens: int = setting(1024, "longer prompts are left out and counted")
    max_new_tokens: int = setting(192, "length limit of one answer")
    temperature: float = setting(0.0, "0: greedy")
    batch_size: int = setting(64, "answers decoded together")
    shard_size: int = setting(256, "answers per resumable shard")
    features: str = setting("cached", "cached: features and teacher on disk | online: recomputed")

    def __post_init__(self) -> None:
        """Check ranges, and that a source has what it needs."""
        require_choice("data.source", self.source, ("grammar", "jsonl", "hf"))
        require_choice("data.answers", self.answers, ("target", "given"))
        require_choice("data.features", self.features, ("cached", "online"))
        if self.source == "jsonl":
            require(bool(self.path), "data=jsonl needs a file: type path=FILE.jsonl")
        else:
            require(not self.path or self.source == "grammar", f"path= is not read by data={self.source}")
            grammar = "path= of data=grammar is a grammar, FILE.yaml; for prompts type data=jsonl path=FILE.jsonl"
            require(not self.path or self.path.endswith((".yaml", ".yml")), grammar)
            for key in ("licences", "domain_names"):
                found = f"data.{key}= is read by data=jsonl only, not by data={self.source}"
                require(not getattr(self, key), f"{found}; type data=jsonl path=FILE.jsonl")
        for key in ("dataset", "dataset_config", "dataset_split", "column"):
            given = getattr(self, key) and self.source != "hf"
            require(not given, f"{key}= is read by data=hf only, not by data={self.source}")
        require_counts(self, "data", "num_train num_val num_test batch_size shard_size")
        require_counts(self, "data", "max_prompt_tokens max_new_tokens")
        require_at_least("data.temperature", self.temperature, 0.0)
