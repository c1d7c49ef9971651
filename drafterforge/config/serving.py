"""Config of the commands `generate` and `serve`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from drafterforge.config.checks import require, require_at_least, require_choice
from drafterforge.config.fields import section, setting
from drafterforge.config.learn import LearnConfig
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.sampling import require_sampling
from drafterforge.config.target import TargetConfig

API_KEY = "DRAFTERFORGE_API_KEY"  # unlike arguments, the environment is hidden from other users of the machine
BUNDLED = ("drafter", "pool.drafters", "pool.scheduler", "pool.router")  # keys that name parts of a bundle


@dataclass(frozen=True)
class GenerateConfig:
    """`drafterforge generate`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    drafter: str = setting(
        "auto",
        "name or folder of a drafter | pool | retrieval | folder of a small LM | auto: the generalist or an expert "
        "with the datastore, as long as drafting is faster (on a GPU the generalist alone) | empty: none",
        input="decoders",
    )
    bundle: str = setting(
        "",
        "name, folder, .tar or hub id of a bundle; drafter= then names one of its drafters, auto: its pool",
        input="bundles",
    )
    prompt: str = setting("", "message of the user to answer; empty: read from standard input")
    max_new_tokens: int = setting(256, "length limit of the answer, in tokens")
    temperature: float = setting(0.0, "sampling temperature; 0: always the most probable token")
    top_k: int = setting(0, "sample among the k most probable tokens; 0: all")
    top_p: float = setting(1.0, "sample among the fewest tokens whose probabilities sum to top_p")
    min_p: float = setting(0.0, "sample among tokens with at least min_p times the best token's probability")
    repetition_penalty: float = setting(1.0, "above 1: tokens that occur in the text become less probable")
    stop: list[str] = setting([], 'strings that end the answer and are not part of it; "\\\\n" is a line end')
    seed: int = setting(
        0, "seed of sampling; the same prompt and seed give the same text with any drafter, if runtime.verify=match"
    )
    colour: str = setting("auto", "print drafted tokens in green: auto (on a terminal) | always | never")
    runs_dir: str = setting("runs", "folder where drafters and bundles are looked up")

    def __post_init__(self) -> None:
        require_at_least("max_new_tokens", self.max_new_tokens, 1)
        require_sampling(self)
        require_choice("colour", self.colour, ("auto", "always", "never"))

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that need not be there: a bundle has drafters and policies of its own."""
        return BUNDLED if self.bundle else ()


@dataclass(frozen=True)
class ServeConfig:
    """`drafterforge serve`."""

    target: TargetConfig = section(TargetConfig)
    pool: PoolConfig = section(PoolConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    learn: LearnConfig = section(LearnConfig)
    bundle: str = setting(
        "", "name, folder, .tar or hub id of a bundle; empty: use target= and drafter=", input="bundles"
    )
    drafter: str = setting(
        "auto",
        "name or folder of a drafter | pool | retrieval | folder of a small LM | auto: the generalist or an expert "
        "with the datastore, as long as drafting is faster (on a GPU the generalist alone) | empty: none",
        input="decoders",
    )
    host: str = setting("127.0.0.1", "address to listen at; 0.0.0.0: all addresses of this machine")
    port: int = setting(8000, "port to listen at; 0: any free port")
    api_key: str = setting(
        "", "key that clients must send; better set in the environment: DRAFTERFORGE_API_KEY=KEY", repr=False
    )
    max_batch: int = setting(8, "answers decoded together")
    max_waiting: int = setting(64, "answers that may wait for the batch; further requests get status 429")
    max_choices: int = setting(8, "largest number of answers of a request, n= times the number of prompts")
    max_body_bytes: int = setting(4194304, "largest size of a request's body, in bytes")
    max_new_tokens: int = setting(1024, "largest max_tokens of a request, and its default")
    max_connections: int = setting(512, "open connections; fewer if the limit of open files (ulimit -n) is low")
    read_timeout_s: float = setting(20.0, "seconds for a request's header, and between two parts of its body")
    timeout_s: float = setting(300.0, "seconds from the arrival of a request to the end of its answer")
    grace_s: float = setting(300.0, "longest wait for accepted answers after Ctrl-C or SIGTERM, in seconds")
    runs_dir: str = setting("runs", "folder where drafters and bundles are looked up")

    def __post_init__(self) -> None:
        for key in ("max_batch", "max_choices", "max_body_bytes", "max_new_tokens", "max_connections"):
            require_at_least(key, getattr(self, key), 1)
        for key in ("max_waiting", "grace_s"):
            require_at_least(key, getattr(self, key), 0)
        require(0 <= self.port < 2**16, f"port must lie in [0, 65535], got {self.port}")
        for key in ("timeout_s", "read_timeout_s"):
            require(getattr(self, key) > 0, f"{key} must be > 0, got {getattr(self, key)}")
        off = LearnConfig()
        unread = [key.name for key in fields(off) if getattr(self.learn, key.name) != getattr(off, key.name)]
        require(
            self.learn.record or not unread,
            f"learn.{''.join(unread[:1])}= is read with learn=on only; type learn=on too",
        )
        capacity = self.max_batch + self.max_waiting
        require(
            self.max_choices <= capacity,
            f"max_choices must be <= max_batch + max_waiting = {self.max_batch} + {self.max_waiting}, got "
            f"{self.max_choices}; type max_choices={capacity}",
        )

    @property
    def unread_inputs(self) -> tuple[str, ...]:
        """Inputs that need not be there: a bundle has drafters and policies of its own."""
        return BUNDLED if self.bundle else ()
