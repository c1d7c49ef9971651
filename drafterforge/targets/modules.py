"""A backbone for any causal LM, which runs the modules of `transformers`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from drafterforge.errors import ConfigError
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask, additive_mask
from drafterforge.targets.spread import SpreadCache
from drafterforge.targets.taps import taps_of


class _SlotLayer(CacheLayerMixin):
    """A layer of a `KeyValueCache` with the interface that transformers' attention modules expect."""

    is_sliding = False

    def __init__(self, cache: KeyValueCache | SpreadCache, index: int) -> None:
        super().__init__()
        self.cache, self.index, self.is_initialized = cache, index, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, as the storage exists."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values [B, H, T, D]; returns those of all used slots."""
        return self.cache.write(self.index, key_states.transpose(1, 2), value_states.transpose(1, 2))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.used, 0  # never used: the masks are passed in

    def get_seq_length(self) -> int:
        return self.cache.start

    def get_max_length(self) -> int:
        return -1  # unlimited


class ModulesBackbone:
    """Decoder of any causal LM, from token ids to features, final states and logits."""

    def __init__(
        self,
        model: PreTrainedModel,
        tapped: bool = True,
        taps: Sequence[int] = (),
        devices: Sequence[torch.device] = (),
    ) -> None:
        """tapped: whether features are needed; if not, their width is 0.  taps: layers; empty: the default ones.

        devices: on which each layer runs, if they are several.
        """
        self.model, self.devices = model, devices
        self.decoder = model.get_decoder()
        config = model.config.get_text_config()
        layers = getattr(self.decoder, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ConfigError(
                f"cannot find the decoder layers of a {config.model_type!r} model; expected a module list `layers`"
            )
        if set(getattr(config, "layer_types", None) or ["full_attention"]) - {
            "full_attention",
            "sliding_attention",
        }:
            raise ConfigError(
                f"a {config.model_type!r} model has layers without attention, which cannot verify a draft tree"
            )
        self.num_layers = len(layers)
        self.taps = taps_of(self.num_layers, tapped, taps)
        self.num_key_heads = config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.embedding = model.get_input_embeddings().weight.detach()
        self._tapped: dict[int, Tensor] = {}
        self.norm = getattr(self.decoder, "norm", None)
        for index, layer in enumerate(layers if tapped else ()):
            layer.register_forward_pre_hook(self._tap(index), with_kwargs=True)

    def _tap(self, index: int):
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if index in self.taps:
                self._tapped[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    @property
    def head_weight(self) -> Tensor:
        """Weight of the output head, [V, H]."""
        return self.model.get_output_embeddings().weight.detach()

    def new_cache(self, batch: int) -> KeyValueCache | SpreadCache:
        """An empty cache for `batch` sequences."""
        weight = self.embedding
        if self.devices:
            return SpreadCache(self.devices, batch, self.num_key_heads, self.width, weight.dtype)
        return KeyValueCache(self.num_layers, batch, self.num_key_heads, self.width, weight.dtype, weight.device)

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KeyValueCache | SpreadCache | None,
        mask: Mask | None,
        invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """As `LeanBackbone.__call__`, but ignores `invariant`: the model's operations are not batch-invariant."""
        length = tokens.shape[1]
        if mask is None:
            causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
            mask = additive(causal, self.embedding.dtype)[None]
        past = None if cache is None else Cache(layers=[_SlotLayer(cache, index) for index in range(self.num_layers)])
        states = self.decoder(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=additive_mask(mask)[:, None].expand(tokens.shape[0], -1, -1, -1),
            past_key_values=past,
            use_cache=past is not None,
        ).last_hidden_state
        tapped = [self._tapped[index].to(states.device) for index in self.taps]
        features = torch.cat(tapped, dim=-1) if tapped else states[..., :0]
        self._tapped.clear()
        return states, features

    def normed(self, outputs: Tensor) -> Tensor:
        """Final states [..., H] by the last layer's outputs."""
        if self.norm is None:
            raise ConfigError("cannot find the final norm of the target; expected a module `norm` in its decoder")
        with torch.inference_mode():
            return self.norm(outputs)

    def logits(self, states: Tensor, invariant: bool = False) -> Tensor:
        """Logits [..., V] of final states [..., H]."""
        with torch.inference_mode():
            return self.model.get_output_embeddings()(states)
