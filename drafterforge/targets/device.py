"""Choose the device and the dtype."""

from __future__ import annotations

import torch

from drafterforge.errors import ConfigError
from drafterforge.kernels import gpu
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.dispatch import is_compiled
from drafterforge.kernels.linear import computes_bfloat16, decodes_with_matrix_unit

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

KERNELS = ", compiled kernels"  # ends the description of a CPU on which they are compiled


def choose_device(device: str) -> torch.device:
    """The named device; for `auto`, CUDA if there is a GPU, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        named_device = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"target.device={device!r} is not a device; type auto, cpu, cuda or cuda:0") from None
    if named_device.type not in ("cpu", "cuda", "meta"):  # the last for rehearsals
        raise ConfigError(f"target.device={device} is not supported; type auto, cpu, cuda or cuda:0")
    if named_device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"target.device={device}, but torch {torch.__version__} finds no GPU; type target.device=cpu")
    if named_device.type == "cuda" and (named_device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"target.device={device}, but this machine has {torch.cuda.device_count()} GPUs")
    return named_device


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The named dtype; for `auto`, bfloat16 if the device multiplies or `widens` it, else float32."""
    if dtype == "auto":
        half = computes_bfloat16(device.type) or widens(torch.bfloat16, device)
        return torch.bfloat16 if half else torch.float32
    return DTYPES[dtype]


def widens(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the lean path stores weights of this dtype but has activations in float32: on CPUs with native.c.

    There this is faster than half precision throughout, and rounds less.  With AMX or AVX512-BF16 the linear layers of
    a bfloat16 target round their inputs and multiply in bfloat16.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    return half and device.type == "cpu" and is_compiled()


def describe_device(device: torch.device) -> str:
    """The device in one line of text: the model of a GPU; threads and number formats of a CPU."""
    if on_gpu(device):
        return gpu.device_name(device)
    bf16 = "bfloat16 in hardware" if computes_bfloat16("cpu") else "no bfloat16 in hardware"
    if computes_bfloat16("cpu") and not decodes_with_matrix_unit():
        bf16 += ", no AMX"
    bf16 += KERNELS if is_compiled() else ""
    return f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, {bf16}"
