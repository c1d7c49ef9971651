"""Estimate the cost of a pool without loading weights: hours of answering and training, disk, memory, bundle size."""

from __future__ import annotations

import torch
from rich.table import Table

from drafterforge.config.commands import PlanConfig
from drafterforge.config.progress import table_console
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.planning import (
    LIMITS,
    DeviceRates,
    RecordedRates,
    make_plan,
    measure_device,
    recorded_rates,
)
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.shape import ModelShape, find_config

Config = PlanConfig


def run(cfg: Config) -> None:
    shape = ModelShape.read(find_config(cfg.target))
    device = choose_device(cfg.target.device)
    dtype = choose_dtype(cfg.target.dtype, device)
    if cfg.bandwidth_gb_s is not None and cfg.tflops is not None:
        device_name = f"the given {cfg.bandwidth_gb_s:g} GB/s and {cfg.tflops:g} TFLOP/s"
        device_rates = DeviceRates(cfg.bandwidth_gb_s * 1e9, cfg.tflops * 1e12 / 2, device_name)
        measured_rates = RecordedRates()
    else:
        warn_if_busy()
        device_name = describe_device(device)
        device_rates = measure_device(device, dtype if has_matrix_unit(device.type) else torch.float32)
        measured_rates = recorded_rates(cfg.runs_dir, cfg.target.folder_name, device_name)
    name = str(dtype).removeprefix("torch.")
    title = f"{cfg.target.folder_name}, {cfg.num_domains} domains, {name} on {device_name}"
    table = Table(title=title, title_justify="left")
    for heading in ("quantity", "estimate", "derivation"):
        table.add_column(heading)
    for line in make_plan(cfg, shape, device_rates, dtype.itemsize, measured_rates):
        table.add_row(line.quantity, line.value, line.derivation)
    table_console().print(table)
    for limit in LIMITS:
        print(limit)
