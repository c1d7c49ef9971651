"""Run `vllm_cycles.py` with vLLM's V2 runner on a CPU, where Triton's interpreter runs its kernels.

vLLM uses Triton on a CPU only if Triton has a CPU backend.  The interpreter needs none, so this script names one.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
runpy.run_path(str(Path(__file__).with_name("vllm_cycles.py")), run_name="__main__")
