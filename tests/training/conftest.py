"""Fixtures of training: an uninterrupted run, scripted accept lengths, and Ctrl-C as it was before."""

from __future__ import annotations

import signal

import pytest

from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.training.best_checkpoint import BestCheckpoint
from tests.training.runs import Run


@pytest.fixture(autouse=True)
def restored_sigint():
    """Restores the handler of SIGINT, which lightning replaces once it has received one."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def full(tmp_path_factory) -> tuple[BestCheckpoint, dict, list]:
    """Checkpoint, weights and log of an uninterrupted run."""
    run = Run(tmp_path_factory.mktemp("full"))
    checkpoint = run()
    return checkpoint, run.weights(), run.logged()


@pytest.fixture
def accept_lengths(monkeypatch):
    """A list of the accept lengths that the next validations measure."""
    scripted: list[float] = []

    def end(module):
        module.log("val/accept_length", scripted.pop(0))

    monkeypatch.setattr(DistillModule, "on_validation_epoch_end", end)
    return scripted
