"""A signal ends vLLM's start at once, also if it waits in C code and another thread receives the signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

START = """
import ctypes, signal, subprocess, sys, threading
from drafterforge.interop.vllm.starting import ended_by_signals

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)  # as code that swallows the exception
child = subprocess.Popen(["sleep", "600"])
with ended_by_signals():
    pass
with ended_by_signals():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # of this thread only
    print(child.pid, flush=True)
    ctypes.CDLL(None).sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted while vLLM"), (signal.SIGTERM, "terminated while vLLM")]
)
def test_a_signal_ends_the_process_and_its_children(number, line):
    process = subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        child = psutil.Process(int(process.stdout.readline()))
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 128 + number
        assert line in errors and errors.count("\n") == 1
        child.wait(10)
    finally:
        process.kill()
