"""The draft model and the settings that were typed for vLLM: a bundle becomes a pool folder, mistakes end the start.

vLLM turns its arguments into the configuration of all processes in the process that was started: `vllm serve`, or the
program that makes an `LLM`.  With several API servers, each of them repeats it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from drafterforge.assembly.bundles import tokenizer_sha256
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, quote
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE, PoolFolder, find_pool
from drafterforge.interop.vllm.settings import KEY, PoolServing, refuse_v2_settings

METHOD = "eagle3"
USER_ERROR = 2  # exit code, also of vLLM's own parser
DIMENSIONS = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_hidden_layers": "num_layers"}


def install() -> None:
    """Let vLLM take bundles as draft models."""
    EngineArgs.create_speculative_config = with_bundles(EngineArgs.create_speculative_config)
    EngineArgs.create_engine_config = with_one_line(EngineArgs.create_engine_config)


def with_bundles(create: Callable[..., Any]) -> Callable[..., Any]:
    """`create_speculative_config` for pools too."""

    @functools.wraps(create)
    def call(arguments: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
        pool = use_pool(arguments)
        if pool:
            check_target(pool, target_model_config)
        config = create(arguments, target_model_config, target_parallel_config)
        if pool:
            check_settings(pool, arguments.additional_config, config)
        return config

    return call


def with_one_line(create: Callable[..., Any]) -> Callable[..., Any]:
    """`create_engine_config`, whose errors of ours end a server with one line and no traceback."""

    @functools.wraps(create)
    def call(arguments: Any, usage_context: Any = None, *rest: Any, **options: Any) -> Any:
        try:
            config = create(arguments, usage_context, *rest, **options)
            check_runner(config)
            return config
        except DrafterforgeError as error:
            if usage_context != UsageContext.OPENAI_API_SERVER:
                raise
            print(f"drafterforge: {error}", file=sys.stderr)
            raise SystemExit(USER_ERROR) from None

    return call


def use_pool(arguments: Any) -> PoolFolder | None:
    """Replace a bundle in the arguments by its pool folder; returns the pool, None if another draft model is typed."""
    config = arguments.speculative_config or {}
    model, method = arguments.spec_model or config.get("model"), arguments.spec_method or config.get("method")
    pool = find_pool(str(model)) if model else None
    if pool is None:
        return None
    if method not in (None, METHOD):
        raise ConfigError(f"{model} is a pool, which drafts with method {METHOD}, but method={method}; leave it out")
    if arguments.spec_model:
        arguments.spec_model = str(pool.folder)
    else:
        config = config | {"model": str(pool.folder)}
    arguments.speculative_config = config if method else config | {"method": METHOD}
    return pool


def check_target(pool: PoolFolder, served: Any) -> None:
    """ArtifactError if vLLM serves a target of other dimensions or with another tokenizer.  served: its ModelConfig."""
    if served.uses_mrope:
        raise ConfigError(f"{quote(served.model, 200)} has positions of images (M-RoPE); a pool drafts for text only")
    reference, config = pool.record.target, served.hf_text_config
    trained = {name: getattr(reference, key) for name, key in DIMENSIONS.items()}
    difference = [
        f"{name} {getattr(config, name)} instead of {size}"
        for name, size in trained.items()
        if getattr(config, name, size) != size
    ]
    if (
        not difference
        and reference.tokenizer_sha256
        and served_tokenizer(served) not in ("", reference.tokenizer_sha256)
    ):
        difference = ["another tokenizer.json"]
    if difference:
        raise ArtifactError(
            f"{pool.bundle} was made for target {quote(reference.name)}, but vLLM serves {quote(served.model, 200)}, "
            f"which has {', '.join(difference)}; serve that target, or type the path of a bundle for this one"
        )


def served_tokenizer(served: Any) -> str:
    """The sha256 of the tokenizer.json that vLLM reads; empty if there is none."""
    from huggingface_hub import hf_hub_download

    folder = Path(served.tokenizer)
    with suppress(Exception):  # the hub client raises many kinds; vLLM itself reports what it cannot get
        if not folder.is_dir():
            folder = Path(
                hf_hub_download(served.tokenizer, "tokenizer.json", revision=served.tokenizer_revision)
            ).parent
    return tokenizer_sha256(folder)


def check_settings(pool: PoolFolder, additional_config: Any, drafting: Any) -> None:
    """ConfigError if the engine would refuse the settings of a pool.  drafting: vLLM's SpeculativeConfig."""
    serving = PoolServing.open(pool, (additional_config or {}).get(KEY, {}))
    num_lookups = len(serving.lookups) if current_platform.is_cpu() else 0
    depth = drafting.num_speculative_tokens
    serving.selector(len(serving.stacked) + num_lookups, depth, 1, torch.device("cpu"))
    if serving.record:
        if drafting.disable_padded_drafter_batch:
            raise ConfigError("record needs the padded drafter batch; leave out disable_padded_drafter_batch")
        serving.record.make_folder()


def check_runner(config: Any) -> None:
    """ConfigError if a pool would draft in vLLM's V2 runner with settings that it cannot have there."""
    draft = config.speculative_config and config.speculative_config.draft_model_config
    if draft and ARCHITECTURE in (draft.hf_config.architectures or []) and config.use_v2_model_runner:
        refuse_v2_settings(config)
