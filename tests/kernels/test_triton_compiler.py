"""Triton's compiler accepts the kernels, without a GPU."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drafterforge.kernels import triton_support

KERNELS = sorted(Path(triton_support.__file__).parent.glob("triton_*.py"))


def launched_kernels() -> set[str]:
    """Names of the kernels that the host launches: those that ask for their program."""
    functions = [node for path in KERNELS for node in ast.parse(path.read_text()).body]
    return {node.name for node in functions if isinstance(node, ast.FunctionDef) and "program_id" in ast.dump(node)}


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed; it has wheels for Linux on x86-64")
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.compile_triton"]
    run = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(launched_kernels()) == 6 and set(run.stdout.split()) == launched_kernels()
