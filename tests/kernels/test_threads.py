"""Loops that threads share: every step once, the same bits, and no waiting for a thread that is suspended."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from drafterforge.kernels import native, native_linear

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
MS = 1_000_000  # nanoseconds
compiled = pytest.mark.skipif(native.library() is None, reason=f"no compiled kernels: {native.why_not()}")
PROGRAM = """
#include "threads.h"
static void count(const void *loop, long first, long last) {
    for (long step = first; step < last; step++) atomic_fetch_add(((atomic_int **)loop)[0] + step, 1);
}
void count_steps(atomic_int *counts, long steps, int threads) { share_loop(count, &counts, steps, threads); }
int64_t rest_after(int64_t began, int64_t waited_from, int64_t ended) {
    judge_wait(began, waited_from, ended);
    const int64_t rest = pool.rest_until - ended;
    return rest > 0 ? rest : 0;
}
void forget_rests(void) { pool.rest = pool.rest_until = 0; }
"""


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    """The header alone, as a library."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("threads")
    (folder / "threads.c").write_text(PROGRAM)
    command = [COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-shared", "-fPIC"]
    command += ["-I", str(native.SOURCE.parent), str(folder / "threads.c"), "-o", str(folder / "threads.so")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(folder / "threads.so"))
    library.count_steps.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
    library.count_steps.restype = library.forget_rests.restype = None
    library.rest_after.argtypes, library.rest_after.restype = (ctypes.c_int64,) * 3, ctypes.c_int64
    return library


@pytest.fixture
def num_threads():
    """Sets torch's number of threads; the one before comes back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 17, 1000, 65535, 65536, 200_001])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_step_is_computed_once(threads, steps, count):
    counts = torch.zeros(steps + 1, dtype=torch.int32)
    for repeat in range(1, 6):
        threads.count_steps(counts.data_ptr(), steps, count)
        assert counts[:steps].eq(repeat).all() and counts[steps] == 0


def test_many_short_loops_are_computed_once(threads):
    counts = torch.zeros(64, dtype=torch.int32)
    for repeat in range(2000):
        threads.count_steps(counts.data_ptr(), 2 + repeat % 63, 2 + repeat % 3)
    assert counts.tolist() == [sum(step < 2 + repeat % 63 for repeat in range(2000)) for step in range(64)]


def test_a_long_wait_rests_the_other_threads_and_a_soon_second_wait_rests_them_longer(threads):
    threads.forget_rests()
    second = 1000 * MS
    assert threads.rest_after(second, second + MS, second + 4 * MS) == 5 * MS
    assert threads.rest_after(second + 12 * MS, second + 13 * MS, second + 16 * MS) == 10 * MS
    assert threads.rest_after(2 * second, 2 * second + MS, 2 * second + 4 * MS) == 5 * MS
    now, rests = 3 * second, []
    for _ in range(10):
        rests.append(threads.rest_after(now, now + MS, now + 4 * MS))
        now += 5 * MS + rests[-1]
    assert rests == [MS * rest for rest in (5, 10, 20, 40, 80, 160, 320, 320, 320, 320)]


@pytest.mark.parametrize("waited", [0, 0.4 * MS, 9 * MS])
def test_a_short_wait_rests_nobody(threads, waited):
    threads.forget_rests()
    assert threads.rest_after(1000 * MS, 1010 * MS, int(1010 * MS + waited)) == 0


@compiled
def test_the_number_of_threads_changes_no_bit(num_threads):
    x, layer = torch.randn(7, 576), native_linear.PackedLinear(torch.randn(700, 576), torch.randn(700))
    q, k, v = torch.randn(1, 16, 8, 64), torch.randn(1, 2, 300, 64), torch.randn(1, 2, 300, 64)
    mask = torch.zeros(1, 16, 300)
    results = []
    for count in (1, 2, 3, 8):
        num_threads(count)
        logits = layer(x)
        results.append((logits, native.argmax(logits.repeat(40, 1)), native.attention(q, k, v, mask, 300)))
    for result in results[1:]:
        assert all(a.equal(b) for a, b in zip(result, results[0], strict=True))


@compiled
def test_several_callers_at_once_get_their_own_results(num_threads):
    num_threads(2)
    layers = [native_linear.PackedLinear(torch.randn(600, 576), None) for _ in range(4)]
    x = torch.randn(3, 576)
    outputs = [layer(x) for layer in layers]
    with ThreadPoolExecutor(len(layers)) as executor:
        calls = [(index, executor.submit(layers[index], x)) for _ in range(200) for index in range(len(layers))]
        assert all(call.result().equal(outputs[index]) for index, call in calls)


@compiled
@pytest.mark.skipif(sys.platform != "linux", reason="torch does not promise anything after a fork elsewhere")
def test_a_forked_process_computes_without_the_threads_of_its_parent():
    code = """
import os, torch
from drafterforge.kernels import native_linear
torch.set_num_threads(2)
layer, x = native_linear.PackedLinear(torch.randn(600, 576), None), torch.randn(3, 576)
wanted = layer(x)
child = os.fork()
if child == 0:
    os._exit(0 if layer(x).equal(wanted) and layer(x).equal(wanted) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=os.environ)
