"""Every name of vLLM that the plug-in uses, so that a release which drops one is refused with that name.

Names are read from the source, without importing vLLM, which takes seconds.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# module -> names that it must define; Class.method, and Class.method(argument, ...) for arguments used by name
USED: dict[str, tuple[str, ...]] = {
    "vllm.model_executor.models.registry": ("ModelRegistry",),
    "vllm.config": (),
    "vllm.config.vllm": ("VllmConfig",),
    "vllm.config.compilation": ("CUDAGraphMode",),
    "vllm.config.speculative": ("SpeculativeConfig",),
    "vllm.distributed.parallel_state": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
    "vllm.distributed.communication_op": ("tensor_model_parallel_all_gather",),
    "vllm.model_executor.layers.attention.attention": (
        "Attention.__init__(num_heads, head_size, scale, num_kv_heads, cache_config, prefix)",
    ),
    "vllm.model_executor.models.llama_eagle3": (
        "Eagle3LlamaForCausalLM.forward(input_ids, positions, hidden_states, inputs_embeds)",
        "Eagle3LlamaForCausalLM.combine_hidden_states(hidden_states)",
    ),
    "vllm.platforms.interface": ("Platform.is_cpu",),
    "vllm.v1.spec_decode.eagle": ("EagleProposer.__init__(vllm_config, device, runner)",),
    "vllm.v1.spec_decode.llm_base_proposer": (
        "SpecDecodeBaseProposer.propose(num_speculative_tokens, target_token_ids, target_positions,"
        " target_hidden_states, next_token_ids, token_indices_to_sample, common_attn_metadata, sampling_metadata)",
        "SpecDecodeBaseProposer._sample_draft_tokens(hidden_states, sampling_metadata)",
        "SpecDecodeBaseProposer.load_model(target_model)",
        "SpecDecodeBaseProposer.initialize_cudagraph_keys(cudagraph_mode)",
    ),
    "vllm.v1.worker.gpu_model_runner": ("EagleProposer", "GPUModelRunner._update_states(scheduler_output)"),
    "vllm.v1.sample.rejection_sampler": (
        "expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)",
    ),
}


def missing_names() -> list[str]:
    """The names in `USED` that the installed vLLM does not have, as `module.name`."""
    return [f"{module}.{name}" for module, names in USED.items() for name in names if not has_name(module, name)]


def has_name(module: str, name: str) -> bool:
    """Whether a module defines or imports a name with these arguments."""
    name, _, arguments = name.partition("(")
    needed = [part.strip() for part in arguments.rstrip(")").split(",") if part.strip()]
    nodes: list[ast.AST] = list(definitions(module))
    for part in name.split("."):
        matches = [node for node in nodes if part in names_of(node)]
        if not matches:
            return False
        nodes = list(getattr(matches[-1], "body", []))
    given = getattr(matches[-1], "args", None)
    if not needed or given is None:
        return not needed
    return set(needed) <= {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


@cache
def definitions(module: str) -> tuple[ast.stmt, ...]:
    """Statements at the top of a module, and in its `if` and `try` blocks; none if there is no such module."""
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
            waiting += [*node.body, *node.orelse]
    return tuple(statements)


def names_of(node: ast.AST) -> list[str]:
    """Names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
