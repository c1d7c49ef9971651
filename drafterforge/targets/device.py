"""Choice of device and number format."""

from __future__ import annotations

import torch

from drafterforge.errors import ConfigError
from drafterforge.kernels.dispatch import is_compiled
from drafterforge.kernels.linear import computes_bfloat16, has_matrix_unit

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

KERNELS = ", compiled kernels"  # end of a CPU's description that has them


def choose_device(device: str) -> torch.device:
    """The named device, or CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"target.device={device!r} is no device; type auto, cpu, cuda or cuda:0") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"target.device={device} was asked for, but torch {torch.__version__} sees no GPU; type cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"target.device={device} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The named dtype, or bfloat16 where the device multiplies or `widens` it, else float32."""
    if dtype == "auto":
        half = computes_bfloat16(device.type) or widens(torch.bfloat16, device)
        return torch.bfloat16 if half else torch.float32
    return DTYPES[dtype]


def widens(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this dtype are read as they are, but multiplied in float32: the lean path's kernels do that.

    Wherever a CPU has no matrix unit for them, this takes less time than multiplying as bfloat16, and rounds less.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    return half and device.type == "cpu" and not has_matrix_unit("cpu") and is_compiled()


def describe_device(device: torch.device) -> str:
    """A line for reports: kind, number of threads or model name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    bf16 = "bfloat16 in hardware" if computes_bfloat16("cpu") else "no bfloat16 in hardware"
    if computes_bfloat16("cpu") and not has_matrix_unit("cpu"):
        bf16 += ", no AMX"
    bf16 += KERNELS if is_compiled() else ""
    return f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, {bf16}"
