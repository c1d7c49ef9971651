"""Stubs of what drafting with a pool touches in SGLang, for a CPU.

Names, arguments and the order of calls are those of SGLang 0.5.23; `tests/external/test_sglang.py` compares names, and
runs the same checks with the text of SGLang's own drafting loop.
Axes: B requests, R flattened rows, H hidden, K drafted tokens, P = K + 1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.interop.stub_modules import modules_with
from tests.interop.v2_server import DEPTH, LENGTH, MOST

SETTINGS = SimpleNamespace(spec=None, parallel=None, disagg=None)  # namespaces of SGLang's settings
NUM_SLOTS = 2000  # of tokens in a KV cache


def reset_settings(folder: str, **changes: Any) -> None:
    """Settings of a server that a pool can have, with changes."""
    spec = {
        "speculative_draft_model_path": folder,
        "speculative_draft_load_format": "dummy",
        "speculative_eagle_topk": 1,
        "speculative_num_steps": DEPTH,
        "speculative_num_draft_tokens": DEPTH + 1,
        "speculative_use_rejection_sampling": False,
        "speculative_adaptive": False,
        "speculative_draft_window_size": None,
    }
    parts = {"spec": spec, "parallel": {"tp_size": 1, "pp_size": 1}, "disagg": {"disaggregation_mode": "null"}}
    for name, values in parts.items():
        setattr(SETTINGS, name, SimpleNamespace(**{key: changes.get(key, value) for key, value in values.items()}))


class ForwardMode(Enum):
    """Kinds of passes."""

    EXTEND, DECODE, DRAFT_EXTEND_V2 = range(3)

    def is_idle(self) -> bool:
        return False

    def is_decode(self) -> bool:
        return self is ForwardMode.DECODE

    def is_draft_extend_v2(self) -> bool:
        return self is ForwardMode.DRAFT_EXTEND_V2


@dataclass
class EagleDraftInput:
    """What the next drafting begins with."""

    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    draft_probs: Tensor | None = None
    hidden_states: Tensor | None = None
    bonus_tokens: Tensor | None = None
    num_tokens_per_req: int = -1
    num_tokens_for_logprob_per_req: int = -1
    dsa_topk_indices: Tensor | None = None
    cuda_graph_compatible: bool = True


@dataclass
class EagleDraftExtendInput:
    """Inputs of an extend pass of the draft model."""

    hidden_states: Tensor | None = None
    num_correct_drafts: Tensor | None = None
    num_accept_tokens: Tensor | None = None
    num_tokens_per_req: int = -1
    num_tokens_for_logprob_per_req: int = 1


@dataclass
class ScheduleBatch:
    """A batch of the scheduler."""

    reqs: list[Any]
    req_to_token: Tensor  # slots of the tokens of each place in the request pool
    req_pool_indices: Tensor  # [B]
    seq_lens: Tensor  # [B]
    forward_mode: ForwardMode
    input_ids: Tensor | None = None
    extend_lens: list[int] | None = None
    spec_info: Any = None
    sampling_info: Any = None
    chunked_req: Any = None
    chunked_req_next_prompt_token: int | None = None


@dataclass
class GenerationBatchResult:
    """The outcome of a verification."""

    logits_output: Any
    next_token_ids: Tensor  # [B * P]
    accept_lens: Tensor  # [B]
    new_seq_lens: Tensor  # [B]
    next_draft_input: EagleDraftInput
    prepared_draft_extend_inputs: None = None


class ForwardBatch:
    """A pass of the draft model."""

    def __init__(self, batch: ScheduleBatch, sizes: list[int], starts: Tensor) -> None:
        """sizes: rows of each request, [B].  starts: position of the first one, [B]."""
        self.forward_mode, self.spec_info, self.batch_size = batch.forward_mode, batch.spec_info, len(batch.reqs)
        self.req_pool_indices, self.sampling_info = batch.req_pool_indices, batch.sampling_info
        self.input_ids, self.req_to_token = batch.input_ids, batch.req_to_token
        self.places = batch.req_pool_indices.repeat_interleave(torch.tensor(sizes))
        self.positions = torch.cat(
            [start + torch.arange(size) for start, size in zip(starts.tolist(), sizes, strict=True)]
        )
        self.out_cache_loc = self.req_to_token[self.places, self.positions]
        self.return_logprob, self.is_ready = False, False

    @staticmethod
    def init_new(
        batch: ScheduleBatch,
        model_runner: Any,
        *,
        capture_hidden_mode: Any,
        return_hidden_states_before_norm: bool,
        kv_loc_plan: Any = None,
    ) -> ForwardBatch:
        """The pass that reads prompts."""
        return ForwardBatch(batch, batch.extend_lens, batch.seq_lens - torch.tensor(batch.extend_lens))

    def mark_forward_metadata_ready(self) -> None:
        """Say that the attention is planned."""
        self.is_ready = True


class RadixAttention(nn.Module):
    """Attention of rows over the tokens of their requests, which lie in slots of a cache."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        logit_cap: float = 0.0,
        v_head_dim: int = -1,
        sliding_window_size: int = -1,
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.layer_id = (num_heads, num_kv_heads, head_dim), scaling, layer_id
        self.cache = torch.full((2, NUM_SLOTS, num_kv_heads, head_dim), torch.nan)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, forward_batch: ForwardBatch, save_kv_cache: bool = True):
        """[R, heads * D] as the query."""
        heads, key_heads, width = self.heads
        self.cache = self.cache.to(q.device)
        self.cache[0, forward_batch.out_cache_loc] = k.view(-1, key_heads, width)
        self.cache[1, forward_batch.out_cache_loc] = v.view(-1, key_heads, width)
        length = LENGTH if q.device.type == "meta" else int(forward_batch.positions.max()) + 1
        slots = forward_batch.req_to_token[forward_batch.places, :length]
        keys, values = self.cache[:, slots].repeat_interleave(heads // key_heads, dim=3)
        scores = torch.einsum("rhd,rlhd->rhl", q.view(-1, heads, width), keys) * self.scale
        past = torch.arange(length, device=q.device) <= forward_batch.positions[:, None]
        probs = scores.masked_fill(~past[:, None], -torch.inf).softmax(dim=-1)
        values = values.masked_fill(~past[:, :, None, None], 0.0)  # slots that no token has are NaN
        return torch.einsum("rhl,rlhd->rhd", probs, values).flatten(1)


@dataclass
class LogitsProcessorOutput:
    """What a pass returns."""

    next_token_logits: Tensor | None
    hidden_states: Tensor | None = None


class ModelRunner:
    """Builds and runs a draft model."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        self.model_config = SimpleNamespace(hf_config=config, model_is_mrope=False)
        self.model = ModelRegistry.models[config.architectures[0]](config=config, quant_config=None)
        self.dtype, self.canary_manager = dtype, None
        self.attn_backend = SimpleNamespace(init_forward_metadata=lambda forward_batch: None)

    def forward(self, forward_batch: ForwardBatch) -> SimpleNamespace:
        """A pass."""
        output = self.model.forward(forward_batch.input_ids, forward_batch.positions, forward_batch)
        return SimpleNamespace(logits_output=output)


def prepare_for_draft(
    draft_input: EagleDraftInput,
    req_to_token_pool: Any,
    batch: ScheduleBatch,
    cuda_graph_runner: Any,
    draft_model_runner: Any,
    topk: int,
    num_steps: int,
    *,
    target_translator: Any = None,
    num_draft_tokens: int | None = None,
) -> tuple[ForwardBatch, Any, None]:
    """A pass of one row for each request, with slots for all tokens of the chains."""
    forward_batch = ForwardBatch(batch, [1] * len(batch.reqs), batch.seq_lens)
    steps = batch.seq_lens[:, None] + torch.arange(num_steps)
    forward_batch.out_cache_loc = batch.req_to_token[batch.req_pool_indices[:, None], steps].flatten()
    return forward_batch, cuda_graph_runner and cuda_graph_runner.can_run_graph(forward_batch), None


def prepare_for_draft_extend(
    draft_extend_input: EagleDraftExtendInput,
    batch: ScheduleBatch,
    predict: Tensor,
    num_draft_tokens: int,
    draft_model_runner: Any,
    cuda_graph_runner: Any,
    *,
    return_hidden_states_before_norm: bool,
    kv_loc_plan: Any = None,
) -> ForwardBatch:
    """The pass that reads the tokens of a verification."""
    batch.spec_info, batch.input_ids = draft_extend_input, predict
    batch.forward_mode = ForwardMode.DRAFT_EXTEND_V2
    return ForwardBatch(batch, [num_draft_tokens] * len(batch.reqs), batch.seq_lens)


class EagleDraftWorker:
    """Runs the draft model."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        spec = SETTINGS.spec
        self.device, self.topk = server_args.device, spec.speculative_eagle_topk
        self.speculative_num_steps = spec.speculative_num_steps
        self.speculative_num_draft_tokens = spec.speculative_num_draft_tokens
        self.target_worker, self.speculative_algorithm = target_worker, SpeculativeAlgorithm.EAGLE3
        self.draft_runner = ModelRunner(server_args.draft_config, server_args.dtype)
        self.is_graph_captured = False

    def alloc_memory_pool(
        self, memory_pool_config: Any = None, req_to_token_pool: Any = None, token_to_kv_pool_allocator: Any = None
    ) -> None:
        """Share the target's embedding."""
        self.req_to_token_pool = req_to_token_pool
        self.init_lm_head()

    def init_lm_head(self) -> None:
        embed, _ = self._resolve_shared_embed_and_head()
        self.draft_runner.model.set_embed(embed)
        self.hot_token_id = self.draft_runner.model.hot_token_id

    def _resolve_shared_embed_and_head(self) -> tuple[Tensor, None]:
        return self.target_worker.embedding, None

    def init_cuda_graphs(self) -> None:
        """Capture graphs."""
        self._capture_cuda_graphs()

    def _capture_cuda_graphs(self) -> None:
        self.is_graph_captured = True

    def draft(self, batch: ScheduleBatch) -> SimpleNamespace:
        """Chains, `draft_token` [B, K]."""
        forward_batch, _, _ = prepare_for_draft(
            batch.spec_info,
            self.req_to_token_pool,
            batch,
            self.cuda_graph_runner,
            self.draft_runner,
            self.topk,
            self.speculative_num_steps,
        )
        return SimpleNamespace(draft_token=self.draft_forward(forward_batch)[2])

    def draft_forward(self, forward_batch: ForwardBatch) -> tuple[Any, Any, Tensor, Any]:
        """Draft chains."""
        info, steps = forward_batch.spec_info, self.speculative_num_steps
        slots = forward_batch.out_cache_loc.view(-1, steps).T
        drafted, hidden = [info.topk_index], info.hidden_states
        for step in range(steps - 1):
            forward_batch.input_ids, forward_batch.out_cache_loc = drafted[-1].flatten(), slots[step]
            info.hidden_states = hidden
            output = self.draft_runner.forward(forward_batch).logits_output
            drafted.append(output.next_token_logits.argmax(dim=-1, keepdim=True))
            forward_batch.positions.add_(1)
            hidden = output.hidden_states
        return None, None, torch.cat(drafted, dim=1), None

    def _draft_extend_for_prefill(
        self,
        batch: ScheduleBatch,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        mm_input_embeds: Tensor | None = None,
        kv_loc_plan: Any = None,
    ) -> EagleDraftInput:
        """Read prompts, whose tokens are shifted by one."""
        tails = next_token_ids.clone()
        if batch.chunked_req_next_prompt_token is not None:
            tails[batch.reqs.index(batch.chunked_req)] = batch.chunked_req_next_prompt_token
        parts = batch.input_ids.split(batch.extend_lens)
        batch.input_ids = torch.cat([torch.cat((part[1:], tails[index, None])) for index, part in enumerate(parts)])
        batch.spec_info = EagleDraftExtendInput(target_hidden_states)
        forward_batch = ForwardBatch.init_new(
            batch, self.draft_runner, capture_hidden_mode="LAST", return_hidden_states_before_norm=False
        )
        output = self.draft_runner.forward(forward_batch).logits_output
        assert len(output.next_token_logits) == len(output.hidden_states) == len(batch.reqs)
        topk_p, topk_index = output.next_token_logits.softmax(dim=-1).max(dim=-1, keepdim=True)
        return EagleDraftInput(topk_p, topk_index, None, output.hidden_states, next_token_ids)

    def _draft_extend_for_decode(
        self, batch: ScheduleBatch, batch_result: GenerationBatchResult, *, kv_loc_plan: Any = None
    ) -> None:
        """Read the tokens of a verification."""
        width, counts = self.speculative_num_draft_tokens, batch_result.accept_lens
        select_index = torch.arange(0, len(counts) * width, width, device=counts.device) + counts - 1
        info = EagleDraftExtendInput(batch_result.logits_output.hidden_states)
        forward_batch = prepare_for_draft_extend(
            info,
            batch,
            batch_result.next_token_ids.long(),
            width,
            self.draft_runner,
            self.cuda_graph_runner_for_draft_extend,
            return_hidden_states_before_norm=False,
        )
        output = self.draft_runner.forward(forward_batch).logits_output
        assert len(output.next_token_logits) == len(output.hidden_states) == len(batch.input_ids)
        following = batch_result.next_draft_input
        following.topk_index = output.next_token_logits[select_index].argmax(dim=-1, keepdim=True)
        following.topk_p = torch.ones_like(following.topk_index, dtype=torch.float32)
        following.hidden_states = output.hidden_states[select_index]


class EAGLEWorkerV2:
    """Drafts and verifies."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        module = importlib.import_module("sglang.srt.speculative.eagle_worker_v2")
        self._draft_worker = module.EagleDraftWorker(server_args, gpu_id, nccl_port, target_worker)

    @property
    def draft_worker(self) -> Any:
        return self._draft_worker

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """A hook."""


class SpeculativeAlgorithm(Enum):
    """Algorithms."""

    EAGLE, EAGLE3 = range(2)

    def is_eagle3(self) -> bool:
        return self is SpeculativeAlgorithm.EAGLE3

    def is_standalone(self) -> bool:
        return False

    def create_worker(self, server_args: Any) -> type:
        """The class of the worker."""
        return EAGLEWorkerV2


class ModelRegistry:
    """Classes of models by their names."""

    models: dict[str, type] = {}  # noqa: RUF012

    @classmethod
    def register(cls, package_name: str, overwrite: bool = False, strict: bool = False) -> None:
        """Add the models of a package."""
        entry = importlib.import_module(f"{package_name}.model").EntryClass
        cls.models[entry.__name__] = entry


class HookType(Enum):
    """Kinds of hooks."""

    AROUND = "around"


class HookRegistry:
    """Hooks by their targets."""

    hooks: dict[str, tuple[Callable, HookType]] = {}  # noqa: RUF012

    @classmethod
    def register(cls, target: str, hook: Callable, hook_type: HookType) -> None:
        """Add a hook."""
        cls.hooks[target] = hook, hook_type


class RequestPool:
    """Indices of requests, and slots of their tokens."""

    def __init__(self) -> None:
        self.req_to_token = torch.zeros(MOST + 1, LENGTH + DEPTH + 1, dtype=torch.long)
        self.free = list(range(1, MOST + 1))
        self.num_used = 1  # slot 0 is for padding

    def add(self, shared: Tensor) -> int:
        """The index of a request whose first tokens lie in `shared` slots."""
        index, width = self.free.pop(0), self.req_to_token.shape[1]
        new = torch.arange(self.num_used, self.num_used + width - len(shared))
        self.req_to_token[index] = torch.cat((shared, new))
        self.num_used += len(new)
        return index


def modules(draft_worker: type) -> dict[str, ModuleType]:
    """The stubs by the names of SGLang's modules."""
    speculative = "sglang.srt.speculative"
    contents = {
        "sglang.srt.runtime_context": {
            "get_spec": lambda: SETTINGS.spec,
            "get_parallel": lambda: SETTINGS.parallel,
            "get_disagg": lambda: SETTINGS.disagg,
        },
        "sglang.srt.layers.logits_processor": {"LogitsProcessorOutput": LogitsProcessorOutput},
        "sglang.srt.layers.radix_attention": {"RadixAttention": RadixAttention},
        "sglang.srt.models.registry": {"ModelRegistry": ModelRegistry},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": HookRegistry, "HookType": HookType},
        f"{speculative}.spec_info": {"SpeculativeAlgorithm": SpeculativeAlgorithm},
        f"{speculative}.eagle_worker_v2": {"EagleDraftWorker": draft_worker, "EAGLEWorkerV2": EAGLEWorkerV2},
    }
    return modules_with(contents)
