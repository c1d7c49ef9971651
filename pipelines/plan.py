"""Estimate what a command takes before it is run: time, disk and memory of each stage, and what does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from rich.table import Table

from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.plan import THIS, PlanConfig, PlannedCommand
from drafterforge.config.progress import say, table_console
from drafterforge.errors import ConfigError
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.planning import (
    DeviceRates,
    Room,
    Stage,
    duration,
    estimate_stages,
    measure_device,
    misfits,
    peak_disk,
    size,
)
from drafterforge.evaluation.stage_trials import (
    free_memory,
    run_trials,
)
from drafterforge.evaluation.trial_workload import (
    assumed_workload,
)
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.load import load_target
from drafterforge.targets.shape import ModelShape, find_config, is_local
from drafterforge.training.launch import local_devices

Config = PlanConfig  # of the device; `PlannedCommand` also has the config of the command that is planned
ESTIMATED = (
    "Estimates from the rates of a device are right within a factor of about three; trials on a device are closer."
)


def run(planned: PlannedCommand) -> None:
    if stream := planned.config.data.stream:
        raise ConfigError(
            f"plan does not cover data.stream={stream}, whose disk is bounded by data.stream_gb; leave it out to plan "
            "answers and features made here"
        )
    shape = ModelShape.read(find_config(planned.target))
    device = choose_device(planned.target.device)
    dtype = choose_dtype(planned.target.dtype, device)
    weights = shape.num_weights * dtype.itemsize
    room = free_room(planned, device)
    stages, source = make_plan(planned, shape, device, dtype, room)
    title = f"drafterforge {planned.name} with {planned.target.folder_name}, {size(weights)} of weights, on {source}"
    table = Table(title=title, title_justify="left")
    for heading in ("stage", "time", "tokens", "disk", "memory", "derivation"):
        table.add_column(heading)
    for stage in stages:
        disk = size(stage.disk + stage.lasting) if stage.disk + stage.lasting else ""
        memory, tokens = (size(stage.memory) if stage.memory else ""), (f"{stage.tokens:,}" if stage.tokens else "")
        table.add_row(stage.name, duration(stage.seconds), tokens, disk, memory, stage.derivation)
    table_console().print(table)
    lasting = sum(stage.lasting for stage in stages)
    seconds, memory = sum(stage.seconds for stage in stages), max(stage.memory for stage in stages)
    disk = f"disk {size(peak_disk(stages))} at the peak, {size(lasting)} stay"
    print(f"in all: at most {duration(seconds)}; {disk}; memory {size(memory)}")
    problems = misfits(planned, stages, room, shape, weights)
    fits = f"fits: {size(room.disk)} of disk and {size(room.memory)} of memory are free"
    if (number := num_devices(planned)) > 1:
        print(f"times and memory are those of one device; {number} devices share the micro-batches of a step")
    print("\n".join(problems) if problems else f"{fits}; next: {planned.with_settings()}")


def make_plan(
    planned: PlannedCommand, shape: ModelShape, device: torch.device, dtype: torch.dtype, room: Room
) -> tuple[list[Stage], str]:
    """The stages, and what their figures come from: trials where the target is here and fits, else rates."""
    cfg, device_config = planned.config, planned.device
    here = device_config.name == THIS and device_config.bandwidth_gb_s is None
    if here and is_local(planned.target) and shape.num_weights * dtype.itemsize < room.memory / 2:
        warn_if_busy()
        say("plan: trying each stage for some seconds")
        return run_trials(cfg, load_target(cfg.target), shape, train), f"{describe_device(device)}, by trials"
    if device_config.bandwidth_gb_s is not None and device_config.tflops is not None:
        name = f"{device_config.name}, " if device_config.name != THIS else ""
        source = f"{name}{device_config.bandwidth_gb_s:g} GB/s and {device_config.tflops:g} TFLOP/s"
        rates = DeviceRates(device_config.bandwidth_gb_s * 1e9, device_config.tflops * 1e12 / 2, source)
    else:
        rates = measure_device(device, dtype if has_matrix_unit(device.type) else torch.float32)
    print(ESTIMATED)
    return estimate_stages(cfg, shape, rates, dtype.itemsize, assumed_workload(cfg)), rates.source


def num_devices(planned: PlannedCommand) -> int:
    """Devices on which the command trains."""
    cfg = planned.config
    if not isinstance(cfg, TrainDrafterConfig):
        return 1
    return local_devices(cfg.trainer, cfg.target.device) * (cfg.trainer.num_nodes or 1)


def free_room(planned: PlannedCommand, device: torch.device) -> Room:
    """Free memory of the device and free disk at runs_dir, or what the user says of another device."""
    device_config, folder = planned.device, Path(planned.runs_dir).resolve()
    while not folder.exists():
        folder = folder.parent
    memory = device_config.memory_gb * 1e9 if device_config.memory_gb else free_memory(device)
    return Room(memory, device_config.disk_gb * 1e9 if device_config.disk_gb else shutil.disk_usage(folder).free)
