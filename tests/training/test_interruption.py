"""Signals during a training."""

from __future__ import annotations

import signal

import pytest

from drafterforge.training import interruption
from drafterforge.training.interruption import STOPPING, Interruption


def test_a_signal_that_comes_while_a_line_is_written_is_a_request_like_others(monkeypatch, capfd):
    def reentrant(text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name=2>")

    monkeypatch.setattr(interruption, "say", reentrant)
    request = Interruption()
    request.handle(signal.SIGINT, None)
    assert request.requested and capfd.readouterr().err == f"{STOPPING}\n"
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)
