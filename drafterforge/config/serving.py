"""Commands that answer: `generate` and `serve`."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config.checks import require, require_at_least, require_choice
from drafterforge.config.fields import section, setting
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.sampling import require_sampling
from drafterforge.config.target import TargetConfig


@dataclass(frozen=True)
class GenerateConfig:
    """`drafterforge generate`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    drafter: str = setting(
        "auto", "a drafter's name or folder | pool | retrieval | a small LM's folder | auto: the best; empty: none"
    )
    bundle: str = setting(
        "", "a bundle's name, folder, .tar or hub id; drafter= then is one of its own, auto: its pool"
    )
    prompt: str = setting("", "taken verbatim; empty: read from standard input")
    max_new_tokens: int = setting(256, "length limit of the answer")
    temperature: float = setting(0.0, "0: the most probable token each time")
    top_k: int = setting(0, "sample among the k most probable tokens; 0: all")
    top_p: float = setting(1.0, "sample among the fewest tokens that hold this probability")
    min_p: float = setting(0.0, "sample among tokens at least this times as probable as the best")
    repetition_penalty: float = setting(1.0, "above 1: tokens of the text so far become less probable")
    stop: list[str] = setting([], 'strings that end the answer, left out of it; "\\\\n" too')
    seed: int = setting(0, "of sampling: the same prompt and seed give the same text, with any drafter")
    colour: str = setting("auto", "drafted tokens in green: auto (on a terminal) | always | never")
    runs_dir: str = setting("runs", "where the drafter is looked up")

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least("max_new_tokens", self.max_new_tokens, 1)
        require_sampling(self)
        require_choice("colour", self.colour, ("auto", "always", "never"))


@dataclass(frozen=True)
class ServeConfig:
    """`drafterforge serve`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    bundle: str = setting("", "name or folder of a bundle; empty: target= and drafter=")
    drafter: str = setting(
        "auto", "a drafter's name or folder | pool | retrieval | a small LM's folder | auto: the best; empty: none"
    )
    host: str = setting("127.0.0.1", "address that is listened at; 0.0.0.0: every address of this machine")
    port: int = setting(8000, "0: a free one")
    api_key: str = setting("", "that clients have to send; better: DRAFTERFORGE_API_KEY=KEY", repr=False)
    max_batch: int = setting(8, "answers decoded together")
    max_waiting: int = setting(64, "answers that may wait for a place; more are refused")
    max_choices: int = setting(8, "answers that one request may ask for, by n= or by several prompts")
    max_body_bytes: int = setting(4194304, "of a request")
    max_new_tokens: int = setting(1024, "most tokens of an answer, and how many where a request does not say")
    max_connections: int = setting(512, "open at once; fewer where the limit of open files (ulimit -n) is low")
    read_timeout_s: float = setting(20.0, "for a request's header, and from one part of its body to the next")
    timeout_s: float = setting(300.0, "from a request's arrival to the end of its answer")
    grace_s: float = setting(10.0, "that answers under way may go on after Ctrl-C or SIGTERM")
    runs_dir: str = setting("runs", "where the drafter is looked up")

    def __post_init__(self) -> None:
        """Check ranges."""
        for key in ("max_batch", "max_choices", "max_body_bytes", "max_new_tokens", "max_connections"):
            require_at_least(key, getattr(self, key), 1)
        for key in ("max_waiting", "grace_s"):
            require_at_least(key, getattr(self, key), 0)
        require(0 <= self.port < 2**16, f"port must lie in [0, 65535], got {self.port}")
        for key in ("timeout_s", "read_timeout_s"):
            require(getattr(self, key) > 0, f"{key} must be > 0, got {getattr(self, key)}")
        most = self.max_batch + self.max_waiting
        require(
            self.max_choices <= most,
            f"max_choices={self.max_choices} could never be taken by max_batch={self.max_batch} and "
            f"max_waiting={self.max_waiting}; type max_choices={most}",
        )
