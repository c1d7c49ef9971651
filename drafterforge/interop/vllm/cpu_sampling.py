"""Mends vLLM 0.32's CPU build, whose speculative sampling at temperature > 0 is not lossless.

`rejection_sampler.expand_batch_to_tokens` repeats each request's temperature for its tokens.  The CPU's kernel writes
into a copy, so that the caller reads uninitialised memory.  GPUs are not affected.
"""

from __future__ import annotations

import torch
from torch import Tensor


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """x[b] for every token of request b, [num_tokens]; values equal to `replace_from` become `replace_to`.

    x: [B].  cu_num_tokens: tokens of the requests up to and including each, [B].
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts.long(), output_size=num_tokens)


def mend() -> None:
    """Replace the function in vLLM."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
