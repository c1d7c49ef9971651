"""Block drafters for decoding, with fused and prepacked projections: one, or a generalist and its LoRA experts stacked.

Axes: R rows, H hidden, D head width, W draft vocabulary, W' = W + 1 where the logit of confidence follows, else W;
stacked drafters have N in front, which `...` stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.eagle3.lora import Adapter, LowRank, concatenate_low_rank
from drafterforge.drafters.eagle3.stacked import StackedLinear
from drafterforge.drafters.judging import draft_id_table
from drafterforge.kernels.dispatch import Kernels, kernels_of
from drafterforge.kernels.linear import AdaptedLinear, FrozenLinear
from drafterforge.kernels.rope import RopeTable, apply_rope

# attend(layer, q [..., R, heads, D], k, v [..., R, key heads, D]) gives [..., R, heads, D]
AttendLayer = Callable[[int, Tensor, Tensor, Tensor], Tensor]
LAYER = {  # fused projection of a layer -> its parts in the module
    "q": ("self_attn.q_proj",),
    "kv": ("self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
CONFIDENCE = "confidence_head.proj"
MOST_CONFIDENCE = 1 - 1e-6


def projections(spec: BlockSpec) -> dict[str, tuple[str, ...]]:
    """Fused projections of a drafter -> their parts in the module."""
    head = ("lm_head", CONFIDENCE) if spec.confidence else ("lm_head",)
    named: dict[str, tuple[str, ...]] = {"fc": ("fc",), "head": head}
    for layer in range(spec.num_layers):
        named |= {f"{name}.{layer}": tuple(f"layers.{layer}.{part}" for part in LAYER[name]) for name in LAYER}
    return named


class BlockPass:
    """The two passes of a drafter: positions of a text to keys and values, tokens of blocks to logits.

    Subclasses set the attributes.  Norms, vocabulary, Markov and confidence head are one drafter's: LoRA experts share
    them.
    """

    spec: BlockSpec
    embedding: Tensor
    linears: Mapping[str, Callable[[Tensor], Tensor]]
    gains: dict[str, Tensor]
    pair_states: Tensor | None  # of the Markov head, [V, r]
    pair_scores: FrozenLinear | None
    vocabulary: Tensor  # target id of every draft id, [W]
    rope: RopeTable
    kernels: Kernels

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [..., R, key heads, D] of each layer at positions [R] with features [R, TH] of T taps."""
        states = self._norm(self.linears["fc"](features), "hidden_norm")
        rope = self.rope(positions, states.dtype)
        return [self._keys(layer, states, rope) for layer in range(self.spec.num_layers)]

    def outputs(self, tokens: Tensor, positions: Tensor, attend: AttendLayer) -> Tensor:
        """Outputs [..., R, H] of block tokens [R] at positions [R], before the final norm."""
        hidden = F.embedding(tokens, self.embedding)
        rope = self.rope(positions, hidden.dtype)
        for layer in range(self.spec.num_layers):
            x = self._norm(hidden, f"layers.{layer}.input_layernorm")
            q = self.linears[f"q.{layer}"](x).unflatten(-1, (-1, self.spec.head_dim))
            q = apply_rope(self._norm(q, f"layers.{layer}.self_attn.q_norm"), *rope)
            mixed = attend(layer, q, *self._keys(layer, x, rope))
            hidden = hidden + self.linears[f"out.{layer}"](mixed.flatten(-2))
            x = self._norm(hidden, f"layers.{layer}.post_attention_layernorm")
            hidden = hidden + self.linears[f"down.{layer}"](self.kernels.swiglu(self.linears[f"gate_up.{layer}"](x)))
        return hidden

    def logits(self, outputs: Tensor) -> Tensor:
        """Draft logits [..., R, W'] of outputs [..., R, H], without the Markov head."""
        return self.linears["head"](self._norm(outputs, "norm"))

    def after(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits [..., W] of the tokens after tokens [...], with the Markov head if there is one.  logits: [..., W'].

        With confidence c they are log(c q + (1 - c) / W): a position's tokens keep their order, and whatever ranks
        nodes or cuts trees by probabilities heeds c.
        """
        if self.pair_states is None:
            return logits
        logits = logits + self.pair_scores(F.embedding(tokens, self.pair_states))
        if not self.spec.confidence:
            return logits
        q = logits[..., :-1].float().softmax(dim=-1)
        confidence = logits[..., -1:].float().sigmoid().clamp(max=MOST_CONFIDENCE)
        return q.mul_(confidence).add_((1 - confidence) / q.shape[-1]).log_()

    def blocks(self, roots: Tensor) -> Tensor:
        """Blocks [..., block_size] that begin with roots [...]."""
        return F.pad(roots[..., None], (0, self.spec.num_drafted), value=self.spec.mask_token_id)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.kernels.rms_norm(x, self.gains[name], self.spec.rms_norm_eps)

    def _keys(self, layer: int, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        heads = self.spec.num_key_heads
        kv = self.linears[f"kv.{layer}"](x).unflatten(-1, (2 * heads, self.spec.head_dim))
        k = self._norm(kv[..., :heads, :], f"layers.{layer}.self_attn.k_norm")
        return apply_rope(k, *rope), kv[..., heads:, :]


class FusedBlock(BlockPass, Drafter):
    """Inference-only equivalent of the module."""

    kind = "block"
    merges = True

    def __init__(self, drafter: BlockDrafter, embedding: Tensor) -> None:
        """embedding: the target's [V, H], in the dtype and on the device to decode with."""
        self.spec, self.embedding, self.generalist = drafter.spec, embedding, None
        weights = {name: self._cast(parameter) for name, parameter in drafter.named_parameters()}
        self.pair_states = self.pair_scores = None
        if self.spec.markov_rank:
            self.pair_states = weights["markov_head.markov_w1.weight"]
            scores, bias = weights["markov_head.markov_w2.weight"], None
            if self.spec.confidence:
                scores = torch.cat((scores, weights[f"{CONFIDENCE}.weight"][:, self.spec.hidden_size :]))
                bias = F.pad(weights[f"{CONFIDENCE}.bias"], (self.spec.draft_vocab_size, 0))
                weights[f"{CONFIDENCE}.weight"] = weights[f"{CONFIDENCE}.weight"][:, : self.spec.hidden_size]
            self.pair_scores = FrozenLinear(scores, bias)
        named = projections(self.spec)
        self.linears: dict[str, FrozenLinear | AdaptedLinear] = {
            name: FrozenLinear(torch.cat([weights[f"{part}.weight"] for part in parts]))
            for name, parts in named.items()
        }
        self.widths = {part: len(weights[f"{part}.weight"]) for parts in named.values() for part in parts}
        self.gains = {name.removesuffix(".weight"): gain for name, gain in weights.items() if "norm" in name}
        self.vocabulary = drafter.token_ids.to(embedding.device)
        self.rope, self.kernels = drafter.rope, kernels_of(embedding)

    def with_adapter(self, adapter: Adapter) -> FusedBlock:
        """A LoRA expert that shares this drafter's weights."""
        twin = object.__new__(FusedBlock)
        vars(twin).update(vars(self), generalist=self, linears=dict(self.linears))
        for name, parts in projections(self.spec).items():
            if any(part in adapter for part in parts):
                low = concatenate_low_rank([adapter.get(part) for part in parts], [self.widths[part] for part in parts])
                twin.linears[name] = AdaptedLinear(
                    self.linears[name], LowRank(self._cast(low.down), self._cast(low.up))
                )
        return twin

    def _cast(self, parameter: Tensor) -> Tensor:
        return parameter.detach().to(device=self.embedding.device, dtype=self.embedding.dtype)


class StackedBlocks(BlockPass):
    """A generalist and LoRA experts of it, or one drafter; each member still drafts by itself."""

    def __init__(self, members: Sequence[FusedBlock]) -> None:
        first = members[0]
        self.members, self.spec, self.embedding = list(members), first.spec, first.embedding
        self.linears = {name: StackedLinear([member.linears[name] for member in members]) for name in first.linears}
        self.gains, self.vocabulary = first.gains, first.vocabulary
        self.pair_states, self.pair_scores = first.pair_states, first.pair_scores
        self.token_ids = first.vocabulary.expand(len(members), -1)  # [N, W]
        self.draft_ids = draft_id_table(first.vocabulary[None], len(first.embedding)).expand(len(members), -1)
        self.rope, self.kernels = first.rope, first.kernels
