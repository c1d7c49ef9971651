"""Config of learning from served traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.checks import (
    require,
    require_at_least,
    require_choice,
    require_counts,
    require_seeds,
    require_share,
)
from drafterforge.config.fields import section, setting
from drafterforge.config.hints import shell_value
from drafterforge.config.target import TargetConfig

ACTIONS = ("status", "run", "rollback", "freeze", "thaw", "export", "delete", "replay")  # of `drafterforge learn`
REPLAY_KEYS = ("path", "limit", "max_new_tokens", "old_prompts", "retrieval", "seeds")
UNREAD_BY_REPLAY = ("sample", "client_tokens", "train", "cpu_share", "device")  # keys of `LearnConfig`
READ_BY = {key: ("replay",) for key in REPLAY_KEYS} | {"name": ("rollback", "replay", "export")}  # key -> actions


@dataclass(frozen=True)
class LearnConfig:
    """What `serve` records of its traffic, and how much of it."""

    record: bool = setting(False, "record finished answers and learn from them; set by learn=on")
    folder: str = setting("", "folder of what is recorded; empty: `traffic` in the target's folder of runs_dir")
    ring_gb: float = setting(2.0, "largest size of the recorded answers on disk; the oldest are deleted")
    max_age_h: float = setting(168.0, "hours after which recorded answers are deleted")
    sample: float = setting(1.0, "share of requests that are recorded")
    client_tokens: int = setting(65536, "tokens that are recorded of one client address in an hour at most")
    memory_tokens: int = setting(131072, "tokens of answers that retrieval looks up, the answers used last; 0: none")
    train: bool = setting(True, "train LoRA experts of what is recorded, in a process of their own")
    min_answers: int = setting(96, "answers to new prompts of a kind of traffic, for each training on it")
    held_out: int = setting(24, "newest prompts of a kind that judge a new expert; half as many validate its training")
    steps: int = setting(300, "optimiser steps of a training at most; fewer for few answers")
    max_experts: int = setting(4, "experts learned from traffic that draft at a time; the one that gains least leaves")
    cpu_share: float = setting(0.25, "share of the time of the cores, or of learn.device=cuda, that training uses")
    device: str = setting("cpu", "device that training uses, as in target.device=")

    def __post_init__(self) -> None:
        for key in ("ring_gb", "max_age_h"):
            require(getattr(self, key) > 0, f"learn.{key} must be > 0, got {getattr(self, key)}")
        require_share("learn.sample", self.sample)
        require_at_least("learn.memory_tokens", self.memory_tokens, 0)
        require_counts(self, "learn", "client_tokens steps max_experts")
        require_at_least("learn.held_out", self.held_out, 4)
        require_at_least("learn.min_answers", self.min_answers, 2 * self.held_out + self.held_out // 2)
        require(0 < self.cpu_share <= 1, f"learn.cpu_share must lie in (0, 1], got {self.cpu_share}")

    @property
    def folder_flag(self) -> str:
        """The key, after a space, that makes a command read the same folder."""
        return f" learn.folder={shell_value(self.folder)}" if self.folder else ""

    def traffic_dir(self, runs_dir: str, target: str) -> Path:
        """The folder of what is recorded of a target's answers."""
        return Path(self.folder).expanduser() if self.folder else Path(runs_dir) / target / "traffic"


@dataclass(frozen=True)
class LearnCommandConfig:
    """`drafterforge learn ACTION`."""

    action: str = setting(
        "status",
        "status: what was recorded and learned | run: learn, as the process that `serve learn=on` starts | rollback: "
        "take an expert back | freeze: learn nothing until thaw | thaw | export: a bundle of the experts | "
        "delete: all that was recorded and learned | replay: requests of a log, with and without learning from them",
    )
    path: str = setting("", 'replay: a file of {"messages": [...]} lines, in the order of their arrival', input="path")
    limit: int = setting(0, "replay: largest number of requests; 0: all")
    max_new_tokens: int = setting(128, "replay: length limit of an answer, in tokens")
    old_prompts: int = setting(0, "replay: held-out prompts of the package's domains that are decoded afterwards")
    retrieval: bool = setting(True, "replay: false: EAGLE-3 drafters alone, without retrieval and memory")
    name: str = setting(
        "",
        "rollback: the expert, empty: the newest | replay, export: name of the report or the bundle, empty: traffic",
    )
    target: TargetConfig = section(TargetConfig)
    learn: LearnConfig = section(LearnConfig)
    runs_dir: str = setting("runs", "folder that the server was started with")
    seed: int = setting(0, "random seed of training")
    seeds: list[int] = setting([], "replay: further seeds; the log is replayed again with each")

    def __post_init__(self) -> None:
        require_seeds(self.seed, self.seeds)
        require_choice("learn", self.action, ACTIONS)
        for key, actions in READ_BY.items():
            is_read = self.action in actions or getattr(self, key) == getattr(LearnCommandConfig, key, [])
            readers = "|".join(actions)
            require(is_read, f"{key}= is read by learn {readers} only, not by learn {self.action}; leave it out")
        is_logged = bool(self.path) or self.action != "replay"
        require(is_logged, "learn replay needs a log: type `drafterforge learn replay LOG.jsonl`")
        for key in UNREAD_BY_REPLAY if self.action == "replay" else ():
            is_read = getattr(self.learn, key) == getattr(LearnConfig, key)
            require(is_read, f"learn.{key}= is not read by learn replay; leave it out")
        for key in ("limit", "old_prompts"):
            require_at_least(key, getattr(self, key), 0)
        require_at_least("max_new_tokens", self.max_new_tokens, 2)

    @property
    def output_name(self) -> str:
        """Name of the report or the bundle."""
        return self.name or "traffic"

    @property
    def traffic_dir(self) -> Path:
        """The folder of what was recorded."""
        return self.learn.traffic_dir(self.runs_dir, self.target.folder_name)
