"""Estimate what a command takes before it is run: time, disk and memory of each stage, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.table import Table

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.drafter import Eagle3DrafterConfig
from drafterforge.config.hints import plain_value
from drafterforge.config.plan import THIS, PlanConfig, PlannedCommand
from drafterforge.config.progress import table_console
from drafterforge.drafters.registry import trained_kind
from drafterforge.errors import CheckFailedError, ConfigError
from drafterforge.evaluation.fitting import DISK, Estimate, Fitter, scaled
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.planned_devices import find_devices, free_room
from drafterforge.evaluation.planning import (
    UNTIMED,
    DeviceRates,
    Devices,
    Stage,
    duration,
    estimate_stages,
    measure_device,
    peak_disk,
    share_out,
    size,
)
from drafterforge.evaluation.stage_trials import run_trials
from drafterforge.evaluation.trial_workload import assumed_workload, prompts_in_file, resized
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.linear import multiplies_bfloat16_faster
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.load import load_target
from drafterforge.targets.shape import ModelShape, find_config, is_local
from drafterforge.training.initialisation import choose_init_by_manifests
from drafterforge.training.inputs import without_unread_features

Config = PlanConfig  # of the device; `PlannedCommand` also has the config of the command that is planned
ESTIMATED = (
    "Estimates from the rates of a device: on CPUs, times were right within a factor of about three; they were never "
    "checked on a GPU. Trials on the device are closer."
)
LEGEND = (
    "tokens: that the stage decodes, stores or reads; memory: at the peak, with the target's weights; disk: what the "
    "stage needs at its peak"
)


@dataclass(frozen=True)
class Plan:
    """Estimates of a command's stages with any settings, and the source of the figures."""

    estimate: Estimate
    source: str
    answered: bool = False  # whether the answers exist


def run(planned: PlannedCommand) -> None:
    shape = ModelShape.read(find_config(planned.target))
    device = choose_device(planned.target.device) if planned.is_here else torch.device("cpu")
    if planned.is_here or planned.target.dtype != "auto":
        dtype = choose_dtype(planned.target.dtype, device)
    else:
        dtype = torch.bfloat16
    room = free_room(planned, device)
    devices = find_devices(planned, device, room)
    plan = make_plan(planned, shape, device, dtype, devices)
    weights = size(shape.num_weights * dtype.itemsize)
    print_stages(
        plan.estimate(planned.config, dtype.itemsize),
        f"drafterforge {planned.name} with {planned.target.folder_name}, {weights} of weights, on {plan.source}",
    )
    if devices.total > 1:
        owner = "all processes of a machine" if devices.host else "each device"
        print(f"times are those of one device, {devices.total} take less; memory is that of {owner}")
    fitter = Fitter(plan.estimate, shape, dtype.itemsize, devices, room, plan.answered)
    problems = fitter.misfits(planned.config, {})
    if not problems:
        fits = f"fits: {size(room.disk)} of disk and {size(room.memory)} of memory are free"
        print(f"{fits}; next: {planned.with_settings()}")
        return
    for misfit in problems:
        free = f"{size(room.disk)} free in {planned.runs_dir}" if misfit.what == DISK else f"{size(room.memory)} free"
        print(f"does not fit: {misfit}, {free}")
    settings, left = fitter.search(planned.config)
    if left:
        least = "; ".join(f"{misfit} at least" for misfit in left)
        remedies = " and ".join(dict.fromkeys(misfit.remedy for misfit in left))
        print(f"no setting that plan tries makes it fit: {least}; {remedies} is needed")
    else:
        typed = planned.with_settings(*(f"{key}={plain_value(value)}" for key, value in settings.items()))
        print(f"estimated to fit: {typed}")
        if "target.device_map" in settings:
            print("with target.device_map=auto, layers wait on other GPUs, in memory or on disk; times are longer")
    raise CheckFailedError(f"{planned.name} does not fit")


def print_stages(stages: Sequence[Stage], title: str) -> None:
    """A table of the stages, and what they take together."""
    table = Table(title=title, title_justify="left", caption=LEGEND, caption_justify="left")
    for heading in ("stage", "time", "tokens", "disk", "memory", "how estimated"):
        table.add_column(heading)
    for stage in stages:
        disk = size(stage.disk + stage.lasting) if stage.disk + stage.lasting else ""
        memory, tokens = (size(stage.memory) if stage.memory else ""), (f"{stage.tokens:,}" if stage.tokens else "")
        took = "?" if stage.derivation == UNTIMED["served"] else duration(stage.seconds)
        table.add_row(stage.name, took, tokens, disk, memory, stage.derivation)
    table_console().print(table)
    lasting = sum(stage.lasting for stage in stages)
    seconds, memory = sum(stage.seconds for stage in stages), max(stage.memory for stage in stages)
    untimed = " without the server's answers" if any(stage.derivation == UNTIMED["served"] for stage in stages) else ""
    disk = f"disk {size(peak_disk(stages))} at the peak, {size(lasting)} of it afterwards"
    print(f"in all: about {duration(seconds)}{untimed}; {disk}; memory {size(memory)} in the largest stage")


def make_plan(
    planned: PlannedCommand, shape: ModelShape, device: torch.device, dtype: torch.dtype, devices: Devices
) -> Plan:
    """Estimates by trials where the target is here and fits, else by rates."""
    cfg, device_config = planned.config, planned.device
    weights = shape.num_weights * dtype.itemsize
    if planned.is_here and is_local(planned.target) and weights < devices.memory / 2:
        warn_if_busy()
        trials = run_trials(cfg, load_target(cfg.target), shape, train)

        def rough(changed: PrepareDataConfig, number_bytes: int) -> list[Stage]:
            work = resized(trials.work, changed)
            return estimate_stages(changed, shape, DeviceRates(1.0, 1.0, ""), number_bytes, work, devices)

        stages = share_out(trials.stages, cfg, devices, weights)
        return Plan(
            scaled(stages, rough, cfg, dtype.itemsize), f"{describe_device(device)}, by trials", trials.answered
        )
    if isinstance(cfg, TrainDrafterConfig):
        require_estimated(cfg)
        cfg = choose_init_by_manifests(without_unread_features(cfg))
    available = prompts_in_file(cfg)
    if device_config.bandwidth_gb_s is not None and device_config.tflops is not None:
        name = f"{device_config.name}, " if device_config.name != THIS else ""
        source = f"{name}{device_config.bandwidth_gb_s:g} GB/s and {device_config.tflops:g} TFLOP/s"
        rates = DeviceRates(device_config.bandwidth_gb_s * 1e9, device_config.tflops * 1e12 / 2, source)
    else:
        half = on_gpu(device) if dtype == torch.float16 else multiplies_bfloat16_faster(device.type)
        rates = measure_device(device, dtype if half else torch.float32)
    print(ESTIMATED)
    answers = artifact_dir(planned.runs_dir, planned.target.folder_name, "answers", cfg.name or cfg.domain.name)
    if getattr(cfg, "answers", ()) or answers.exists():
        print("Without trials, plan reads no answers: these are the figures of a first run, answers included.")

    def estimate(changed: PrepareDataConfig, number_bytes: int) -> list[Stage]:
        if isinstance(changed, TrainDrafterConfig):
            drafter = cfg.drafter if changed.drafter.undecided else changed.drafter
            changed = without_unread_features(replace(changed, drafter=drafter))
        return estimate_stages(changed, shape, rates, number_bytes, assumed_workload(changed, available), devices)

    return Plan(estimate, rates.source)


def require_estimated(cfg: TrainDrafterConfig) -> None:
    """ConfigError for a kind of drafter whose training is estimated by trials only."""
    kind = cfg.drafter.kind
    if trained_kind(kind).trained_on_features and not isinstance(cfg.drafter, Eagle3DrafterConfig):
        raise ConfigError(
            f"plan estimates drafter={kind} only by trials, with the target on this device; type drafter=eagle3 for a "
            "drafter of similar size, or plan it where the target is"
        )
