"""Stubs of what drafting with a pool touches in vLLM's V2 runner, with torch in the place of Triton's kernels.

Names, arguments and the order of calls are those of vLLM 0.32 and 0.33; `test_vllm_contract.py` compares names.
Axes: B requests, R flattened rows, H hidden, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.interop.stub_modules import modules_with


class Metadata(NamedTuple):
    """Of an attention layer: the request of each row, and its position, [R] each; a request of -1 pads the batch."""

    requests: Tensor
    positions: Tensor


@dataclass
class ForwardContext:
    """What attention layers read: metadata by the names of layers."""

    attn_metadata: dict[str, Metadata] = field(default_factory=dict)


CONTEXT = ForwardContext()


class CUDAGraphMode:
    """Modes by name."""

    NONE, FULL = "NONE", "FULL"


@contextmanager
def set_forward_context(attn_metadata: dict[str, Metadata]) -> Iterator[None]:
    """Let attention layers read the metadata."""
    CONTEXT.attn_metadata = attn_metadata
    yield
    CONTEXT.attn_metadata = {}


def replace(config: SimpleNamespace, **values: Any) -> SimpleNamespace:
    """A config with other values."""
    return SimpleNamespace(**(vars(config) | values))


def async_tensor_h2d(data: list, device: Any = None, dtype: Any = None, out: Any = None) -> Tensor:
    """A tensor on the device."""
    return torch.tensor(data, dtype=dtype).to(device)


class Attention(nn.Module):
    """Attention over a cache of `max_num_reqs` texts, and of one more for padding."""

    layers: dict[str, Attention] = {}  # noqa: RUF012 - the compilation config's static_forward_context
    sizes = (0, 0)  # most requests, and most tokens of a text

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        cache_config: Any = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.prefix = (num_heads, num_kv_heads, head_size), scale, prefix
        self.cache: Tensor | None = None
        self.layers[prefix] = self

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[R, heads * D] as the query."""
        requests, positions = CONTEXT.attn_metadata[self.prefix]
        heads, key_heads, width = self.heads
        if self.cache is None:
            texts, length = self.sizes
            self.cache = key.new_zeros(2, texts + 1, length, key_heads, width)
        self.cache[0, requests, positions] = key.unflatten(1, (key_heads, width))
        self.cache[1, requests, positions] = value.unflatten(1, (key_heads, width))
        keys, values = self.cache[:, requests].repeat_interleave(heads // key_heads, dim=3)
        scores = torch.einsum("rhd,rlhd->rhl", query.unflatten(1, (heads, width)), keys) * self.scale
        past = torch.arange(keys.shape[1], device=key.device) <= positions[:, None]
        probs = scores.masked_fill(~past[:, None], -torch.inf).softmax(dim=-1)
        return torch.einsum("rhl,rlhd->rhd", probs, values).flatten(1)


class Eagle3LlamaForCausalLM(nn.Module):
    """The base class of a draft model."""


class InputBuffers:
    """Inputs of the draft model."""

    def __init__(self, max_num_reqs: int, max_num_tokens: int, device: torch.device) -> None:
        self.input_ids = torch.zeros(max_num_tokens, dtype=torch.int32, device=device)
        self.positions = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)
        self.query_start_loc = torch.zeros(max_num_reqs + 1, dtype=torch.int32, device=device)


@dataclass
class InputBatch:
    """The rows that the target processed."""

    num_reqs: int
    num_tokens: int
    num_tokens_after_padding: int
    idx_mapping: Tensor  # [B]
    query_start_loc: Tensor  # [B + 1]
    input_ids: Tensor  # [R]
    positions: Tensor  # [R]
    has_prefill: bool = False


class DraftModelSpeculator:
    """The base class of speculators with a draft model."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config, self.device = vllm_config, device
        self.speculative_config = vllm_config.speculative_config
        self.method = self.speculative_config.method
        self.num_speculative_steps = self.speculative_config.num_speculative_tokens
        self.draft_model_config = self.speculative_config.draft_model_config
        self.max_num_reqs = vllm_config.scheduler_config.max_num_seqs
        self.max_num_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.hidden_size = self.draft_model_config.get_hidden_size()
        self.dtype = vllm_config.model_config.dtype
        self.input_buffers = InputBuffers(self.max_num_reqs, self.max_num_tokens, device)
        self.idx_mapping = torch.zeros(self.max_num_reqs, dtype=torch.int64, device=device)
        shape = (self.max_num_reqs, self.num_speculative_steps)
        self.draft_tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.draft_logits: Tensor | None = None
        self.supports_mm_inputs = False
        self.model: Any = None

    def load_model(self, target_model: nn.Module) -> None:
        """Load the draft model."""
        before = set(Attention.layers)
        self.model = self.load_draft_model(target_model, before)
        self.draft_attn_layer_names = set(Attention.layers) - before

    def sample_draft(
        self,
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        temperature: Tensor | None,
        seeds: Tensor | None,
        draft_step: Tensor | None,
        draft_logits: Tensor | None,
        spec_step_idx: int = 0,
    ) -> Tensor:
        """Sample from the draft model's logits."""
        return self.model.compute_logits(hidden_states).argmax(dim=-1)

    def _copy_request_inputs(self, num_reqs: int, idx_mapping: Tensor, dummy_run: bool = False) -> None:
        if dummy_run:
            self.idx_mapping.fill_(-1)
        else:
            self.idx_mapping[:num_reqs].copy_(idx_mapping)
            self.idx_mapping[num_reqs:].fill_(-1)


class TargetDependentARSpeculator(DraftModelSpeculator):
    """The drafting loop."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.hidden_states = torch.zeros(self.max_num_tokens, self.hidden_size, dtype=self.dtype, device=device)
        self.last_token_indices = torch.zeros(self.max_num_reqs, dtype=torch.int64, device=device)
        self.inputs_embeds: Tensor | None = None
        self.cudagraph_mode = ""
        self.num_captures = 0

    def on_prefill_begin(self, num_reqs: int) -> None:
        """A hook."""

    def on_prefill_end(self, num_reqs: int) -> None:
        """A hook."""

    def on_multi_step_decode_begin(self, num_reqs: int) -> None:
        """A hook."""

    def on_multi_step_decode_end(self, num_reqs: int) -> None:
        """A hook."""

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Keep the mode."""
        self.cudagraph_mode = cudagraph_mode

    def capture(self) -> None:
        """Count calls."""
        self.num_captures += 1

    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: dict[str, Metadata],
        slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor | None,
        aux_hidden_states: list[Tensor],
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Tensor | None,
        seeds: Tensor | None,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Tensor:
        """Drafted tokens, [B, K].  dp_sync_state: rows of a later pass, among all data-parallel ranks."""
        num_reqs, num_tokens = input_batch.num_reqs, input_batch.num_tokens_after_padding
        steps = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        hidden_states = self.model.combine_hidden_states(torch.cat(aux_hidden_states, dim=-1))
        self._copy_request_inputs(num_reqs, input_batch.idx_mapping, dummy_run=dummy_run)
        self._prepare_prefill_inputs(input_batch, num_sampled, num_rejected, last_sampled, next_prefill_tokens)
        self.hidden_states[:num_tokens].copy_(hidden_states)
        self.on_prefill_begin(num_reqs)
        self._prefill(num_reqs, num_tokens, attn_metadata, slot_mappings, num_tokens_across_dp=None)
        self.on_prefill_end(num_reqs)
        if steps <= 1:
            return self.draft_tokens[:num_reqs]
        self.input_buffers.input_ids[:num_reqs] = self.draft_tokens[:num_reqs, 0].int()
        self.input_buffers.positions[:num_reqs] += 1
        self.on_multi_step_decode_begin(num_reqs)
        self._multi_step_decode(num_reqs, max(num_reqs, dp_sync_state or 0), steps)
        self.on_multi_step_decode_end(num_reqs)
        return self.draft_tokens[:num_reqs]

    def _prepare_prefill_inputs(
        self,
        batch: InputBatch,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
    ) -> None:
        """Shift the target's tokens by one and put the next token after them; rows of rejected tokens are stale."""
        count, buffers, numbers = batch.num_reqs, self.input_buffers, batch.idx_mapping
        bounds = batch.query_start_loc.long()
        rows = torch.arange(batch.num_tokens, device=self.device)
        request = torch.bucketize(rows, bounds[1:], right=True)
        last = bounds[1:] - 1 - num_rejected
        following = torch.where(num_sampled > 0, last_sampled[numbers, 0], next_prefill_tokens[0, numbers])
        tokens, places = buffers.input_ids[: len(rows)], buffers.positions[: len(rows)]
        shifted = batch.input_ids[: len(rows)].roll(-1)
        tokens.copy_(torch.where(rows < last[request], shifted, tokens))
        tokens[last] = following.int()
        places.copy_(torch.where(rows <= last[request], batch.positions[: len(rows)], places))
        self.last_token_indices.zero_()
        self.last_token_indices[:count] = last
        buffers.query_start_loc[: count + 1] = batch.query_start_loc
        buffers.query_start_loc[count:] = batch.query_start_loc[-1]

    def _run_model(self, num_tokens: int, attn_metadata: dict[str, Metadata]) -> tuple[Tensor, Tensor]:
        with set_forward_context(attn_metadata):
            return self.model(
                input_ids=self.input_buffers.input_ids[:num_tokens],
                positions=self.input_buffers.positions[:num_tokens],
                hidden_states=self.hidden_states[:num_tokens],
                inputs_embeds=None,
            )

    def _prefill(
        self,
        num_reqs: int,
        num_tokens: int,
        attn_metadata: dict[str, Metadata],
        slot_mappings: dict[str, Tensor] | None,
        num_tokens_across_dp: Tensor | None,
    ) -> None:
        last = self.last_token_indices[:num_reqs]
        positions = self.input_buffers.positions[last]
        last_hidden_states, hidden_states = self._run_model(num_tokens, attn_metadata)
        assert last_hidden_states is hidden_states
        self.draft_tokens[:num_reqs, 0] = self._sample(num_reqs, last_hidden_states[last], positions + 1)
        self.hidden_states[:num_reqs] = hidden_states[last]
        self.input_buffers.positions[:num_reqs] = positions

    def _multi_step_decode(self, num_reqs: int, num_tokens: int, num_speculative_steps: int) -> None:
        for step in range(1, num_speculative_steps):
            requests = torch.nn.functional.pad(self.idx_mapping[:num_reqs], (0, num_tokens - num_reqs), value=-1)
            metadata = Metadata(requests, self.input_buffers.positions[:num_tokens])
            metadata = dict.fromkeys(self.draft_attn_layer_names, metadata)
            self.step = step
            self._generate_draft(
                num_reqs,
                num_tokens,
                metadata,
                None,
                num_tokens_across_dp=None,
                cudagraph_runtime_mode=CUDAGraphMode.NONE,
                num_speculative_steps=num_speculative_steps,
            )

    def _generate_draft(
        self,
        num_reqs: int,
        num_tokens_padded: int,
        attn_metadata: dict[str, Metadata],
        slot_mappings: dict[str, Tensor] | None,
        num_tokens_across_dp: Tensor | None,
        cudagraph_runtime_mode: Any,
        num_speculative_steps: int,
    ) -> None:
        last_hidden_states, hidden_states = self._run_model(num_tokens_padded, attn_metadata)
        tokens = self._sample(num_reqs, last_hidden_states[:num_reqs], self.input_buffers.positions[:num_reqs])
        self.draft_tokens[:num_reqs, self.step] = tokens
        self.input_buffers.input_ids[:num_reqs] = tokens.int()
        self.hidden_states[:num_reqs] = hidden_states[:num_reqs]
        self.input_buffers.positions[:num_reqs] += 1

    def _sample(self, num_reqs: int, hidden_states: Tensor, positions: Tensor) -> Tensor:
        numbers = self.idx_mapping[:num_reqs]
        return self.sample_draft(hidden_states, positions, numbers, None, None, None, self.draft_logits)


class EagleSpeculator(TargetDependentARSpeculator):
    """Loads EAGLE drafters."""

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """The draft model."""
        return load_eagle_model(target_model, self.vllm_config)


def load_eagle_model(target_model: nn.Module, vllm_config: Any) -> nn.Module:
    """The draft model, which shares the target's embedding; vLLM's loader finds no weights in a pool's folder."""
    assert vllm_config.load_config.load_format == "dummy"
    model = vllm_config.model_class(vllm_config=vllm_config)
    assert not should_share(model, "has_own_lm_head", model.lm_head, target_model.lm_head)
    if should_share(model, "has_own_embed_tokens", model.model.embed_tokens, target_model.embed_tokens):
        del model.model.embed_tokens
        model.model.embed_tokens = target_model.embed_tokens
    return model


def should_share(model: nn.Module, flag: str, draft: Any, target: Any) -> bool:
    """Whether the draft model takes a module of the target's."""
    if not getattr(model, flag, False):
        return True
    if draft is None or target is None:
        return False
    return torch.equal(draft.weight, target.weight)


class RequestState:
    """Numbers of requests."""

    def __init__(self, max_num_reqs: int) -> None:
        self.req_id_to_index: dict[str, int] = {}
        self.free_indices = list(range(max_num_reqs))


class GPUModelRunner:
    """Adds and removes requests."""

    def __init__(self, speculator: Any, max_num_reqs: int) -> None:
        self.speculator, self.req_states = speculator, RequestState(max_num_reqs)

    def _remove_request(self, req_id: str) -> None:
        index = self.req_states.req_id_to_index.pop(req_id, None)
        if index is not None:
            self.req_states.free_indices.append(index)

    def finish_requests(self, scheduler_output: Any) -> None:
        """Free the numbers of finished and preempted requests."""
        for req_id in sorted(scheduler_output.finished_req_ids | scheduler_output.preempted_req_ids):
            self._remove_request(req_id)

    def add_requests(self, scheduler_output: Any) -> None:
        """Number requests that begin or go on after a preemption."""
        for request in scheduler_output.scheduled_new_reqs:
            self._remove_request(request.req_id)
            self.req_states.req_id_to_index[request.req_id] = self.req_states.free_indices.pop()


def modules() -> dict[str, ModuleType]:
    """The stubs by the names of vLLM's modules."""
    contents = {
        "vllm": {},
        "vllm.config": {"VllmConfig": SimpleNamespace, "CUDAGraphMode": CUDAGraphMode, "replace": replace},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: 0,
            "get_tensor_model_parallel_world_size": lambda: 1,
            "tensor_model_parallel_all_gather": None,
        },
        "vllm.model_executor.layers.attention": {"Attention": Attention},
        "vllm.model_executor.models.llama_eagle3": {"Eagle3LlamaForCausalLM": Eagle3LlamaForCausalLM},
        "vllm.utils.torch_utils": {"async_tensor_h2d": async_tensor_h2d},
        "vllm.v1.worker.gpu.model_runner": {"GPUModelRunner": GPUModelRunner},
        "vllm.v1.worker.gpu.spec_decode.eagle.speculator": {"EagleSpeculator": EagleSpeculator},
        "vllm.v1.worker.gpu.spec_decode.eagle.utils": {"load_eagle_model": load_eagle_model},
    }
    return modules_with(contents)
