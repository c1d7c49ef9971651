"""The kernels are compiled once, for the processor, and the reason is given where they cannot be."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drafterforge.errors import ConfigError
from drafterforge.kernels import native
from drafterforge.kernels.dispatch import KERNELS
from drafterforge.kernels.linear import FrozenLinear
from tests.kernels.test_native import compiled, swiglu


@pytest.fixture
def fresh():
    """What was found of a compiler is forgotten, before and after."""
    rooms = (native.library, native.why_not, native._load)
    for memo in (*rooms, None):
        KERNELS.clear() if memo is None else memo.cache_clear()
    yield
    for memo in (*rooms, None):
        KERNELS.clear() if memo is None else memo.cache_clear()


PANELS = {
    "-mno-avx512bf16": {8, 16, 32},
    "-mno-avx512f": {8, 16},
    "-mno-avx": {8},
}  # columns, of two vectors; without AVX there is no FMA
# Tests by the compiler in each folder, in one process, which imports torch once.
RUN_TESTS = """
import os, sys
import pytest
from drafterforge.kernels import native
from drafterforge.kernels.dispatch import KERNELS
end = sys.argv.index("--")
for folder in sys.argv[1:end]:
    os.environ |= {"CC": f"{folder}/cc", "XDG_CACHE_HOME": folder}
    for memo in (native.library, native.why_not, native._load):
        memo.cache_clear()
    KERNELS.clear()
    if pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[end + 1 :]]):
        sys.exit(1)
"""


@compiled
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
def test_processors_with_narrower_vectors_compute_the_same(tmp_path):
    compiler_path = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    for flag in PANELS:
        compiler = tmp_path / flag / "cc"
        compiler.parent.mkdir()
        compiler.write_text(f'#!/bin/sh\nexec {compiler_path} "$@" {flag}\n')
        compiler.chmod(0o755)
    tests = [Path(__file__).with_name(name) for name in ("test_native.py", "test_native_choices.py")]
    command = [sys.executable, "-c", RUN_TESTS, *(str(tmp_path / flag) for flag in PANELS), "--", *map(str, tests)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" passed") == len(PANELS) and "no compiled kernels" not in done.stdout
    for flag, panels in PANELS.items():
        (library,) = tmp_path.glob(f"{flag}/drafterforge/native/*.so")
        assert ctypes.CDLL(str(library)).df_panel() in panels


@compiled
def test_kernels_are_compiled_once_and_kept(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "FLAGS", ("-O0", *native.FLAGS[1:]))  # compiles sooner
    assert native.library() is not None
    (library,) = (tmp_path / "drafterforge" / "native").iterdir()
    before = library.stat().st_mtime_ns
    native._load.cache_clear()
    native.library.cache_clear()
    assert native.library() is not None and library.stat().st_mtime_ns == before
    native._load.cache_clear()
    native.library.cache_clear()
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    assert native.library() is not None and len(list(library.parent.iterdir())) == 2


def test_the_environment_turns_them_off(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_NATIVE", "off")
    assert native.library() is None and native.why_not() == "DRAFTERFORGE_NATIVE=off"
    layer = FrozenLinear(torch.randn(40, 24))
    assert layer.native is None and layer(torch.randn(3, 24)).shape == (3, 40)
    gate_and_up = torch.randn(3, 8)
    assert swiglu(gate_and_up).shape == (3, 4)


def test_another_setting_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_NATIVE", "maybe")
    with pytest.raises(ConfigError, match="DRAFTERFORGE_NATIVE='maybe' in the environment; wanted auto or off"):
        native.library()


def test_no_compiler_is_told(fresh, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert native.library() is None and native.why_not() == "no C compiler (cc, gcc or clang) on the PATH"


def test_a_compiler_that_fails_is_told_and_nothing_is_kept(fresh, tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'error: unrecognized option -fopenmp' >&2\nexit 1\n")
    os.chmod(broken, 0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.library() is None and "unrecognized option -fopenmp" in native.why_not()
    assert not list((tmp_path / "cache" / "drafterforge" / "native").iterdir())
    broken.write_text("#!/bin/sh\necho >&2\nexit 1\n")
    for memo in (native.library, native.why_not, native._load):
        memo.cache_clear()
    assert native.library() is None and "did not compile native.c (exit status 1)" in native.why_not()
