"""Chooses numerics, so that speculative output equals autoregressive output token for token, also in half precision.

`fast` lets the shape of a pass decide its order of summation, so in half precision a near tie may fall differently in
a tree and in a single step.  `invariant` is batch-invariant: matrix products in row counts that share one order of
summation (`kernels.invariant`), attention summed in float64.  It is tested on the loaded target before it is used.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.attention import additive
from drafterforge.targets.lean import LeanBackbone
from drafterforge.targets.load import Target

NUMERICS = ("auto", "fast", "invariant")
HALF = (torch.bfloat16, torch.float16)
PREFIX, STEPS = 37, 6  # tokens of the test: prompt, decoded
_OBSTACLES: WeakKeyDictionary[LeanBackbone, str | None] = WeakKeyDictionary()  # of each backbone tested


def choose_numerics(numerics: str, target: Target) -> str:
    """`fast` or `invariant`; auto is invariant in half precision where it is bit-exact, else fast."""
    if numerics not in NUMERICS:
        raise ConfigError(f"runtime.numerics must be one of {', '.join(NUMERICS)}, got {numerics!r}")
    if numerics == "fast" or (numerics == "auto" and target.dtype not in HALF):
        return "fast"
    obstacle = invariance_obstacle(target)
    if obstacle and numerics == "invariant":
        raise ConfigError(f"runtime.numerics=invariant is not bit-exact here: {obstacle}; type runtime.numerics=fast")
    return "fast" if obstacle else "invariant"


def invariance_obstacle(target: Target) -> str | None:
    """Why a token's logits in a tree differ from those of the token alone on this device, or None."""
    backbone = target.backbone
    if not isinstance(backbone, LeanBackbone):
        return f"{target.name} runs through its own modules, which are not batch-invariant"
    if backbone not in _OBSTACLES:
        with torch.inference_mode():
            _OBSTACLES[backbone] = _try_operations(backbone) or _try_decoding(target)
    return _OBSTACLES[backbone]


def _try_operations(backbone: LeanBackbone) -> str | None:
    """Compare rows computed together with rows computed alone, operation by operation."""
    weight, kernels = backbone.embedding, backbone.kernels
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device=weight.device, dtype=weight.dtype)

    layer, count = backbone.layers[0], 45
    linears = {name: getattr(layer, name) for name in ("qkv", "out", "gate_up", "down")} | {"head": backbone.head}
    for name, linear in linears.items():
        x = draw(count, linear.weight.shape[1])
        if not linear(x, True).equal(torch.cat([linear(row[None], True) for row in x])):
            return f"the {name} product {tuple(linear.weight.shape)} in {weight.dtype} depends on the other rows"
    x = draw(count, weight.shape[1])
    if not kernels.rms_norm(x, layer.input_norm, backbone.eps).equal(
        torch.cat([kernels.rms_norm(row[None], layer.input_norm, backbone.eps) for row in x])
    ):
        return f"RMS norm in {weight.dtype} depends on the other rows"
    q, slots = draw(1, count, backbone.num_heads, backbone.width), PREFIX + count
    k, v = draw(2, 1, backbone.num_key_heads, slots, backbone.width)
    reads = torch.rand(count, slots, generator=generator) < 0.7
    reads[:, 0] = True
    reads = reads.to(weight.device)
    together = kernels.grouped_attention(q, k, v, additive(reads, weight.dtype)[None], exact=True)
    alone = [
        kernels.grouped_attention(q[:, row : row + 1], k[:, :, keys], v[:, :, keys], None, exact=True)
        for row, keys in enumerate(reads)
    ]
    return (
        None
        if together.equal(torch.cat(alone, dim=1))
        else f"attention in float64 for {weight.dtype} depends on the other rows"
    )


def _try_decoding(target: Target) -> str | None:
    """Compare the logits of tokens fed one by one with those of the same tokens inside a tree."""
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(0, target.config.vocab_size, (PREFIX + STEPS,), generator=generator).to(target.device)
    positions = torch.arange(PREFIX + STEPS, device=target.device)

    def prefilled():
        cache = target.new_cache()
        cache.set_slots(0, PREFIX)
        target.forward(text[None, :PREFIX], positions[None, :PREFIX], cache)
        return cache

    cache, expected = prefilled(), []
    for step in range(PREFIX, PREFIX + STEPS):
        cache.set_slots(step, 1)
        states, _ = target.forward(text[None, step : step + 1], positions[None, step : step + 1], cache, None, True)
        expected.append(target.logits(states[0], True))
    cache = prefilled()
    # every second node continues the text, the nodes between branch off
    nodes = text[PREFIX:].repeat_interleave(2)
    nodes[1::2] = nodes[1::2].flip(0)
    steps = torch.arange(2 * STEPS, device=target.device)
    reads = (steps[None] <= steps[:, None]) & ((steps[None] % 2 == 0) | (steps[None] == steps[:, None]))
    past = torch.ones(2 * STEPS, PREFIX, dtype=torch.bool, device=target.device)
    cache.set_slots(PREFIX, 2 * STEPS)
    mask = additive(torch.cat((past, reads), dim=1), target.compute_dtype)[None]
    states, _ = target.forward(nodes[None], (PREFIX + steps // 2)[None], cache, mask, True)
    equal = target.logits(states[0], True)[::2].equal(torch.cat(expected))
    return None if equal else "a whole pass depends on its shape, although no single operation does"
