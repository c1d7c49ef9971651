"""Drafts in vLLM's V2 runner with a pool, as `proposer` does in V1.  Not run on a GPU.

It was written against the source of vLLM 0.32 and 0.33.  Tests run it with stubs of vLLM's classes, and in vLLM 0.32's
V2 runner on a CPU, where Triton's interpreter runs the kernels.

vLLM's own drafting loop stays.  Its draft prefill reads the committed rows of a cycle with all drafters; vLLM builds
metadata and slots for all attention layers that have a KV cache, so for those of all drafters.  Sampling from it judges
the drafters, lets the selector learn, and chooses; later passes draft with the choice.

The pool's passes run eagerly, also where the target's are CUDA graphs.  The choice lies in a buffer on the device that
later passes read by index, so that these passes could be captured; nobody has tried that on a GPU.

vLLM numbers its requests.  `slots` maps such a number to a slot of what was learned, because vLLM frees the number of a
preempted request, which must keep its state.
Axes: N drafters, B requests, R flattened rows, H hidden of the target, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.config import CUDAGraphMode, VllmConfig, replace
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model

from drafterforge.interop.vllm.judging import newest_rows
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
from drafterforge.interop.vllm.requests import RequestSlots
from drafterforge.interop.vllm.selection import PoolSelection
from drafterforge.interop.vllm.settings import PoolServing, refuse_v2_settings


class PoolSpeculator(EagleSpeculator):
    """Replaces `EagleSpeculator` in vLLM; for drafters that are no pool it is the same."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.is_pool = ARCHITECTURE in (self.draft_model_config.hf_config.architectures or [])
        if not self.is_pool:
            return
        refuse_v2_settings(vllm_config)
        serving = PoolServing.of(vllm_config)
        count = len(serving.stacked)  # drafters that look up text need the host
        self.hidden_size *= count
        self.hidden_states = torch.zeros((self.max_num_tokens, self.hidden_size), dtype=self.dtype, device=device)
        num_slots = 2 * self.max_num_reqs  # preempted requests keep their state
        self.requests = RequestSlots(num_slots)
        self.selection = PoolSelection(serving, count, self.num_speculative_steps, num_slots, device)
        if get_tensor_model_parallel_rank():
            self.selection.meter = None  # the first rank counts for all
        self.slots = torch.full((self.max_num_reqs + 1,), num_slots, device=device)  # number -1 is that of padding
        self.choice = torch.zeros(self.max_num_reqs, dtype=torch.long, device=device)  # drafter of each row
        self.is_reading = False  # whether the pass is a draft prefill
        self.prompt_features: list[Tensor] | None = None  # of the target at all rows, if a prompt is read, 3 of [R, H]

    def load_draft_model(self, target_model: torch.nn.Module, target_attn_layer_names: set[str]) -> torch.nn.Module:
        """The draft model; a pool's folder has no weights for vLLM's loader."""
        if not self.is_pool:
            return super().load_draft_model(target_model, target_attn_layer_names)
        without_weights = replace(self.vllm_config.load_config, load_format="dummy")
        return load_eagle_model(target_model, replace(self.vllm_config, load_config=without_weights))

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft model; a pool's drafters are read once they share the target's embedding."""
        super().load_model(target_model)
        if self.is_pool:
            self.model.load_drafters()
            self.supports_mm_inputs, self.inputs_embeds = False, None  # drafters read text

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """A pool's passes run eagerly."""
        super().init_cudagraph_manager(CUDAGraphMode.NONE if self.is_pool else cudagraph_mode)

    def capture(self) -> None:
        """Capture the graphs of drafters that are no pool."""
        if not self.is_pool:
            super().capture()

    def propose(
        self,
        input_batch: Any,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """Drafted tokens, [B, K]."""
        if self.is_pool:
            has_advice = self.selection.advice is not None and input_batch.has_prefill
            self.prompt_features = aux_hidden_states if has_advice else None
        return super().propose(
            input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, *rest, **options
        )

    def on_prefill_begin(self, num_reqs: int) -> None:
        """Let all drafters read the rows of the next pass."""
        super().on_prefill_begin(num_reqs)
        if self.is_pool:
            self.model.read()
            self.is_reading = True

    def _generate_draft(self, num_reqs: int, num_tokens_padded: int, *rest: Any, **options: Any) -> None:
        """A later pass, of one row for each request and padding."""
        if self.is_pool and self.model.choice is None:
            self.model.draft_with(self.choice[:num_tokens_padded])
        super()._generate_draft(num_reqs, num_tokens_padded, *rest, **options)

    def sample_draft(
        self,
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """The next drafted token of each request, [B]; a pool's are greedy.

        idx_mapping: vLLM's numbers of the requests, [B]; -1: padding.
        """
        if not self.is_pool:
            return super().sample_draft(hidden_states, sample_src_positions, idx_mapping, *rest, **options)
        if self.is_reading:
            self.is_reading = False
            return self._select(idx_mapping)
        count = len(hidden_states)
        if padding := len(self.model.choice) - count:  # other data-parallel ranks have more requests
            hidden_states = F.pad(hidden_states, (0, 0, 0, padding))
        return self.model.next_tokens(hidden_states)[:count]

    def _select(self, idx_mapping: Tensor) -> Tensor:
        """Judge the drafters, learn and choose; returns the first drafted token of each request, [B]."""
        count, buffers = len(idx_mapping), self.input_buffers
        bounds = buffers.query_start_loc[: count + 1].long()
        ends, depth = self.last_token_indices[:count], self.num_speculative_steps
        depths = (bounds[1:] - bounds[:-1] - 1).clamp(max=depth)
        window = newest_rows(bounds[:-1], ends, depth + 1)
        guesses = self.model.guesses(window.rows.flatten())[0].unflatten(1, window.rows.shape)
        inputs, positions = buffers.input_ids[window.rows].long(), buffers.positions[window.rows] + 1
        parts, slots = self.prompt_features, self.slots[idx_mapping]
        features = None if parts is None else torch.cat([part[ends] for part in parts], dim=1)
        choice = self.selection.select(slots, window, guesses, inputs, positions, depths, features)
        self.choice[:count] = choice
        return guesses[:, :, -1].gather(0, choice[None])[0]

    def begin_requests(self, scheduler_output: Any, req_states: Any) -> None:
        """Give the requests that vLLM added slots; those that begin start blank, preempted ones go on."""
        added = {request.req_id: request for request in scheduler_output.scheduled_new_reqs}
        if not self.is_pool or not added:
            return
        names, numbers = list(req_states.req_id_to_index), list(req_states.req_id_to_index.values())
        slots, begun = self.requests.schedule(names)
        self.slots.index_copy_(0, self._tensor(numbers), self._tensor(slots))
        if begun:
            lengths = [added[name].prompt_len for name in begun]
            hints = self.selection.hints([added[name].sampling_params for name in begun])
            new = [self.requests.slots[name] for name in begun]
            after_idle = len(begun) == len(self.requests.slots)
            self.selection.begin(self._tensor(new), self._tensor(lengths), self._tensor(hints), after_idle)

    def end_requests(self, scheduler_output: Any) -> None:
        """Free the state of finished requests, on every rank in the same order."""
        if self.is_pool and (ended := self.requests.end(sorted(scheduler_output.finished_req_ids))):
            self.selection.end(self._tensor(ended))

    def _tensor(self, values: list[Any]) -> Tensor:
        return async_tensor_h2d(values, device=self.device)


def install() -> None:
    """Let vLLM's V2 runner draft with pools."""
    import vllm.v1.worker.gpu.spec_decode.eagle.speculator as eagle
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    eagle.EagleSpeculator = PoolSpeculator
    GPUModelRunner.add_requests = follow(GPUModelRunner.add_requests, began)
    GPUModelRunner.finish_requests = follow(GPUModelRunner.finish_requests, finished)


def follow(method: Callable[..., Any], report: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """A method of the runner that reports to a pool's speculator after each call."""

    @functools.wraps(method)
    def call(runner: Any, scheduler_output: Any) -> Any:
        result = method(runner, scheduler_output)
        if isinstance(runner.speculator, PoolSpeculator):  # None on ranks that do not draft
            report(runner, scheduler_output)
        return result

    return call


def began(runner: Any, scheduler_output: Any) -> None:
    """Report the requests that vLLM added."""
    runner.speculator.begin_requests(scheduler_output, runner.req_states)


def finished(runner: Any, scheduler_output: Any) -> None:
    """Report the requests that ended."""
    runner.speculator.end_requests(scheduler_output)
