"""Ends vLLM's start at once on Ctrl-C or SIGTERM.

While its engine starts, vLLM waits in C code, for up to ten minutes, and another thread may receive the signal.  Python
would call its handler only after that, or inside code that swallows the exception.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """In this block, Ctrl-C and SIGTERM end this process and its children; nothing of theirs may be unfinished."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to in whatever thread the signal comes
    watcher = threading.Thread(target=_watch, args=(reader,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _watch(reader: int) -> None:
    while numbers := os.read(reader, 1):
        if (number := numbers[0]) in SIGNALS:
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
            print(f"drafterforge: {SIGNALS[number]} while vLLM started; type the same command again", file=sys.stderr)
            sys.stderr.flush()
            os._exit(128 + number)
