"""Estimates what a pool will take: time to answer and train, disk, memory and bundle size; loads no weights."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Table

from drafterforge.config.commands import PlanConfig
from drafterforge.config.progress import table_console
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.planning import (
    LIMITS,
    DeviceRates,
    KnownRates,
    ModelShape,
    known_rates,
    make_plan,
    measure_device,
)
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.smollm2 import ensure_smollm2

Config = PlanConfig


def run(cfg: Config) -> None:
    """Print a table of estimates, each with how it was derived, and what they are worth."""
    shape = ModelShape.read(find_config(cfg.target))
    device = choose_device(cfg.target.device)
    dtype = choose_dtype(cfg.target.dtype, device)
    given = cfg.bandwidth_gb_s is not None and cfg.tflops is not None
    if given:
        source = f"the given {cfg.bandwidth_gb_s:g} GB/s and {cfg.tflops:g} TFLOP/s"
        rates = DeviceRates(cfg.bandwidth_gb_s * 1e9, cfg.tflops * 1e12 / 2, source)
        where = source
    else:
        multiplied = dtype if has_matrix_unit(device.type) else torch.float32
        rates, where = measure_device(device, multiplied), describe_device(device)
    known = KnownRates() if given else known_rates(cfg.runs_dir, cfg.target.folder_name, describe_device(device))
    name = str(dtype).removeprefix("torch.")
    title = f"{cfg.target.folder_name}, {cfg.num_domains} domains, {name} on {where}"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "estimate", "how it was derived"):
        table.add_column(heading)
    for line in make_plan(cfg, shape, rates, dtype.itemsize, known):
        table.add_row(line.what, line.value, line.derived)
    table_console().print(table)
    for limit in LIMITS:
        print(limit)


def find_config(target: TargetConfig) -> Path:
    """The target's config.json: in its folder, or the one file of it on the hub."""
    if target.source == "wheel":
        return ensure_smollm2() / "config.json"
    if not target.model:
        raise ConfigError("target=hf needs a model: type target.model=HUB_ID or target.model=FOLDER")
    folder = Path(target.model).expanduser()
    if folder.is_dir() or folder.is_absolute() or target.model.startswith((".", "~")):
        if not (folder / "config.json").is_file():
            raise ArtifactError(f"target.model={target.model} holds no config.json; wanted a model's folder")
        return folder / "config.json"
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(target.model, "config.json", revision=target.revision))
    except Exception as error:  # the hub client raises many kinds; each means the file is not to be had
        raise ArtifactError(
            f"could not get config.json of target.model={target.model} from the hub ({type(error).__name__}); "
            "a local folder with it works too"
        ) from error
