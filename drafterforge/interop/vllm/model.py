"""The draft model of a pool: N stacked EAGLE-3 drafters, each with an `Attention` layer and so a KV cache of vLLM's.

The first pass of a cycle runs all drafters on the newest rows, on a GPU on all rows; `write_keys` reads earlier ones.
In later passes each request has its chosen drafter.
Under tensor parallelism every rank holds the drafters' weights, and attends with its share of the heads.
Axes: N drafters, R rows, B requests, H hidden of a drafter, D head width.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from drafterforge.drafters.base import Drafter
from drafterforge.drafters.eagle3.row_drafters import RowDrafters
from drafterforge.interop.vllm.pool_folder import PoolFolder

KEYS_CHUNK = 256  # rows whose keys are computed together; more would not fit a CPU's cache


class PoolEagle3(Eagle3LlamaForCausalLM):
    """Drafts with the pool in a folder of `export format=vllm-pool`; hidden states are [R, N * H]."""

    has_own_embed_tokens = False  # vLLM replaces `model.embed_tokens` by the target's
    has_own_lm_head = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        draft = vllm_config.speculative_config.draft_model_config
        self.config = draft.hf_config
        self.pool = PoolFolder.open(Path(draft.model))
        spec = self.pool.spec
        self.num_drafters = len(self.pool.stacked)
        self.ranks, self.rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        first = vllm_config.model_config.get_total_num_hidden_layers()
        self.attention = nn.ModuleList(
            Attention(
                spec.num_heads // self.ranks,
                spec.head_dim,
                spec.head_dim**-0.5,
                num_kv_heads=max(spec.num_key_heads // self.ranks, 1),
                cache_config=vllm_config.cache_config,
                prefix=f"model.layers.{first + index}.self_attn.attn",
            )
            for index in range(self.num_drafters)
        )
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(1, spec.target_hidden_size, device="cpu")
        self.model.use_aux_hidden_state = True
        self.lm_head = None  # heads belong to the drafters; the V2 runner would read the weight of a module
        self.rows: RowDrafters | None = None  # drafters of the requests; None: all drafters read
        self.choice: Tensor | None = None  # their indices, [B]
        self.idle = False  # whether no request drafts with a drafter of the model
        self.outputs: Tensor | None = None  # of the last pass of all drafters, [N, R, H]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Nothing: `load_drafters` reads the pool's own files once the target's embedding is there."""
        return set()

    def load_drafters(self) -> None:
        """Load the drafters; the target's embedding must have been shared."""
        self.drafters = self.pool.stack(self._embedding())

    def lookups(self, names: list[str]) -> list[Drafter]:
        """The pool's drafters of these names, which look up text."""
        return [self.pool.lookup(name, self._embedding()) for name in names]

    def _embedding(self) -> Tensor:
        """The target's embedding, [V, H], of which each rank holds a part."""
        weight = self.model.embed_tokens.weight.detach()
        rows = tensor_model_parallel_all_gather(weight, dim=0) if self.ranks > 1 else weight
        return rows[: self.config.vocab_size]

    def embed_input_ids(self, input_ids: Tensor, *_: object) -> Tensor:
        """Embeddings [R, H] of tokens [R]."""
        layer = self.model.embed_tokens
        return getattr(layer, "base_layer", layer)(input_ids)  # without the adapters of the target's requests

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """Project features [R, 3H] for every drafter, [R, N * H]."""
        fused = self.drafters.fuse(hidden_states)
        return fused.expand(self.num_drafters, -1, -1).transpose(0, 1).flatten(1)

    def read(self) -> None:
        """Let all drafters read the rows of the next pass."""
        self.rows, self.choice = None, None
        self.idle = False

    def write_keys(self, tokens: Tensor, positions: Tensor, features: Tensor, slots: Tensor) -> None:
        """Write keys and values of rows into all drafters' caches, without computing outputs.

        tokens, positions: [R].  features: [R, 3H].  slots: where the rows stand in the caches, [R].
        """
        for piece in torch.arange(len(tokens)).split(KEYS_CHUNK):
            hidden = self.drafters.fuse(features[piece]).expand(self.num_drafters, -1, -1)
            keys, values = self.drafters.keys(self.embed_input_ids(tokens[piece]), hidden, positions[piece])
            for layer, k, v in zip(self.attention, keys, values, strict=True):
                if self.ranks > 1:
                    k, v = self._own_heads(k), self._own_heads(v)
                layer.impl.do_kv_cache_update(layer, k.contiguous(), v.contiguous(), layer.kv_cache, slots[piece])

    def draft_with(self, choice: Tensor) -> None:
        """Draft with one drafter for each request in the next passes.  choice: [B]."""
        self.rows, self.choice = RowDrafters(self.drafters, choice), choice

    def forward(
        self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor, inputs_embeds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs of the layer, twice, [R, N * H]; a request's chosen drafter writes all of its N parts."""
        if self.idle:
            return hidden_states, hidden_states
        embedded = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = hidden_states.unflatten(1, (self.num_drafters, -1))
        if self.rows is None:
            hidden = hidden.transpose(0, 1).contiguous()
            self.outputs = self.drafters.layer(embedded, hidden, positions, self._attend_all)
            out = self.outputs.transpose(0, 1).flatten(1)
        else:
            hidden = hidden[torch.arange(len(hidden), device=hidden.device), self.choice]
            out = self.rows.layer(embedded, hidden, positions, self._attend_rows)
            out = out[:, None].expand(-1, self.num_drafters, -1).flatten(1)
        return out, out

    def guesses(self, rows: Tensor, weigh: bool = False) -> tuple[Tensor, Tensor | None]:
        """Tokens that the drafters guess next at rows [M] of the last pass of all drafters, [N, M].

        weigh: return their probabilities too, [N, M].
        """
        logits = self.drafters.logits(self.outputs[:, rows])
        largest, best = logits.max(dim=-1)
        probabilities = (largest - logits.logsumexp(dim=-1)).exp() if weigh else None
        return self.drafters.token_ids.gather(1, best), probabilities

    def next_tokens(self, hidden: Tensor) -> Tensor:
        """Tokens [B] that the requests' chosen drafters guess next.  hidden: outputs of the last pass, [B, N * H]."""
        best = self.rows.logits(hidden.unflatten(1, (self.num_drafters, -1))[:, 0]).argmax(dim=-1)
        ids = self.rows.token_ids
        return ids[best] if ids.dim() == 1 else ids.gather(1, best[:, None])[:, 0]

    def _attend_all(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of every drafter over its own cache; q, k, v [N, R, heads, D], returns as q."""
        parts = [self._attend(index, q[index], k[index], v[index]) for index in range(self.num_drafters)]
        return torch.stack(parts)

    def _attend_rows(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of each request over the cache of its drafter; q, k, v [B, heads, D], returns as q.

        On a CPU only the caches of chosen drafters are touched; a GPU would have to be waited for.
        """
        used = sorted(set(self.choice.tolist())) if q.device.type == "cpu" else range(self.num_drafters)
        out = None
        for index in used:
            part = self._attend(index, q, k, v)
            out = part if out is None else torch.where((self.choice == index)[:, None, None], part, out)
        return out

    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention over the cache of drafter `index`, which first takes the keys and values; [R, heads, D]."""
        if self.ranks == 1:
            return self.attention[index](*(x.flatten(1) for x in (q, k, v))).view_as(q)
        q_part, k_part, v_part = (self._own_heads(x).flatten(1) for x in (q, k, v))
        mixed = self.attention[index](q_part, k_part, v_part)
        return tensor_model_parallel_all_gather(mixed, dim=1).view_as(q)

    def _own_heads(self, x: Tensor) -> Tensor:
        """The heads of this rank; ranks share key heads where there are fewer than ranks."""
        heads = x.shape[1]
        count = max(heads // self.ranks, 1)
        start = self.rank * count if heads >= self.ranks else self.rank * heads // self.ranks
        return x[:, start : start + count].contiguous()
