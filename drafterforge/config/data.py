"""Domains of traffic, and where their prompts and answers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts
from drafterforge.config.fields import setting
from drafterforge.prompts.domains import domains

TEXT = "{text}"  # stands for the text in a template
POOL_DOMAINS = domains()  # the domains with a grammar: those of the shipped experts, measured by default


@dataclass(frozen=True)
class DomainConfig:
    """A domain of traffic: its prompt grammar or mixture, and its data set on the hub."""

    name: str = setting("sql", "folder name of the domain's answers and drafters; set by domain=")
    grammar: bool = setting(True, "whether the package has a prompt grammar for the domain")
    weights: dict[str, float] = setting({}, "general only: share of each domain; 0 leaves it out")
    dataset: str = setting("", "data=hf: the domain's data set, a hub id")
    dataset_config: str | None = setting(None, "data=hf: configuration of the domain's data set")
    dataset_split: str = setting("train", "data=hf: split of the domain's data set")
    column: str = setting("", "data=hf: prompt column of the domain's data set")
    template: str = setting("", "data=hf: the prompt of a text of the domain's data set; empty: the text")

    def __post_init__(self) -> None:
        require(
            not self.weights or self.name not in POOL_DOMAINS,
            f"domain.weights= are the shares of domain=general, not read by domain={self.name}; leave them out",
        )

    @property
    def answers_domain(self) -> str:
        """Domain that answers are filtered by; empty for a mixture, which uses answers of all domains."""
        return "" if any(weight > 0 for weight in self.weights.values()) else self.name


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from, and how the target answers them."""

    source: str = setting("grammar", "grammar | jsonl | hf | recorded; set by data=")
    path: str = setting(
        "",
        'data=jsonl: a file of {"messages": [...]} lines, or a folder of such files; data=grammar: a grammar file; '
        "data=recorded: a recording of a vLLM server",
        input="path",
    )
    licences: list[str] = setting([], "data=jsonl: read only lines whose licence starts with one of these; empty: all")
    domain_names: dict[str, str] = setting({}, "data=jsonl: rename domains of its lines, as {theirs:ours}")
    dataset: str = setting("", "data=hf: hub id or local folder; empty: the domain's data set")
    dataset_config: str | None = setting(None, "data=hf: configuration of the data set")
    dataset_split: str = setting("", "data=hf: split of the data set; empty: the domain's, or train")
    column: str = setting("", "data=hf: column of prompt strings or message lists")
    template: str = setting(
        "", "data=hf: prompt of each text of the column, as 'Summarize: {text}'; empty: the domain's, or the text"
    )
    streaming: bool = setting(True, "data=hf: read rows as they arrive, without downloading the whole data set")
    num_train: int = setting(2000, "prompts answered for training")
    num_val: int = setting(48, "prompts for validation, which selects the checkpoint")
    num_test: int = setting(100, "held-out prompts for decoding")
    answers: str = setting(
        "target",
        "target: the target answers | served: a server of the target answers, data.endpoint= | given: keep the "
        "assistant turns of the data",
    )
    endpoint: str = setting(
        "",
        "data.answers=served: address of an OpenAI-compatible server (vLLM, SGLang, `drafterforge serve`), as "
        "http://HOST:PORT/v1; its key: DRAFTERFORGE_API_KEY=KEY in the environment",
    )
    served_model: str = setting(
        "",
        "data.answers=served: the target's name on the server; empty: its only model. Where the target's folder has no "
        "weights to compare answers with, typing it confirms that the server has the target",
    )
    retries: int = setting(8, "data.answers=served: attempts after a request's first one failed")
    timeout_s: float = setting(600.0, "data.answers=served: seconds from a request to the end of its answer")
    max_prompt_tokens: int = setting(1024, "longer prompts are skipped and counted")
    max_new_tokens: int = setting(192, "length limit of an answer, in tokens")
    temperature: float = setting(0.0, "sampling temperature of the answers; 0: greedy")
    batch_size: int = setting(
        64, "answers decoded together; data.answers=served: requests that the server has at a time"
    )
    shard_size: int = setting(256, "answers per resumable shard")
    features: str = setting("cached", "cached: store features and teacher logits | online: recompute them")
    stream: str = setting(
        "",
        "folder that prepare-data, in vLLM, fills with answers and features while train-drafter reads and empties it",
    )
    stream_gb: float = setting(20.0, "data.stream: largest size of the folder; its writer waits while it is full")
    stream_epochs: int = setting(1, "data.stream: times that each shard is trained on before it is deleted")
    stream_readers: int = setting(1, "data.stream: trainings that read it; a shard is deleted when all have read it")
    vllm: dict[str, Any] = setting({}, "data.stream: further arguments of vLLM, as {tensor_parallel_size: 4}")

    def __post_init__(self) -> None:
        require_choice("data.source", self.source, ("grammar", "jsonl", "hf", "recorded"))
        require_choice("data.answers", self.answers, ("target", "served", "given"))
        require_choice("data.features", self.features, ("cached", "online"))
        if self.source == "jsonl":
            require(bool(self.path), "data=jsonl needs a file: type path=FILE.jsonl")
        elif self.source == "recorded":
            require(bool(self.path), "data=recorded needs a recording: type path=FOLDER")
            require(self.answers == "given", "data=recorded has the recorded answers; type data.answers=given")
        else:
            require(not self.path or self.source == "grammar", f"path= is not read by data={self.source}")
            require(
                not self.path or self.path.endswith((".yaml", ".yml")),
                f"path={self.path} is read as a grammar (FILE.yaml); if it holds prompts, add data=jsonl",
            )
        if self.source != "jsonl":
            for key in ("licences", "domain_names"):
                require(
                    not getattr(self, key),
                    f"data.{key}= is read by data=jsonl only, not by data={self.source}; "
                    "type data=jsonl path=FILE.jsonl",
                )
        for key in ("dataset", "dataset_config", "dataset_split", "column"):
            unread = getattr(self, key) and self.source != "hf"
            require(not unread, f"{key}= is read by data=hf only, not by data={self.source}")
        require(
            not self.template or self.source == "hf",
            f"data.template= is read by data=hf only, not by data={self.source}",
        )
        require(
            not self.template or TEXT in self.template,
            f"data.template={self.template} says nowhere where the text goes; type data.template='Summarize: {TEXT}'",
        )
        self._check_endpoint()
        require_counts(self, "data", "stream_epochs stream_readers")
        require(self.stream_gb > 0, f"data.stream_gb must be > 0, got {self.stream_gb}")
        require(not self.vllm or bool(self.stream), "data.vllm= is read with data.stream=FOLDER only")
        if self.stream:
            require(
                self.source != "recorded" and self.answers == "target",
                "data.stream= has answers that vLLM gives; leave out data=recorded and data.answers=",
            )
            require(self.features == "cached", "data.stream= has features of its own; leave out data.features=online")
        require_counts(self, "data", "num_train num_val num_test batch_size shard_size")
        require_counts(self, "data", "max_prompt_tokens max_new_tokens")
        require_at_least("data.temperature", self.temperature, 0.0)

    def _check_endpoint(self) -> None:
        if self.answers != "served":
            for key in ("endpoint", "served_model"):
                unread = getattr(self, key)
                require(
                    not unread, f"data.{key}= is read by data.answers=served only, not by data.answers={self.answers}"
                )
            return
        require(bool(self.endpoint), "data.answers=served needs a server: type data.endpoint=http://HOST:PORT/v1")
        address = urlsplit(self.endpoint)
        require(
            address.scheme in ("http", "https") and bool(address.hostname),
            f"data.endpoint={self.endpoint} is no address; type data.endpoint=http://HOST:PORT/v1",
        )
        require(
            "@" not in address.netloc,
            "data.endpoint= must not hold a password; set DRAFTERFORGE_API_KEY=KEY in the environment",
        )
        require_at_least("data.retries", self.retries, 0)
        require(self.timeout_s > 0, f"data.timeout_s must be > 0, got {self.timeout_s}")

    @property
    def endpoint_url(self) -> str:
        """The address of the server up to and including `/v1`, which need not be typed."""
        url = self.endpoint.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"
