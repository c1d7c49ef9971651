"""Config of learning from served traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drafterforge.config.checks import require, require_at_least, require_choice, require_share
from drafterforge.config.fields import section, setting
from drafterforge.config.target import TargetConfig

ACTIONS = ("status", "delete")  # of `drafterforge learn`


@dataclass(frozen=True)
class LearnConfig:
    """What `serve` records of its traffic, and how much of it."""

    record: bool = setting(False, "record finished answers and learn from them; set by learn=on")
    folder: str = setting("", "folder of what is recorded; empty: `traffic` in the target's folder of runs_dir")
    ring_gb: float = setting(2.0, "largest size of the recorded answers on disk; the oldest are deleted")
    max_age_h: float = setting(168.0, "hours after which recorded answers are deleted")
    sample: float = setting(1.0, "share of requests that are recorded")
    client_tokens: int = setting(200000, "tokens that are recorded of one client address in an hour at most")
    memory_tokens: int = setting(131072, "newest tokens of answers that retrieval looks up; 0: none")

    def __post_init__(self) -> None:
        for key in ("ring_gb", "max_age_h"):
            require(getattr(self, key) > 0, f"learn.{key} must be > 0, got {getattr(self, key)}")
        require_share("learn.sample", self.sample)
        require_at_least("learn.client_tokens", self.client_tokens, 1)
        require_at_least("learn.memory_tokens", self.memory_tokens, 0)

    def traffic_dir(self, runs_dir: str, target: str) -> Path:
        """The folder of what is recorded of a target's answers."""
        return Path(self.folder).expanduser() if self.folder else Path(runs_dir) / target / "traffic"


@dataclass(frozen=True)
class LearnCommandConfig:
    """`drafterforge learn ACTION`."""

    action: str = setting("status", "status: what was recorded | delete: delete all that was recorded")
    target: TargetConfig = section(TargetConfig)
    learn: LearnConfig = section(LearnConfig)
    runs_dir: str = setting("runs", "folder that the server was started with")

    def __post_init__(self) -> None:
        require_choice("learn", self.action, ACTIONS)

    @property
    def traffic_dir(self) -> Path:
        """The folder of what was recorded."""
        return self.learn.traffic_dir(self.runs_dir, self.target.folder_name)
