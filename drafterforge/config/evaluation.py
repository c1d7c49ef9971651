"""What is decoded to measure drafters."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice, require_counts, require_share
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.fields import setting

SUITES = ("quick", "domains", "papers", "mixed", "ood", "scaling")


METHODS = ("generalist", "expert", "retrieval", "default", "generalist+datastore", "hf_generate", "hf_prompt_lookup")


@dataclass(frozen=True)
class EvalConfig:
    """Decoding of held-out prompts after training."""

    num_prompts: int = setting(20, "held-out prompts decoded")
    max_new_tokens: int = setting(128, "tokens decoded for each")
    chain: bool = setting(True, "also decode with a plain chain as deep as the tree")
    check_float32: bool = setting(True, "also compare with autoregressive decoding in float32")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("eval.num_prompts", self.num_prompts, 1)
        require_at_least("eval.max_new_tokens", self.max_new_tokens, 1)


@dataclass(frozen=True)
class SuiteConfig:
    """What `eval` decodes."""

    name: str = setting(
        "mixed", "quick | domains | papers | mixed: a stream of all domains | ood: in other words | scaling"
    )
    domains: list[str] = setting([*POOL_DOMAINS], "with a prompt grammar")
    questions: str = setting("", "papers: folder, file or hub id of question files")
    benchmarks: list[str] = setting([], "papers: names of its files; empty: all")
    num_prompts: int = setting(64, "requests; of papers for each benchmark, its turns apart")
    conversations: float = setting(0.25, "mixed: share of requests that go on from an answer of another domain")
    tuning_prompts: int = setting(32, "further requests, on which constants of bandits are tuned; 0: the defaults")
    replay: bool = setting(True, "look at every position of the answers, and replay all selectors exactly")
    selectors: list[str] = setting([], "selectors to replay; empty: all")
    schedulers: list[str] = setting([], "policies to replay each selector with, beside one tree")
    pool_orders: int = setting(
        4, "in which drafters join, averaged over, where selectors are replayed in smaller pools"
    )
    timed_prompts: int = setting(8, "requests decoded one by one for tokens/s, methods taking turns; 0: none")
    methods: list[str] = setting([*METHODS], "those, drafters, selectors, X/Y, X+retrieval; datastore: the pool's")
    openvino: str = setting("", "folder of the target in OpenVINO's files, for the method openvino", input="path")
    check_live: bool = setting(
        True, "decode with every drafter and the selector in batches too, and compare with the replay"
    )
    max_new_tokens: int = setting(128, "length limit of an answer")
    batch_size: int = setting(8, "requests decoded together where nothing is timed")
    temperatures: list[float] = setting([0.0, 0.5, 1.0], "scaling: those timed")
    batch_sizes: list[int] = setting([1, 2, 4, 8], "scaling: those timed")
    context_lengths: list[int] = setting([256, 512, 1024], "scaling: tokens before an answer")
    pool_sizes: list[int] = setting([1, 2, 4, 8, 16], "scaling: drafters, as far as there are")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_choice("suite.name", self.name, SUITES)
        require_counts(self, "suite", "num_prompts max_new_tokens batch_size pool_orders")
        require_at_least("suite.tuning_prompts", self.tuning_prompts, 0)
        require_at_least("suite.timed_prompts", self.timed_prompts, 0)
        require_share("suite.conversations", self.conversations)
        require(bool(self.domains), "suite.domains must name a domain, such as [sql]")
        for key, least in (("temperatures", 0), ("batch_sizes", 1), ("context_lengths", 1), ("pool_sizes", 1)):
            for value in getattr(self, key):
                require_at_least(f"suite.{key}", value, least)
        require(
            self.replay or self.timed_prompts > 0,
            "suite.replay=false and suite.timed_prompts=0 leave nothing to measure; leave one of them out",
        )
