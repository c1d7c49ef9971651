"""Drafts in SGLang with a pool: all drafters read, the selector learns and chooses, the chosen one drafts.

It was written against the source of SGLang 0.5.23 and never run; tests run it with stubs of SGLang's classes, and with
the text of SGLang's drafting loop.

SGLang's own loop stays.  Its extend passes read the committed rows with all drafters; after them this worker judges the
drafters, lets the selector learn, and chooses.  The chosen drafter's token and hidden state go where SGLang's next
drafting begins, and its index into a tensor on the device, which decode passes read by the request's place in SGLang's
request pool.  No cycle waits for the device, as overlap scheduling needs.  The pool's passes run without CUDA graphs.
Axes: N drafters, B requests, R flattened rows, H hidden, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sglang.srt.speculative.eagle_worker_v2 as eagle
import torch
from sglang.srt.runtime_context import get_disagg, get_parallel, get_spec
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.interop.sglang.settings import pool_serving, refuse_settings
from drafterforge.interop.vllm.judging import newest_rows
from drafterforge.interop.vllm.requests import RequestSlots
from drafterforge.interop.vllm.selection import PoolSelection


class PoolDraftWorker(eagle.EagleDraftWorker):
    """Drafts with a pool."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        refuse_settings(get_spec(), get_parallel(), get_disagg(), target_worker.model_config)
        self.serving = pool_serving(Path(get_spec().speculative_draft_model_path))
        self.ended: list[str] = []  # requests that ended since the last cycle
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.model = self.draft_runner.model
        embedding, _ = self._resolve_shared_embed_and_head()
        if embedding.dtype != self.draft_runner.dtype:
            name = str(embedding.dtype).removeprefix("torch.")
            raise ConfigError(f"the target is in {name} and its drafters are not; type --dtype {name}")
        self.model.set_embed(embedding)  # now, as SGLang sizes its caches by the memory that is left

    def alloc_memory_pool(
        self,
        memory_pool_config: Any = None,
        req_to_token_pool: Any = None,
        token_to_kv_pool_allocator: Any = None,
    ) -> None:
        """Allocate caches, and what is learned of requests."""
        super().alloc_memory_pool(memory_pool_config, req_to_token_pool, token_to_kv_pool_allocator)
        size, count = req_to_token_pool.req_to_token.shape[0], len(self.serving.stacked)
        device = torch.device(self.device)
        num_slots = 2 * size  # retracted requests keep their state
        self.requests, self.numbers, self.slots = RequestSlots(num_slots), None, None
        self.selection = PoolSelection(self.serving, count, self.speculative_num_steps, num_slots, device)
        self.choice = torch.zeros(size, dtype=torch.long, device=device)  # by place in the request pool

    def _capture_cuda_graphs(self) -> None:
        """None: a pool's passes run eagerly."""
        self.cuda_graph_runner = self.cuda_graph_runner_for_draft_extend = None

    def draft_forward(self, forward_batch: Any) -> Any:
        """A chain of each request, by its chosen drafter."""
        self.model.draft_with(self.choice[forward_batch.req_pool_indices.long()])
        return super().draft_forward(forward_batch)

    def _draft_extend_for_prefill(
        self,
        batch: Any,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        mm_input_embeds: Tensor | None = None,
        kv_loc_plan: Any = None,
    ) -> Any:
        """Read prompts, or chunks of them, and choose; returns what the next drafting begins with."""
        self._schedule(batch.reqs)
        next_draft = super()._draft_extend_for_prefill(
            batch, target_hidden_states, next_token_ids, mm_input_embeds, kv_loc_plan
        )
        sizes = self._tensor(batch.extend_lens)
        ends = sizes.cumsum(dim=0) - 1
        features = target_hidden_states[ends] if self.selection.advice else None
        self._select(batch, next_draft, ends - sizes + 1, ends, batch.seq_lens, 0, features)
        return next_draft

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, *, kv_loc_plan: Any = None) -> None:
        """Read the tokens of a verification, judge, learn and choose."""
        self._schedule(batch.reqs)
        super()._draft_extend_for_decode(batch, batch_result, kv_loc_plan=kv_loc_plan)
        width, counts = self.speculative_num_draft_tokens, batch_result.accept_lens.long()
        starts = torch.arange(len(counts), device=counts.device) * width
        lengths, depth = batch_result.new_seq_lens, self.speculative_num_steps
        self._select(batch, batch_result.next_draft_input, starts, starts + counts - 1, lengths, depth)

    def _select(
        self,
        batch: Any,
        next_draft: Any,
        starts: Tensor,
        ends: Tensor,
        lengths: Tensor,
        depth: int,
        features: Tensor | None = None,
    ) -> None:
        """Judge the drafters on the rows starts [B] .. ends [B], learn, choose, and begin the next chains.

        lengths: processed tokens of each text, whose newest row holds the token at that position, [B].  depth: drafted
        tokens that were verified.  features: of the target at the rows `ends`, if prompts may have ended, [B, 3H].
        """
        width = self.speculative_num_draft_tokens
        window = newest_rows(starts, ends, width)
        guesses = self.model.guesses(window.rows.flatten()).unflatten(1, window.rows.shape)
        positions = lengths.long()[:, None] - torch.arange(width - 1, -1, -1, device=lengths.device)
        inputs, depths = batch.input_ids[window.rows].long(), torch.full_like(ends, depth)
        choice = self.selection.select(self.slots, window, guesses, inputs, positions, depths, features)
        self.choice.index_copy_(0, batch.req_pool_indices.long(), choice)
        next_draft.topk_index = guesses[:, :, -1].gather(0, choice[None]).T
        next_draft.topk_p = torch.ones_like(next_draft.topk_index, dtype=torch.float32)
        next_draft.hidden_states = self.model.outputs[choice, ends]

    def _schedule(self, batch_requests: Sequence[Any]) -> None:
        """Set the slots [B] of a batch's requests; those that begin start blank, retracted ones go on."""
        if ended := self.requests.end(self.ended):
            self.selection.end(self._tensor(ended))
        self.ended = []
        numbers, begun = self.requests.schedule([request.rid for request in batch_requests])
        if numbers is not self.numbers:  # the same list as long as the batch is the same
            self.numbers, self.slots = numbers, self._tensor(numbers)
        if begun:
            by_name = {request.rid: request for request in batch_requests}
            new = [by_name[name] for name in begun]
            params = [SimpleNamespace(extra_args=request.sampling_params.custom_params) for request in new]
            slots = self._tensor([self.requests.slots[name] for name in begun])
            lengths = self._tensor([len(request.origin_input_ids) for request in new])
            self.selection.begin(slots, lengths, self._tensor(self.selection.hints(params)))

    def _tensor(self, values: Any) -> Tensor:
        """Values on the device, copied without waiting for it."""
        device, tensor = torch.device(self.device), torch.as_tensor(values)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class PoolWorker(eagle.EAGLEWorkerV2):
    """Drafts with a pool and verifies."""

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Free the state of a request in the next cycle: the scheduler calls this beside the running one's stream."""
        super().note_request_finished(rid=rid, natural_stop=natural_stop)
        self.draft_worker.ended.append(rid)


def install() -> None:
    """Let `EAGLEWorkerV2`, which names its draft worker's class, draft with pools."""
    eagle.EagleDraftWorker = PoolDraftWorker
