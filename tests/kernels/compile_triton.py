"""Compiles every Triton kernel to the machine code of a GPU, which needs none; prints the kernels' names.

The interpreter runs Python that Triton's compiler refuses.
"""

from __future__ import annotations

import inspect

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from drafterforge.kernels import triton_attention, triton_cache, triton_lora, triton_masks
from drafterforge.kernels.attention import Heads

OPTIONS = ("num_warps", "num_stages")
TARGET = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 99 * 1024  # of a program on most GPUs
BATCH, TOKENS, SLOTS = 2, 5, 40


def compile_instead(kernel: JITFunction, *args: object, grid: tuple, warmup: bool, **kwargs: object) -> None:
    """Takes the arguments of a launch."""
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    values = inspect.signature(kernel.fn).bind(*args, **kwargs).arguments
    signature, constants, hints = {}, {}, {}
    for index, param in enumerate(kernel.params):
        value = values[param.name]
        is_specialised = isinstance(value, int) and not param.do_not_specialize
        if param.is_constexpr or (is_specialised and value == 1):
            signature[param.name], constants[index,] = "constexpr", value
        else:
            signature[param.name] = mangle_type(value)
            if isinstance(value, torch.Tensor) or (is_specialised and value % 16 == 0):
                hints[index,] = [["tt.divisibility", 16]]
    compiled = triton.compile(ASTSource(kernel, signature, constants, hints), target=TARGET, options=options)
    assert compiled.asm["cubin"] and compiled.metadata.shared < SHARED_BYTES
    print(kernel.fn.__name__)


def launch_all(dtype: torch.dtype, heads: Heads) -> None:
    """Launch every kernel."""
    width = heads.width

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    bits = triton_masks.pack_reads(torch.ones(BATCH, TOKENS, TOKENS, dtype=torch.bool))
    keys, lengths = zeros(BATCH, heads.keys, SLOTS + TOKENS, width), torch.zeros(BATCH, dtype=torch.long)
    q = zeros(BATCH, TOKENS, heads.queries, width)
    for parts in (1, 4):
        triton_attention.num_parts = lambda programs, most, device, parts=parts: parts
        triton_attention.tree_attention(q, keys, keys, bits, lengths, SLOTS)
    qkv, cos = zeros(BATCH * TOKENS, heads.queries + 2 * heads.keys, width), zeros(BATCH * TOKENS, width // 2)
    for slots in (None, torch.zeros(BATCH, TOKENS, dtype=torch.long)):
        triton_cache.rotate_and_write(qkv, cos, cos, torch.stack((keys, keys)), slots, SLOTS, heads)
    down, up, x, out = zeros(3, 16, 256), zeros(3, 16, 512), zeros(TOKENS, 256), zeros(TOKENS, 512)
    triton_lora.add_low_rank(out, x, down, up)
    triton_lora.add_expert_low_rank(out, x, down, up, torch.zeros(TOKENS, dtype=torch.long))


if __name__ == "__main__":
    JITFunction.run = compile_instead
    launch_all(torch.bfloat16, Heads(8, 2, 128))
    launch_all(torch.float32, Heads(6, 2, 64))
