"""The plug-in that SGLang finds by its entry point `sglang.srt.plugins` and calls in every process.

It was written against the source of SGLang 0.5.23 and never run.  Users serve a pool as any EAGLE-3 drafter:

sglang serve --model-path MODEL --dtype bfloat16 --speculative-algorithm EAGLE3 --speculative-draft-model-path FOLDER
    --speculative-draft-load-format dummy --speculative-num-steps 3 --speculative-eagle-topk 1
    --speculative-num-draft-tokens 4

`SpeculativeAlgorithm.register` does not serve here: in 0.5.23 the scheduler asks its algorithm for
`create_future_map` and more that a registered one lacks, and other code compares the name with EAGLE3.  So the pool
is EAGLE3, and a hook on `create_worker` replaces the worker where the drafter's folder is a pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

logger = logging.getLogger("drafterforge.sglang")
RELEASE = "0.5.23"  # whose source was read
HOOKED = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"


def register() -> None:
    """Let SGLang draft with pools; a release that does not fit is left alone, with a line that says why."""
    reason = why_not()
    if reason:
        logger.warning("drafterforge cannot draft in this SGLang: %s", reason)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HOOKED, create_worker, HookType.AROUND)


def create_worker(original: Callable[[Any, Any], Any], algorithm: Any, server_args: Any) -> Any:
    """The class of the worker that drafts: ours for a pool, else SGLang's."""
    from sglang.srt.runtime_context import get_spec

    from drafterforge.interop.sglang.settings import require_eagle3
    from drafterforge.interop.vllm.pool_folder import is_pool_folder

    path = get_spec().speculative_draft_model_path
    if not path or not is_pool_folder(Path(path)):
        return original(algorithm, server_args)
    require_eagle3(algorithm)
    from sglang.srt.models.registry import ModelRegistry

    from drafterforge.interop.sglang.worker import PoolWorker, install

    ModelRegistry.register("drafterforge.interop.sglang", overwrite=True, strict=True)
    install()
    return PoolWorker


def why_not() -> str:
    """Why the plug-in does not fit the installed SGLang; empty if it does."""
    from drafterforge.interop.sglang.contract import missing_names

    release = installed_release()
    if release != RELEASE:
        return f"it is version {release}, and the plug-in knows {RELEASE}; type pip install sglang=={RELEASE}"
    names = missing_names()
    return f"it has no {', '.join(names)}" if names else ""


def installed_release() -> str:
    """The version of SGLang, without local parts."""
    try:
        return version("sglang").split("+")[0]
    except PackageNotFoundError:
        return "unknown"
