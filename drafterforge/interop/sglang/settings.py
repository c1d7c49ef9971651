"""How SGLang serves a pool: what the bundle says, and what an environment variable replaces.

DRAFTERFORGE_POOL='{"selector": "ucb1"}' sglang serve ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafterforge.errors import ConfigError
from drafterforge.interop.vllm.pool_folder import PoolFolder
from drafterforge.interop.vllm.settings import PoolServing

VARIABLE = "DRAFTERFORGE_POOL"  # settings as JSON; SGLang's processes inherit it
LOAD_FORMAT = "dummy"  # SGLang's loader finds no weights in a pool's folder


def pool_serving(folder: Path, environment: Mapping[str, str] = os.environ) -> PoolServing:
    """The settings of a server; ConfigError where they do not fit the pool."""
    text = environment.get(VARIABLE) or "{}"
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ConfigError(f"""{VARIABLE}={text!r} is not a JSON object; wanted one such as '{{"selector": "ucb1"}}'""")
    serving = PoolServing.open(PoolFolder.open(folder), values, VARIABLE)
    if serving.record:
        raise ConfigError("the plug-in for SGLang cannot record traffic; leave out record")
    return serving


def require_eagle3(algorithm: Any) -> None:
    """ConfigError unless the speculative algorithm is EAGLE3."""
    if not algorithm.is_eagle3():
        raise ConfigError(f"a pool drafts as EAGLE3, not as {algorithm.name}; type --speculative-algorithm EAGLE3")


def refuse_settings(spec: Any, parallel: Any, disagg: Any, target_config: Any) -> None:
    """ConfigError for settings of SGLang that a pool cannot have.

    spec, parallel, disagg: SGLang's namespaces of settings.  target_config: the `ModelConfig` of the target.
    """
    refused = {
        f"speculative_eagle_topk={spec.speculative_eagle_topk}": (
            spec.speculative_eagle_topk != 1,
            "drafts chains; type --speculative-eagle-topk 1",
        ),
        f"speculative_draft_load_format={spec.speculative_draft_load_format}": (
            spec.speculative_draft_load_format != LOAD_FORMAT,
            f"reads its files itself; type --speculative-draft-load-format {LOAD_FORMAT}",
        ),
        "speculative_use_rejection_sampling": (
            spec.speculative_use_rejection_sampling,
            "drafts greedily; leave out --speculative-use-rejection-sampling",
        ),
        "speculative_adaptive": (
            spec.speculative_adaptive,
            "has chains of one length; leave out --speculative-adaptive",
        ),
        "speculative_draft_window_size": (
            spec.speculative_draft_window_size is not None,
            "attends to whole texts; leave out --speculative-draft-window-size",
        ),
        f"tp_size={parallel.tp_size}": (parallel.tp_size > 1, "runs on one GPU; type --tp-size 1"),
        f"pp_size={parallel.pp_size}": (parallel.pp_size > 1, "runs on one GPU; type --pp-size 1"),
        f"disaggregation_mode={disagg.disaggregation_mode}": (
            disagg.disaggregation_mode != "null",
            "needs prefill and decoding in one server; leave out --disaggregation-mode",
        ),
        "a multimodal target": (target_config.is_multimodal, "reads text; serve a target that reads text only"),
    }
    for setting, (is_refused, reason) in refused.items():
        if is_refused:
            raise ConfigError(f"SGLang has {setting}, but a pool {reason}")
