"""What the Triton kernels share, and whether they can run.  Imports Triton only when a kernel is needed."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import torch

from drafterforge.errors import ConfigError


@functools.cache
def why_not() -> str | None:
    """Why there are no Triton kernels, or None if there are."""
    setting = os.environ.get("DRAFTERFORGE_TRITON", "auto")
    if setting not in ("auto", "off"):
        raise ConfigError(f"DRAFTERFORGE_TRITON={setting!r} in the environment; wanted auto or off")
    if setting == "off":
        return "DRAFTERFORGE_TRITON=off"
    return None if find_spec("triton") else "Triton is not installed"


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device; Triton reads this when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def supports(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device; Triton uses the current GPU."""
    if device.type == "meta" or why_not() is not None:
        return False
    return is_interpreted() or (device.type == "cuda" and device.index == torch.cuda.current_device())


@functools.cache
def num_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few in the interpreter, so tests split work as a GPU does."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def block_size(count: int, least: int, most: int) -> int:
    """The power of two from `least` to `most` that is at least `count`, if there is one."""
    return min(max(1 << max(count - 1, 0).bit_length(), least), most)


def num_parts(programs: int, most: int, device: torch.device) -> int:
    """Parts, at most `most`, into which each program's sum is split so all multiprocessors work."""
    return max(min(2 * num_processors(device) // max(programs, 1), most), 1)


def operand_type(dtype: torch.dtype):
    """Triton's type of the operands of a matrix product.

    The interpreter multiplies bit patterns instead of bfloat16 numbers, so it gets float32.
    """
    import triton.language as tl

    if dtype == torch.bfloat16 and is_interpreted():
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]
