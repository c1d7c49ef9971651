"""Every name of vLLM that the plug-in uses, so that a release which drops one is refused with that name.

Names are read from the source, without importing vLLM, which takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# module -> names that it must define; Class.method, Class.attribute, and Class.method(argument, ...) for arguments used
# by name
USED: dict[str, tuple[str, ...]] = {
    "vllm.engine.arg_utils": (
        "EngineArgs.create_engine_config(usage_context)",
        "EngineArgs.create_speculative_config(target_model_config, target_parallel_config)",
        "EngineArgs.speculative_config",
        "EngineArgs.spec_method",
        "EngineArgs.spec_model",
        "EngineArgs.additional_config",
    ),
    "vllm.usage.usage_lib": ("UsageContext.OPENAI_API_SERVER",),
    "vllm.config.model": (
        "ModelConfig.model",
        "ModelConfig.hf_text_config",
        "ModelConfig.tokenizer",
        "ModelConfig.tokenizer_revision",
        "ModelConfig.uses_mrope",
        "ModelConfig.get_total_num_hidden_layers",
    ),
    "vllm.model_executor.models.registry": ("ModelRegistry",),
    "vllm.config.utils": ("replace",),
    "vllm.config.load": ("LoadConfig.load_format",),
    "vllm.compilation.backends": ("set_model_tag",),
    "vllm.model_executor.model_loader": ("get_model(vllm_config, model_config, load_config)",),
    "vllm.config.vllm": (
        "VllmConfig.additional_config",
        "VllmConfig.speculative_config",
        "VllmConfig.use_v2_model_runner",
    ),
    "vllm.config.parallel": ("ParallelConfig.data_parallel_size",),
    "vllm.config.compilation": ("CUDAGraphMode",),
    "vllm.config.speculative": (
        "SpeculativeConfig.num_speculative_tokens",
        "SpeculativeConfig.disable_padded_drafter_batch",
        "SpeculativeConfig.draft_model_config",
    ),
    "vllm.distributed.parallel_state": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
    "vllm.distributed.communication_op": ("tensor_model_parallel_all_gather",),
    "vllm.model_executor.layers.attention.attention": (
        "Attention.__init__(num_heads, head_size, scale, num_kv_heads, cache_config, prefix)",
        "Attention.impl",
        "Attention.kv_cache",
    ),
    "vllm.model_executor.models.llama_eagle3": (
        "Eagle3LlamaForCausalLM.forward(input_ids, positions, hidden_states, inputs_embeds)",
        "Eagle3LlamaForCausalLM.combine_hidden_states(hidden_states)",
    ),
    "vllm.lora.layers.vocab_parallel_embedding": ("VocabParallelEmbeddingWithLoRA.base_layer",),
    "vllm.v1.core.sched.output": ("SchedulerOutput.finished_req_ids",),
    "vllm.sampling_params": (
        "SamplingParams.extra_args",
        "SamplingParams.max_tokens",
        "SamplingParams.all_stop_token_ids",
    ),
    "vllm.platforms.interface": ("Platform.is_cpu",),
    "vllm.v1.attention.backend": tuple(
        f"CommonAttentionMetadata.{name}"
        for name in (
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
            "num_reqs",
            "num_actual_tokens",
            "max_query_len",
            "max_seq_len",
            "block_table_tensor",
            "slot_mapping",
        )
    ),
    "vllm.v1.attention.backends.cpu_attn": (
        "CPUAttentionBackendImpl.do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)",
    ),
    "vllm.v1.spec_decode.eagle": ("EagleProposer.__init__(vllm_config, device, runner)",),
    "vllm.v1.spec_decode.llm_base_proposer": (
        "SpecDecodeBaseProposer.propose(num_speculative_tokens, target_token_ids, target_positions,"
        " target_hidden_states, next_token_ids, token_indices_to_sample, common_attn_metadata, sampling_metadata)",
        "SpecDecodeBaseProposer._sample_draft_tokens(hidden_states, sampling_metadata)",
        "SpecDecodeBaseProposer.load_model(target_model)",
        "SpecDecodeBaseProposer.initialize_cudagraph_keys(cudagraph_mode)",
        "SpecDecodeBaseProposer._get_model",
        "SpecDecodeBaseProposer._create_draft_vllm_config",
        "SpecDecodeBaseProposer.hidden_size",
        "SpecDecodeBaseProposer.hidden_states",
        "SpecDecodeBaseProposer.block_size",
        "SpecDecodeBaseProposer.dtype",
        "SpecDecodeBaseProposer.draft_model_config",
        "SpecDecodeBaseProposer.speculative_config",
        "SpecDecodeBaseProposer.max_model_len",
        "SpecDecodeBaseProposer.max_batch_size",
        "SpecDecodeBaseProposer.max_num_tokens",
        "SpecDecodeBaseProposer.num_speculative_tokens",
    ),
    "vllm.v1.worker.gpu_model_runner": (
        "EagleProposer",
        "GPUModelRunner._update_states(scheduler_output)",
        "GPUModelRunner.propose_draft_token_ids(scheduler_output, hidden_states)",
        "GPUModelRunner.input_batch",
        "GPUModelRunner.requests",
        "GPUModelRunner.use_async_scheduling",
    ),
    "vllm.v1.worker.gpu_input_batch": (
        "InputBatch.req_ids",
        "InputBatch.num_prompt_tokens",
        "InputBatch.num_computed_tokens_cpu",
        "InputBatch.token_ids_cpu",
        "CachedRequestState.lora_request",
        "CachedRequestState.sampling_params",
        "CachedRequestState.prompt_token_ids",
    ),
    "vllm.v1.sample.rejection_sampler": (
        "expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)",
    ),
    "vllm.utils.torch_utils": ("async_tensor_h2d(data, device)",),
    "vllm.triton_utils": ("HAS_TRITON",),
}
# The same, of the V2 runner, which vLLM uses only where Triton is installed.
SPECULATORS = "vllm.v1.worker.gpu.spec_decode"
USED_V2: dict[str, tuple[str, ...]] = {
    "vllm.config.speculative": (
        "SpeculativeConfig.draft_sample_method",
        "SpeculativeConfig.enable_adaptive_verification",
    ),
    "vllm.config.parallel": ("ParallelConfig.prefill_context_parallel_size",),
    "vllm.v1.core.sched.output": (
        "NewRequestData.req_id",
        "NewRequestData.prompt_len",
        "NewRequestData.sampling_params",
        "SchedulerOutput.scheduled_new_reqs",
        "SchedulerOutput.finished_req_ids",
    ),
    "vllm.v1.worker.gpu.states": ("RequestState.req_id_to_index",),
    "vllm.v1.worker.gpu.input_batch": (
        "InputBuffers.input_ids",
        "InputBuffers.positions",
        "InputBuffers.query_start_loc",
        "InputBatch.has_prefill",
    ),
    "vllm.v1.worker.gpu.model_runner": (
        "GPUModelRunner.speculator",
        "GPUModelRunner.req_states",
        "GPUModelRunner.add_requests(scheduler_output)",
        "GPUModelRunner.finish_requests(scheduler_output)",
    ),
    f"{SPECULATORS}.speculator": (
        "DraftModelSpeculator.__init__(vllm_config, device)",
        "DraftModelSpeculator.load_model(target_model)",
        "DraftModelSpeculator.load_draft_model(target_model, target_attn_layer_names)",
        "DraftModelSpeculator.model",
        "DraftModelSpeculator.draft_model_config",
        "DraftModelSpeculator.num_speculative_steps",
        "DraftModelSpeculator.max_num_reqs",
        "DraftModelSpeculator.max_num_tokens",
        "DraftModelSpeculator.hidden_size",
        "DraftModelSpeculator.dtype",
        "DraftModelSpeculator.input_buffers",
        "DraftModelSpeculator.idx_mapping",
        "DraftModelSpeculator.supports_mm_inputs",
        "DraftModelSpeculator.sample_draft(hidden_states, sample_src_positions, idx_mapping)",
    ),
    f"{SPECULATORS}.target_dependent_ar.speculator": (
        "TargetDependentARSpeculator.hidden_states",
        "TargetDependentARSpeculator.inputs_embeds",
        "TargetDependentARSpeculator.last_token_indices",
        "TargetDependentARSpeculator.init_cudagraph_manager(cudagraph_mode)",
        "TargetDependentARSpeculator.capture",
        "TargetDependentARSpeculator.propose(input_batch, attn_metadata, slot_mappings, last_hidden_states,"
        " aux_hidden_states)",
        "TargetDependentARSpeculator.on_prefill_begin(num_reqs)",
        "TargetDependentARSpeculator._generate_draft(num_reqs, num_tokens_padded)",
    ),
    f"{SPECULATORS}.eagle.speculator": ("EagleSpeculator",),
    f"{SPECULATORS}.eagle.utils": ("load_eagle_model(target_model, vllm_config)",),
}
# Of streams, see `streaming` and `extraction`.
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
USED_STREAMING: dict[str, tuple[str, ...]] = {
    f"{CONNECTORS}.base": ("KVConnectorMetadata", "KVConnectorBase_V1.has_connector_metadata"),
    f"{CONNECTORS}.example_hidden_states_connector": (
        "extract_from_kv_cache(kv_cache, slot_mapping, num_tokens)",
        "ExampleHiddenStatesConnector.__init__(vllm_config, role, kv_cache_config)",
        "ExampleHiddenStatesConnector.register_kv_caches(kv_caches)",
        "ExampleHiddenStatesConnector.build_connector_meta(scheduler_output)",
        "ExampleHiddenStatesConnector.request_finished(request, block_ids)",
        "ExampleHiddenStatesConnector.request_finished_all_groups",
        "ExampleHiddenStatesConnector.get_finished(finished_req_ids)",
        "ExampleHiddenStatesConnector.get_finished_count",
        "ExampleHiddenStatesConnector.wait_for_save",
        "ExampleHiddenStatesConnector._kv_cache",
        "ExampleHiddenStatesConnector._block_size",
        "ExampleHiddenStatesConnector._is_tp_rank_zero",
    ),
    "vllm.v1.request": (
        "RequestStatus.FINISHED_STOPPED",
        "RequestStatus.FINISHED_LENGTH_CAPPED",
        "Request.all_token_ids",
        "Request.prompt_token_ids",
        "Request.kv_transfer_params",
        "Request.lora_request",
        "Request.mm_features",
    ),
    "vllm.v1.engine.llm_engine": ("LLMEngine.add_request(request_id, prompt, params)", "LLMEngine.step"),
    "vllm.entrypoints.llm": ("LLM.llm_engine",),
}


def missing_names() -> list[str]:
    """The names in `USED`, and in `USED_V2` if that runner can run, that the installed vLLM lacks, as `module.name`."""
    return missing_of([*USED.items(), *(USED_V2.items() if find_spec("triton") else ())])


def missing_of(used: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Those of these names that the installed vLLM lacks, as `module.name`."""
    return [f"{module}.{name}" for module, names in used for name in names if not has_name(module, name)]


def has_name(module: str, name: str) -> bool:
    """Whether a module defines or imports a name with these arguments."""
    name, _, arguments = name.partition("(")
    needed = [part.strip() for part in arguments.rstrip(")").split(",") if part.strip()]
    nodes: list[ast.AST] = list(definitions(module))
    for part in name.split("."):
        matches = [node for node in nodes if part in names_of(node)]
        if not matches:
            return False
        nodes = [*getattr(matches[-1], "body", []), *attributes_of(matches[-1])]
    signature = getattr(matches[-1], "args", None)
    if not needed or signature is None:
        return not needed
    parts = (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
    return set(needed) <= {argument.arg for argument in parts}


@cache
def definitions(module: str) -> tuple[ast.stmt, ...]:
    """Statements at the top of a module, and in its `if` and `try` blocks; none if there is no such module.

    Imports for type checkers are left out: they do not define a name when the module runs.
    """
    try:
        root = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        root = None
    if root is None or not root.submodule_search_locations:
        return ()
    path = Path(next(iter(root.submodule_search_locations)), *module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return ()
    statements, waiting = [], list(ast.parse(file.read_text()).body)
    while waiting:
        node = waiting.pop(0)
        statements.append(node)
        if isinstance(node, ast.If | ast.Try):
            is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            waiting += node.orelse if is_typing else [*node.body, *node.orelse]
    return tuple(statements)


def attributes_of(node: ast.AST) -> list[ast.stmt]:
    """Assignments to attributes of `self` in the methods of a class."""
    methods = [part for part in getattr(node, "body", []) if isinstance(part, ast.FunctionDef)]
    statements = [part for method in methods for part in ast.walk(method) if isinstance(part, ast.stmt)]
    return [part for part in statements if any(is_attribute(target) for target in targets_of(part))]


def names_of(node: ast.AST) -> list[str]:
    """Names that a statement defines, also as attributes of `self`."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    names = [target.id for target in targets_of(node) if isinstance(target, ast.Name)]
    return names + [target.attr for target in targets_of(node) if is_attribute(target)]


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def is_attribute(node: ast.expr) -> bool:
    """Whether an expression is an attribute of `self`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
