"""Every name of SGLang that the plug-in uses, so that a release which drops one is refused with that name.

Names are read from the source, as `drafterforge.interop.vllm.contract` does: SGLang cannot be imported without a GPU.
"""

from __future__ import annotations

import ast

from drafterforge.interop.vllm.contract import definitions, has_name

SPECULATIVE = "sglang.srt.speculative"
# module -> names that it must define, in the form of the contract with vLLM
USED: dict[str, tuple[str, ...]] = {
    "sglang.srt.plugins.hook_registry": (
        "HookRegistry.register(target, hook, hook_type)",
        "HookType.AROUND",
    ),
    "sglang.srt.models.registry": ("ModelRegistry", "_ModelRegistry.register(package_name, overwrite, strict)"),
    "sglang.srt.runtime_context": ("get_spec", "get_parallel", "get_disagg"),
    "sglang.srt.arg_groups.fields.spec": (
        "Spec.speculative_draft_model_path",
        "Spec.speculative_draft_load_format",
        "Spec.speculative_eagle_topk",
        "Spec.speculative_adaptive",
        "Spec.speculative_use_rejection_sampling",
        "Spec.speculative_draft_window_size",
    ),
    "sglang.srt.arg_groups.fields.parallel": ("Parallel.tp_size", "Parallel.pp_size"),
    "sglang.srt.arg_groups.fields.disagg": ("Disagg.disaggregation_mode",),
    "sglang.srt.configs.model_config": ("ModelConfig.is_multimodal",),
    "sglang.srt.layers.logits_processor": (
        "LogitsProcessorOutput.next_token_logits",
        "LogitsProcessorOutput.hidden_states",
    ),
    "sglang.srt.layers.radix_attention": (
        "RadixAttention.__init__(num_heads, head_dim, scaling, num_kv_heads, layer_id)",
        "RadixAttention.forward(q, k, v, forward_batch)",
    ),
    "sglang.srt.model_executor.forward_batch_info": (
        "ForwardMode.is_decode",
        "ForwardMode.is_draft_extend_v2",
        "ForwardBatch.forward_mode",
        "ForwardBatch.batch_size",
        "ForwardBatch.req_pool_indices",
        "ForwardBatch.spec_info",
    ),
    "sglang.srt.model_executor.model_runner": ("ModelRunner.model", "ModelRunner.dtype"),
    "sglang.srt.managers.tp_worker": ("TpModelWorker.model_config",),
    "sglang.srt.managers.schedule_batch": (
        "ScheduleBatch.reqs",
        "ScheduleBatch.input_ids",
        "ScheduleBatch.seq_lens",
        "ScheduleBatch.extend_lens",
        "ScheduleBatch.req_pool_indices",
        "Req.rid",
        "Req.origin_input_ids",
        "Req.sampling_params",
    ),
    "sglang.srt.managers.utils": (
        "GenerationBatchResult.accept_lens",
        "GenerationBatchResult.new_seq_lens",
        "GenerationBatchResult.next_draft_input",
    ),
    "sglang.srt.sampling.sampling_params": ("SamplingParams.custom_params",),
    "sglang.srt.mem_cache.memory_pool": ("ReqToTokenPool.req_to_token",),
    f"{SPECULATIVE}.spec_info": (
        "SpeculativeAlgorithm.create_worker(self, server_args)",
        "SpeculativeAlgorithm.is_eagle3",
    ),
    f"{SPECULATIVE}.eagle_info": (
        "EagleDraftInput.topk_p",
        "EagleDraftInput.topk_index",
        "EagleDraftInput.hidden_states",
        "EagleDraftExtendInput.hidden_states",
    ),
    f"{SPECULATIVE}.base_spec_worker": (
        "BaseSpecWorker.note_request_finished(rid, natural_stop)",
        "BaseSpecWorker.draft_worker",
    ),
    f"{SPECULATIVE}.eagle_worker_v2": (
        "EagleDraftWorker.__init__(server_args, gpu_id, nccl_port, target_worker)",
        "EagleDraftWorker.alloc_memory_pool(memory_pool_config, req_to_token_pool, token_to_kv_pool_allocator)",
        "EagleDraftWorker.draft_forward(forward_batch)",
        "EagleDraftWorker._draft_extend_for_prefill(batch, target_hidden_states, next_token_ids, mm_input_embeds,"
        " kv_loc_plan)",
        "EagleDraftWorker._draft_extend_for_decode(batch, batch_result, kv_loc_plan)",
        "EagleDraftWorker._capture_cuda_graphs",
        "EagleDraftWorker._resolve_shared_embed_and_head",
        "EagleDraftWorker.device",
        "EagleDraftWorker.draft_runner",
        "EagleDraftWorker.speculative_num_steps",
        "EagleDraftWorker.speculative_num_draft_tokens",
        "EagleDraftWorker.cuda_graph_runner",
        "EagleDraftWorker.cuda_graph_runner_for_draft_extend",
        "EAGLEWorkerV2.__init__(server_args, gpu_id, nccl_port, target_worker)",
    ),
}
# module -> names that the text of a method must mention, such as the methods that the plug-in overrides
MENTIONED: dict[str, dict[str, tuple[str, ...]]] = {
    f"{SPECULATIVE}.eagle_worker_v2": {
        "EAGLEWorkerV2.__init__": ("EagleDraftWorker",),
        "EAGLEWorkerV2.forward_batch_generation": ("draft", "_draft_extend_for_decode", "_forward_prefill_batch"),
        "EAGLEWorkerV2._forward_prefill_batch": ("_draft_extend_for_prefill",),
        "EagleDraftWorker.draft": ("draft_forward",),
        "EagleDraftWorker.draft_forward": ("topk_index", "hidden_states", "hot_token_id"),
        "EagleDraftWorker.init_cuda_graphs": ("_capture_cuda_graphs",),
        "EagleDraftWorker.init_lm_head": ("_resolve_shared_embed_and_head", "set_embed", "hot_token_id"),
    },
    "sglang.srt.models.registry": {"import_model_classes": ("EntryClass",)},
}


def missing_names() -> list[str]:
    """The names that the installed SGLang lacks, as `module.name`, or as `module.name without MENTIONED`."""
    names = [f"{module}.{name}" for module, names in USED.items() for name in names if not has_name(module, name)]
    for module, methods in MENTIONED.items():
        for method, words in methods.items():
            text = words_of(module, method)
            names += [f"{module}.{method} without {word}" for word in words if word not in text]
    return names


def words_of(module: str, name: str) -> set[str]:
    """Names and attributes in the text of a function or method, and its strings; none if there is no such function."""
    nodes: list[ast.AST] = list(definitions(module))
    for part in name.split("."):
        matches = [node for node in nodes if getattr(node, "name", None) == part]
        if not matches:
            return set()
        nodes = list(getattr(matches[-1], "body", []))
    words: set[str] = set()
    for node in ast.walk(matches[-1]):
        value = node.value if isinstance(node, ast.Constant) else getattr(node, "id", getattr(node, "attr", None))
        if isinstance(value, str):
            words.add(value)
    return words
