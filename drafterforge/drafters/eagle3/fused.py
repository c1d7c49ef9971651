"""An `Eagle3Drafter` for decoding, with fused and prepacked projections; tests compare it with the module."""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.eagle3.forward import DecodingPass
from drafterforge.drafters.eagle3.lora import Adapter, LowRank, concatenate_low_rank
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.kernels.linear import AdaptedLinear, FrozenLinear

ATTENTION, MLP = "midlayer.self_attn", "midlayer.mlp"
PROJECTIONS = {  # fused projection -> its parts in the module
    "fc": ("fc",),
    "head": ("lm_head",),
    "q": (f"{ATTENTION}.q_proj",),
    "kv": (f"{ATTENTION}.k_proj", f"{ATTENTION}.v_proj"),
    "out": (f"{ATTENTION}.o_proj",),
    "gate_up": (f"{MLP}.gate_proj", f"{MLP}.up_proj"),
    "down": (f"{MLP}.down_proj",),
}
NORMS = {
    "input_norm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm",
    "post_norm": "midlayer.post_attention_layernorm",
    "norm": "norm",
}


class FusedDrafter(DecodingPass, Drafter):
    """Inference-only equivalent of the module."""

    kind = "eagle3"
    merges = True

    def __init__(self, drafter: Eagle3Drafter, embedding: Tensor) -> None:
        """embedding: the target's [V, H], in the dtype and on the device to decode with."""
        self.spec, self.embedding, self.generalist = drafter.spec, embedding, None
        self.linears: dict[str, FrozenLinear | AdaptedLinear] = {
            name: FrozenLinear(
                torch.cat([self._cast(drafter.get_submodule(part).weight) for part in parts]), int8=name != "fc"
            )
            for name, parts in PROJECTIONS.items()
        }
        self.gains = {name: self._cast(drafter.get_submodule(part).weight) for name, part in NORMS.items()}
        if self.spec.fc_norm:
            self.gains["fc_norm"] = torch.stack([self._cast(norm.weight) for norm in drafter.fc_norm])  # [3, H]
        self.token_ids = drafter.token_ids.to(embedding.device)
        self.rope, self.kernels = drafter.rope, kernels_of(embedding)
        self.packed = self._pack()

    def with_adapter(self, adapter: Adapter) -> FusedDrafter:
        """A LoRA expert that shares this drafter's weights."""
        twin = object.__new__(FusedDrafter)
        vars(twin).update(vars(self), generalist=self, linears=dict(self.linears))
        for name, parts in PROJECTIONS.items():
            if any(part in adapter for part in parts):
                base = self.linears[name]
                widths = [self._out_features(part) for part in parts]
                low = concatenate_low_rank([adapter.get(part) for part in parts], widths)
                twin.linears[name] = AdaptedLinear(base, LowRank(self._cast(low.down), self._cast(low.up)))
        twin.packed = twin._pack()
        return twin

    def _cast(self, parameter: Tensor) -> Tensor:
        return parameter.detach().to(device=self.embedding.device, dtype=self.embedding.dtype)

    def _out_features(self, part: str) -> int:
        spec = self.spec
        if part in PROJECTIONS["kv"]:
            return spec.num_key_heads * spec.head_dim
        return spec.intermediate_size if part in PROJECTIONS["gate_up"] else 0  # 0: unused, a projection of one part
