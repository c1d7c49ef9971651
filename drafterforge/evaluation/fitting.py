"""What of a planned command does not fit, and settings with which all of it is estimated to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.drafter import Eagle3DrafterConfig
from drafterforge.evaluation.planning import (
    GATHERED,
    HALF,
    TRAINED,
    Devices,
    Room,
    Stage,
    peak_disk,
    size,
    weights_on_device,
)
from drafterforge.targets.shape import ModelShape

Estimate = Callable[[PrepareDataConfig, int], list[Stage]]  # of a config and the bytes of a target weight
Settings = Mapping[str, Any]

DISK, WEIGHTS = "disk", "the target's weights"


@dataclass(frozen=True)
class Misfit:
    """What needs more than is free."""

    what: str  # disk, a stage, or the target's weights
    needed: float

    def __str__(self) -> str:
        resource = DISK if self.what == DISK else f"memory of {self.what}"
        return f"{resource}: {size(self.needed)} needed"

    @property
    def remedy(self) -> str:
        """What is needed where no setting helps."""
        return "more disk" if self.what == DISK else "a device with more memory"


def misfits(stages: Sequence[Stage], room: Room, weights: float) -> list[Misfit]:
    """What does not fit; of memory the target's weights alone if they do not.  weights: bytes on the device."""
    disk = peak_disk(stages)
    too_large = [Misfit(DISK, disk)] if disk > room.disk else []
    if weights > room.memory:
        return [*too_large, Misfit(WEIGHTS, weights)]
    return too_large + [Misfit(stage.name, stage.memory) for stage in stages if stage.memory > room.memory]


@dataclass(frozen=True)
class Fitter:
    """Searches settings with which a command fits.

    number_bytes: of a target weight.  answered: whether answers exist, so that their settings are fixed.
    """

    estimate: Estimate
    shape: ModelShape
    number_bytes: int
    devices: Devices
    room: Room
    answered: bool = False

    def misfits(self, cfg: PrepareDataConfig, settings: Settings) -> list[Misfit]:
        """What does not fit with these settings."""
        number_bytes = HALF if "target.dtype" in settings else self.number_bytes
        cfg = with_settings(cfg, settings)
        weights = weights_on_device(cfg.target, self.shape.num_weights * number_bytes, self.room.memory)
        return misfits(self.estimate(cfg, number_bytes), self.room, weights)

    def search(self, cfg: PrepareDataConfig) -> tuple[dict[str, Any], list[Misfit]]:
        """Settings to add, and what then still does not fit."""
        settings: dict[str, Any] = {}
        left = self.misfits(cfg, settings)
        for start in self._starts(cfg):
            settings = dict(start)
            for names, options in OPTIONS.items():
                settings |= self._first(cfg, settings, names, options(self, cfg))
            if not (left := self.misfits(cfg, settings)):
                break
        return settings, left

    def _first(
        self, cfg: PrepareDataConfig, settings: Settings, names: Sequence[str], options: Iterator[Settings]
    ) -> Settings:
        """The first options with which these stages fit; the last ones if there are none."""
        option: Settings = {}
        while any(misfit.what in names for misfit in self.misfits(cfg, {**settings, **option})):
            following = next(options, None)
            if following is None:
                break
            option = following
        return option

    def _starts(self, cfg: PrepareDataConfig) -> Iterator[Settings]:
        """Settings of the target's weights."""
        half = [{"target.dtype": "bfloat16"}] if self.number_bytes > HALF and not self.answered else []
        yield from ({}, *half)
        one_gpu = self.devices.total == 1 and not self.devices.host
        if one_gpu and not cfg.target.device_map and cfg.target.forward != "lean":
            yield {**(half[0] if half else {}), "target.device_map": "auto"}

    def disk(self, cfg: PrepareDataConfig) -> Iterator[Settings]:
        """Features at every step instead of on disk; then fewer prompts."""
        online = {"data.features": "online"} if cfg.data.features == "cached" else {}
        if online:
            yield online
        number = 1 if self.answered else cfg.data.num_train
        while number > 1:
            number = number * 3 // 4
            yield {**online, "data.num_train": number}

    def answering(self, cfg: PrepareDataConfig) -> Iterator[Settings]:
        """Fewer answers at once."""
        rows = cfg.data.batch_size
        while rows > 1:
            rows //= 2
            yield {"data.batch_size": rows}

    def training(self, cfg: PrepareDataConfig) -> Iterator[Settings]:
        """Steps that hold less, in more parts of the same sum; then optimiser and weights that take less."""
        if not isinstance(cfg, TrainDrafterConfig):
            return
        trainer, drafter = cfg.trainer, cfg.drafter
        bases: list[Settings] = [{} if trainer.checkpoint_steps else {"trainer.checkpoint_steps": True}]
        if self.devices.total > TRAINED // (TRAINED - GATHERED) and trainer.strategy != "fsdp":  # saves from three on
            bases.append({**bases[-1], "trainer.strategy": "fsdp"})
        new_weights = isinstance(drafter, Eagle3DrafterConfig) and not (drafter.is_adapter or drafter.undecided)
        if new_weights and drafter.head == "own":
            bases.append({**bases[-1], "drafter.head": "target"})
        for base in bases:
            tokens, parts = trainer.tokens_per_batch, 1
            yield base
            while tokens > 1:
                tokens, parts = tokens // 2, parts * 2
                yield {
                    **base,
                    "trainer.tokens_per_batch": tokens,
                    "trainer.accumulate": trainer.accumulate * parts,
                }

    def decoding(self, cfg: PrepareDataConfig) -> Iterator[Settings]:
        """No check in single precision, which holds the target a second time."""
        if isinstance(cfg, TrainDrafterConfig) and cfg.eval.check_float32:
            yield {"eval.check_float32": False}


OPTIONS = {
    (DISK,): Fitter.disk,
    ("answers", "features"): Fitter.answering,
    ("training",): Fitter.training,
    ("decoding",): Fitter.decoding,
}


def with_settings(cfg: PrepareDataConfig, settings: Settings) -> PrepareDataConfig:
    """The config with settings by their typed keys."""
    for key, value in settings.items():
        section, _, name = key.partition(".")
        cfg = replace(cfg, **{section: replace(getattr(cfg, section), **{name: value})})
    return cfg


def scaled(measured: Sequence[Stage], rough: Estimate, cfg: PrepareDataConfig, number_bytes: int) -> Estimate:
    """The measured stages of `cfg`, changed for another config as a rough estimate changes."""
    before = {stage.name: stage for stage in rough(cfg, number_bytes)}

    def estimate(changed: PrepareDataConfig, changed_bytes: int) -> list[Stage]:
        after = {stage.name: stage for stage in rough(changed, changed_bytes)}
        return [
            _scaled(stage, before[stage.name], after[stage.name]) if stage.name in before else stage
            for stage in measured
            if stage.name in after or stage.name not in before
        ]

    return estimate


def _scaled(stage: Stage, before: Stage, after: Stage) -> Stage:
    """Disk in proportion; memory less by the smaller of the saved bytes and the saved share."""
    memory = stage.memory + after.memory - before.memory
    if before.memory > after.memory:
        memory = max(memory, stage.memory * after.memory / before.memory)
    disk = before.disk + before.lasting
    share = (after.disk + after.lasting) / disk if disk else 1.0
    return replace(stage, memory=memory, disk=stage.disk * share, lasting=stage.lasting * share)
