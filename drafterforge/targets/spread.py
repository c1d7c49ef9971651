"""A target whose layers are spread over several devices, the machine's memory and the disk.

It answers and reads features; decoding with drafters needs one device.  A layer runs on the GPU that holds it;
weights in memory or on disk are moved to the main device while they are used (accelerate).  The embedding, the head and
all activations that leave the decoder stay on the main device.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from drafterforge.config.target import TargetConfig
from drafterforge.errors import ConfigError
from drafterforge.kernels import gpu
from drafterforge.kernels.cache import KeyValueCache

DISK = "disk"  # accelerate's name of it
ROOM = 0.8  # share of a device's free memory that weights may take; the rest is for caches and training
UNITS = {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}

Budgets = Sequence[tuple[str, float]]  # device and bytes for weights, in the order in which layers fill them


def device_map(config: TargetConfig, model_config: PretrainedConfig, dtype: torch.dtype, main: torch.device) -> dict:
    """The device of every module of the model, as transformers takes it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
    name, layers = layers_of(model)
    sizes = [sum(weight.nbytes for weight in layer.parameters()) for layer in layers]
    rest = {path.rpartition(".")[0] for path, _ in [*model.named_parameters(), *model.named_buffers()]}
    rest = {path for path in rest if not path.startswith(f"{name}.")}
    rest_bytes = sum(weight.nbytes for weight in model.parameters()) - sum(sizes)
    devices = fill(sizes, rest_bytes, budgets_of(config, main))
    return dict.fromkeys(sorted(rest), str(main)) | {f"{name}.{i}": device for i, device in enumerate(devices)}


def layers_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The decoder's layers and their path in the model."""
    layers = getattr(model.get_decoder(), "layers", None)
    for path, module in model.named_modules():
        if module is layers and isinstance(layers, nn.ModuleList):
            return path, layers
    raise ConfigError("target.device_map needs a decoder with a module list `layers`; leave it out")


def fill(layers: Sequence[int], rest: int, budgets: Budgets) -> list[str]:
    """The device of each layer, in order; the first device also holds the rest of the model.

    layers, rest: bytes.
    """
    devices: list[str] = []
    queue = [(device, size - (0 if index else rest)) for index, (device, size) in enumerate(budgets)]
    for size in layers:
        while queue and queue[0][1] < size:
            queue.pop(0)
        if not queue:
            raise ConfigError(
                f"target.max_memory={dict(budgets)} bytes do not hold the {len(layers)} layers of the target; "
                "type larger ones, or leave it out"
            )
        queue[0] = (queue[0][0], queue[0][1] - size)
        devices.append(queue[0][0])
    return devices


def budgets_of(config: TargetConfig, main: torch.device) -> Budgets:
    """Devices in the order in which layers fill them: the main one, other GPUs, the machine's memory, the disk."""
    typed = {name: parse_bytes(name, text) for name, text in config.max_memory.items()}
    budgets: list[tuple[str, float]] = []
    if main.type == "cuda":
        count = torch.cuda.device_count()
        order = sorted(range(count), key=lambda index: (index != (main.index or 0), index))
        budgets = [(f"cuda:{i}", typed.get(f"cuda{i}", ROOM * gpu.free_bytes(torch.device("cuda", i)))) for i in order]
    budgets.append(("cpu", typed.get("cpu", ROOM * gpu.free_host_bytes())))
    return [*budgets, (DISK, typed.get(DISK, float("inf")))]


def parse_bytes(name: str, text: str) -> float:
    """Bytes of a text such as `20GiB`."""
    upper = text.strip().upper()
    for unit, factor in UNITS.items():
        if upper.endswith(unit) and upper[: -len(unit)].strip().replace(".", "", 1).isdigit():
            return float(upper[: -len(unit)]) * factor
    raise ConfigError(f"target.max_memory.{name} must be a size such as 20GiB, got {text!r}")


def describe(devices: Mapping[str, str]) -> str:
    """How many layers lie on each device."""
    layers = [device for path, device in devices.items() if path.rpartition(".")[2].isdigit()]
    return ", ".join(f"{len([*group])} layers on {device}" for device, group in groupby(layers))


def running_devices(devices: Mapping[str, str], main: torch.device) -> list[torch.device]:
    """The device on which each layer runs: its own, or the main one for weights in memory or on disk."""
    layers = [device for path, device in devices.items() if path.rpartition(".")[2].isdigit()]
    return [torch.device(device) if device.startswith("cuda") else main for device in layers]


def offload_folder() -> Path:
    """Where weights that fit nowhere else are stored until the program ends."""
    folder = Path(tempfile.mkdtemp(prefix="drafterforge-offload-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class SpreadCache:
    """Keys and values of layers on several devices: one `KeyValueCache` for each run of layers on a device."""

    def __init__(
        self, devices: Sequence[torch.device], batch: int, num_heads: int, width: int, dtype: torch.dtype
    ) -> None:
        """devices: on which each layer runs."""
        runs = [(device, len([*group])) for device, group in groupby(devices)]
        self.parts = [KeyValueCache(count, batch, num_heads, width, dtype, device) for device, count in runs]
        self.places = [(part, index) for part, (_, count) in enumerate(runs) for index in range(count)]

    @property
    def start(self) -> int:
        """First slot of the next pass; see `KeyValueCache`."""
        return self.parts[0].start

    @property
    def used(self) -> int:
        """Slots that attention reads."""
        return self.parts[0].used

    def set_slots(self, start: int, count: int) -> None:
        """As `KeyValueCache.set_slots`."""
        for part in self.parts:
            part.set_slots(start, count)

    def set_ragged_slots(self, slots: Tensor, used: int) -> None:
        """As `KeyValueCache.set_ragged_slots`."""
        for part in self.parts:
            part.set_ragged_slots(slots.to(part.data.device), used)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeyValueCache.write`."""
        part, index = self.places[layer]
        return self.parts[part].write(index, k, v)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """As `KeyValueCache.keep_rows`."""
        for part in self.parts:
            part.keep_rows(rows)

    def expect_rows(self, rows: int) -> None:
        """As `KeyValueCache.expect_rows`."""
        for part in self.parts:
            part.expect_rows(rows)

    def put_rows(self, source: SpreadCache, rows: list[int]) -> None:
        """As `KeyValueCache.put_rows`."""
        for part, from_part in zip(self.parts, source.parts, strict=True):
            part.put_rows(from_part, rows)
