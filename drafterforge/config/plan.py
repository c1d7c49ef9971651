"""Config of `drafterforge plan`: the command that it estimates, and the device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from drafterforge.config.checks import require
from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.fields import section, setting
from drafterforge.config.target import TargetConfig

PLANNED = ("prepare-data", "train-drafter")  # commands that `plan` estimates
THIS = "this"  # the device that the plan is made on


@dataclass(frozen=True)
class DeviceConfig:
    """The device whose time and memory are planned."""

    name: str = setting(THIS, "this: measured here | a GPU by its data sheet; set by device=")
    bandwidth_gb_s: float | None = setting(None, "memory bandwidth in GB/s; null: measured here")
    tflops: float | None = setting(None, "teraflops in the target's dtype; null: measured here")
    memory_gb: float | None = setting(None, "memory of the device in GB; null: what is free here")
    disk_gb: float | None = setting(None, "free disk in GB; null: what is free at runs_dir here")

    def __post_init__(self) -> None:
        for key in ("bandwidth_gb_s", "tflops", "memory_gb", "disk_gb"):
            value = getattr(self, key)
            require(value is None or value > 0, f"device.{key} must be > 0, got {value}")
        require(
            self.name == THIS or self.bandwidth_gb_s is not None,
            f"device.name={self.name} is only a name; type device={self.name}, or its device.bandwidth_gb_s and "
            "device.tflops",
        )
        require(
            (self.bandwidth_gb_s is None) == (self.tflops is None),
            "device.bandwidth_gb_s and device.tflops describe another device; type both, or neither",
        )
        require(
            self.bandwidth_gb_s is None or self.memory_gb is not None,
            "device.bandwidth_gb_s and device.tflops describe another device, whose memory plan cannot measure; type "
            "device.memory_gb too",
        )


@dataclass(frozen=True)
class PlanConfig:
    """`drafterforge plan`."""

    device: DeviceConfig = section(DeviceConfig)


@dataclass(frozen=True)
class PlannedCommand:
    """A command as a user would type it, with its config, and the device to plan it for."""

    name: str
    overrides: Sequence[str]
    config: PrepareDataConfig
    device: DeviceConfig

    def __post_init__(self) -> None:
        require(
            not self.config.data.stream,
            f"plan does not cover data.stream={self.config.data.stream}, whose disk is bounded by data.stream_gb; "
            "leave it out to plan answers and features made here",
        )

    @property
    def target(self) -> TargetConfig:
        return self.config.target

    @property
    def runs_dir(self) -> str:
        return self.config.runs_dir

    @property
    def is_here(self) -> bool:
        """Whether it is planned for this device."""
        return self.device.name == THIS and self.device.bandwidth_gb_s is None

    def with_settings(self, *settings: str) -> str:
        """The command with further settings, as typed in a shell."""
        keys = {setting.partition("=")[0] for setting in settings}
        typed = [override for override in self.overrides if override.partition("=")[0] not in keys]
        return shlex.join(["drafterforge", self.name, *typed, *settings])
