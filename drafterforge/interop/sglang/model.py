"""The draft model of a pool in SGLang: N stacked EAGLE-3 drafters, each with a layer of the draft model's KV cache.

It was written against the source of SGLang 0.5.23 and never run.

SGLang has an extend pass after each prompt and each verification, and K - 1 decode passes of a chain.  In extend passes
all drafters read all rows; in decode passes each request has its chosen drafter.  A token has the same slot in the
caches of all drafters, so a prefix that SGLang's radix cache shares is there for all of them.  Decode passes write into
all caches, and the next extend pass writes these slots again.
Axes: N drafters, R rows, B requests, H hidden of a drafter, D head width, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.runtime_context import get_spec
from torch import Tensor, nn

from drafterforge.drafters.eagle3.row_drafters import RowDrafters
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.errors import ArtifactError
from drafterforge.interop.vllm.pool_folder import FORMAT, PoolFolder


class PoolLlamaForCausalLMEagle3(nn.Module):
    """Drafts with the pool in a folder of `export format=vllm-pool`; its name is the architecture in `config.json`."""

    hot_token_id = None  # logits are over the target's vocabulary

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.pool = PoolFolder.open(Path(get_spec().speculative_draft_model_path))
        spec = self.pool.spec
        self.num_drafters = len(self.pool.stacked)
        layers, path = config.num_hidden_layers, self.pool.folder / "config.json"
        if layers != self.num_drafters:  # SGLang's caches have as many layers
            raise ArtifactError(
                f"{path} has {layers} layers for {self.num_drafters} drafters; type"
                f" `drafterforge export format={FORMAT} overwrite=true`"
            )
        self.attention = nn.ModuleList(
            RadixAttention(spec.num_heads, spec.head_dim, spec.head_dim**-0.5, spec.num_key_heads, layer_id=index)
            for index in range(self.num_drafters)
        )
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(1, spec.target_hidden_size)  # some targets look for it
        self.embedding: Tensor | None = None  # the target's, [V, H]
        self.drafters: StackedDrafters | None = None
        self.rows: RowDrafters | None = None  # drafters of the requests in decode passes
        self.choice: Tensor | None = None  # their indices, [B]
        self.outputs: Tensor | None = None  # of the last extend pass, [N, R, H]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Nothing: `set_embed` reads the pool's own files."""

    def set_embed(self, embed: Tensor) -> None:
        """Share the target's embedding, [V or more, H], and load the drafters if they are not."""
        self.embedding = embed.detach()[: self.config.vocab_size]
        if self.drafters is None:
            self.drafters = self.pool.stack(self.embedding)

    def draft_with(self, choice: Tensor) -> None:
        """Draft with one drafter for each request in the next decode passes.  choice: [B]."""
        self.rows, self.choice = RowDrafters(self.drafters, choice), choice

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: Any, input_embeds: Tensor | None = None
    ) -> LogitsProcessorOutput:
        """Logits and hidden states of a decode pass; of an extend pass, `outputs`, which the worker reads."""
        embedded = F.embedding(input_ids, self.embedding)
        hidden = forward_batch.spec_info.hidden_states
        if forward_batch.forward_mode.is_decode():
            out = self.rows.layer(embedded, hidden, positions, self._attend_rows(forward_batch))
            return LogitsProcessorOutput(next_token_logits=self._target_logits(out), hidden_states=out)
        fused = self.drafters.fuse(hidden).expand(self.num_drafters, -1, -1)
        self.outputs = self.drafters.layer(embedded, fused, positions, self._attend_all(forward_batch))
        # SGLang expects a row of each request after a prompt, and all rows after a verification.
        mode = forward_batch.forward_mode
        count = len(input_ids) if mode.is_draft_extend_v2() else forward_batch.batch_size
        hidden = self.outputs[0, :count]
        return LogitsProcessorOutput(next_token_logits=hidden.new_zeros(count, 1), hidden_states=hidden)

    def guesses(self, rows: Tensor) -> Tensor:
        """Tokens [N, M] that the drafters guess next at rows [M] of the last extend pass."""
        best = self.drafters.logits(self.outputs[:, rows]).argmax(dim=-1)
        return self.drafters.token_ids.gather(1, best)

    def _target_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the chosen drafters over the target's vocabulary, [B, V].  hidden: [B, H]."""
        logits = self.rows.logits(hidden)
        lowest = torch.finfo(logits.dtype).min  # of tokens outside a drafter's vocabulary
        spread = logits.new_full((len(logits), self.config.vocab_size), lowest)
        return spread.scatter_(1, self.rows.token_ids.expand_as(logits), logits)

    def _attend_all(self, forward_batch: Any) -> Any:
        """Attention of every drafter over its own cache: of q, k, v [N, R, heads, D], as q."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            indices = range(self.num_drafters)
            return torch.stack([self._attend(index, q[index], k[index], v[index], forward_batch) for index in indices])

        return attend

    def _attend_rows(self, forward_batch: Any) -> Any:
        """Attention of each request over the cache of its drafter: of q, k, v [B, heads, D], as q.

        The choice lies on the device, so all caches are read: to wait for it would cost more.
        """

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = [self._attend(index, q, k, v, forward_batch) for index in range(self.num_drafters)]
            return torch.stack(parts)[self.choice, torch.arange(len(q), device=q.device)]

        return attend

    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, forward_batch: Any) -> Tensor:
        """Attention over the cache of drafter `index`, which first takes the keys and values; [R, heads, D]."""
        return self.attention[index](*(x.flatten(1) for x in (q, k, v)), forward_batch).view_as(q)


EntryClass = PoolLlamaForCausalLMEagle3  # SGLang's registry of models looks for this name
