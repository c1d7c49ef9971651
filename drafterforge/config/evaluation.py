"""Config of measurements: held-out decoding after training, and the suites of `eval`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting

VLLM = "vllm"  # the suite whose methods are servers
SUITES = ("quick", "domains", "papers", "mixed", "ood", "scaling", "auto", VLLM)
ALL = "all"  # domain of rows over several domains
MIN_VERDICT = 4  # held-out prompts of a verdict on a drafter; an interval over fewer says nothing
OURS = tuple(name for name in SUITES if name != VLLM)  # decoded in this process
READERS = {  # suites that read a key; keys that are not listed are read by all
    **dict.fromkeys(("questions", "benchmarks"), ("papers", "auto", VLLM)),
    "conversations": ("mixed", "ood", "auto"),
    **dict.fromkeys(("replay", "check_live", "selectors", "schedulers", "tuning_prompts", "pool_orders"), OURS),
    "openvino": OURS,
    "temperature": tuple(name for name in OURS if name not in ("scaling", "auto")),
    **dict.fromkeys(("temperatures", "batch_sizes"), ("scaling", "auto", VLLM)),
    "context_lengths": ("scaling", "auto"),
    "pool_sizes": ("scaling",),
    **dict.fromkeys(("cell_methods", "cell_prompts", "warm_up_prompts"), ("auto",)),
    **dict.fromkeys(("vllm_command", "server_args", "server_env", "num_speculative_tokens"), (VLLM,)),
    **dict.fromkeys(("ports", "start_s", "together", "rounds"), (VLLM,)),
}
NEEDS = {  # key -> the setting with which it is read, as it is typed
    **dict.fromkeys(("check_live", "selectors", "schedulers", "tuning_prompts", "pool_orders"), "replay=true"),
    "benchmarks": "questions=FOLDER",
    "openvino": "methods=[openvino]",
    "rounds": "together=false",
}
SIMILAR = {"temperature": "temperatures", "temperatures": "temperature"}
AUTOREGRESSIVE, GENERALIST, EXPERT = "autoregressive", "generalist", "expert"
DATASTORE = "datastore"  # the datastore of the pool, or retrieval in the text if it has none
GENERATE, LOOKUP, OPENVINO = "hf_generate", "hf_prompt_lookup", "openvino"  # methods of other programs
METHODS = ("generalist", "expert", "retrieval", "pool", "generalist+datastore", "hf_generate", "hf_prompt_lookup")


@dataclass(frozen=True)
class EvalConfig:
    """Decoding of held-out prompts after training."""

    num_prompts: int = setting(20, "held-out prompts decoded")
    max_new_tokens: int = setting(128, "length limit of an answer, in tokens")
    chain: bool = setting(True, "also decode with chains as deep as the tree")
    check_float32: bool = setting(True, "also check losslessness in float32")

    def __post_init__(self) -> None:
        require_at_least("eval.num_prompts", self.num_prompts, 1)
        require_at_least("eval.max_new_tokens", self.max_new_tokens, 1)


@dataclass(frozen=True)
class SuiteConfig:
    """The prompts and methods of `eval`."""

    name: str = setting(
        "mixed",
        "quick | domains | papers | mixed: a stream of all domains | ood: rephrased prompts | scaling | auto | vllm",
    )
    domains: list[str] = setting([*POOL_DOMAINS], "domains of the prompts; each needs a prompt grammar")
    questions: str = setting("", "papers, auto, vllm: folder, file or hub id of the question files")
    benchmarks: list[str] = setting([], "papers, auto, vllm: names of question files; empty: all")
    num_prompts: int = setting(64, "number of requests; with question files: of each file, turns not counted")
    conversations: float = setting(
        0.25, "mixed, ood, auto: share of requests that continue an answer of another domain"
    )
    tuning_prompts: int = setting(32, "further requests, to tune the constants of bandits; 0: use the defaults")
    replay: bool = setting(True, "record every position of the answers, and replay all selectors exactly")
    selectors: list[str] = setting([], "selectors to replay; empty: all")
    schedulers: list[str] = setting([], "policies to replay with each selector, besides the static tree")
    pool_orders: int = setting(4, "random orders of drafters, and of requests, over which replays are averaged")
    timed_prompts: int = setting(8, "requests decoded one by one to measure tokens/s, methods in turn; 0: none")
    methods: list[str] = setting(
        [*METHODS],
        "timed methods: these, auto, datastore, openvino, a drafter or selector, NAME/POLICY, DRAFTER+retrieval",
    )
    openvino: str = setting("", "folder of the target in OpenVINO's format, for the method openvino", input="path")
    check_live: bool = setting(
        True, "also decode in batches with every drafter and with the selector, and compare with the replay"
    )
    max_new_tokens: int = setting(128, "length limit of an answer, in tokens")
    temperature: float = setting(
        0.0, "sampling temperature of the answers, replayed and timed; scaling, auto, vllm: see temperatures"
    )
    batch_size: int = setting(8, "requests decoded together if they are not timed")
    cell_methods: list[str] = setting(
        ["auto", "generalist", "generalist+datastore"], "auto: methods timed in every cell, besides plain decoding"
    )
    cell_prompts: int = setting(24, "auto: requests timed in every cell, in groups of the batch size")
    warm_up_prompts: int = setting(8, "auto: other requests that every method answers before a cell is timed")
    temperatures: list[float] = setting([0.0, 0.5, 1.0], "scaling, auto, vllm: temperatures to time")
    batch_sizes: list[int] = setting(
        [1, 2, 4, 8], "scaling, auto: batch sizes to time; vllm: numbers of requests sent at a time"
    )
    context_lengths: list[int] = setting([256, 512, 1024], "scaling, auto: context lengths to time, in tokens")
    pool_sizes: list[int] = setting([1, 2, 4, 8, 16], "scaling: numbers of drafters to time, up to those of the pool")
    vllm_command: str = setting("vllm", "vllm: the program that starts a server, by name or by path")
    server_args: list[str] = setting([], "vllm: further arguments of every server, such as [--enforce-eager]")
    server_env: dict[str, str] = setting({}, "vllm: environment variables of every server, beside this shell's")
    num_speculative_tokens: int = setting(3, "vllm: tokens drafted in a cycle")
    ports: int = setting(18300, "vllm: first of the ports of the servers, one each")
    start_s: float = setting(900.0, "vllm: seconds after which a server that does not answer has failed")
    together: bool = setting(True, "vllm: true: all servers run at the same time | false: one after the other")
    rounds: int = setting(2, "vllm, together=false: how often each server is started, for a share of the prompts")

    def __post_init__(self) -> None:
        require_choice("suite.name", self.name, SUITES)
        require_counts(self, "suite", "num_prompts max_new_tokens batch_size pool_orders cell_prompts rounds")
        require_at_least("suite.num_speculative_tokens", self.num_speculative_tokens, 1)
        require(1 <= self.ports <= 65535, f"suite.ports must lie in [1, 65535], got {self.ports}")
        require(self.start_s > 0, f"suite.start_s must be > 0, got {self.start_s}")
        require_at_least("suite.tuning_prompts", self.tuning_prompts, 0)
        require_at_least("suite.timed_prompts", self.timed_prompts, 0)
        require_at_least("suite.temperature", self.temperature, 0.0)
        require_at_least("suite.warm_up_prompts", self.warm_up_prompts, 0)
        require_share("suite.conversations", self.conversations)
        require(bool(self.domains), "suite.domains must name a domain, such as [sql]")
        require(
            self.name != "auto" or ("auto" in self.methods and "auto" in self.cell_methods),
            "suite=auto compares the method auto with others; add it to suite.methods and suite.cell_methods",
        )
        for key, least in (("temperatures", 0), ("batch_sizes", 1), ("context_lengths", 1), ("pool_sizes", 1)):
            for value in getattr(self, key):
                require_at_least(f"suite.{key}", value, least)
        require(
            self.replay or self.timed_prompts > 0,
            "suite.replay=false with suite.timed_prompts=0 measures nothing; leave one of them out",
        )

    def reads(self, key: str) -> bool:
        """Whether the suite reads a key."""
        return self.name in READERS.get(key, SUITES) and self._is_met(NEEDS.get(key, ""))

    def _is_met(self, need: str) -> bool:
        """Whether a setting of `NEEDS` is made."""
        settings = {"replay": self.replay, "questions": bool(self.questions), "together": not self.together}
        return (settings | {"methods": OPENVINO in self.methods}).get(need.partition("=")[0], True)

    def require_read(self, typed: Iterable[str]) -> None:
        """ConfigError for a typed key that the suite does not read.  typed: keys without `suite.`.

        What another key switches off may also be switched off itself.
        """
        for key in typed:
            suites, need = READERS.get(key, SUITES), NEEDS.get(key, "")
            readers, similar = "|".join(suites), f", or type suite.{SIMILAR[key]}=" if key in SIMILAR else ""
            require(
                self.name in suites,
                f"suite.{key}= is read by suite={readers} only, not by suite={self.name}; leave it out{similar}",
            )
            require(
                not getattr(self, key) or self._is_met(need),
                f"suite.{key}= is read with suite.{need} only; type suite.{need}, or leave it out",
            )

    @property
    def all_methods(self) -> list[str]:
        """Timed methods, those of the cells of suite=auto included."""
        return list(dict.fromkeys([*self.methods, *(self.cell_methods if self.name == "auto" else [])]))

    @property
    def sampling_methods(self) -> list[str]:
        """Timed methods without those of other programs, which sample other tokens than plain decoding."""
        return [name for name in self.methods if name not in (GENERATE, LOOKUP, OPENVINO)]
