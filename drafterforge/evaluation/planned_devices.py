"""The devices of a planned command, and what is free on them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.plan import PlannedCommand
from drafterforge.evaluation.planning import Devices, Room
from drafterforge.evaluation.stage_trials import free_memory
from drafterforge.kernels.devices import on_gpu
from drafterforge.training.launch import local_devices


def find_devices(planned: PlannedCommand, device: torch.device, room: Room) -> Devices:
    """The devices on which the command trains."""
    cfg, host = planned.config, planned.is_here and not on_gpu(device)
    if not isinstance(cfg, TrainDrafterConfig):
        return Devices(host=host, memory=room.memory)
    local = cfg.trainer.devices or 1
    if planned.is_here:  # refuses what the command would
        local = max(local, local_devices(cfg.trainer, cfg.target.device, cfg.target.device_map))
    return Devices(local, local * (cfg.trainer.num_nodes or 1), host, room.memory)


def free_room(planned: PlannedCommand, device: torch.device) -> Room:
    """Free memory of the device and free disk at runs_dir, or what the user says of another device."""
    device_config, folder = planned.device, Path(planned.runs_dir).resolve()
    while not folder.exists():
        folder = folder.parent
    memory = device_config.memory_gb * 1e9 if device_config.memory_gb else free_memory(device)
    return Room(memory, device_config.disk_gb * 1e9 if device_config.disk_gb else shutil.disk_usage(folder).free)
