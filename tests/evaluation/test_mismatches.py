"""Near ties of float32 are decoded again in float64, by the methods of their section, as long as memory suffices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.names import POOL
from drafterforge.evaluation import mismatches
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.mismatches import settle_mismatches
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.scaling import POOL_SIZE
from drafterforge.runtime.rows import Generation

SELECTED = "hedgespec over the pool"
REQUESTS = [Request([1], "sql"), Request([2], "sql")]


class Engine:
    """Gives one answer in float64."""

    def generate(self, prompts, *_):
        return [Generation(prompt, [5, 6]) for prompt in prompts]


class Factory:
    """Builds methods by name; a reduced pool has one drafter."""

    def __init__(self, pool_size: int = 0) -> None:
        self.cfg, self.pool_size, self.target = EvaluateConfig(), pool_size, SimpleNamespace(dtype=torch.float32)

    def reference_of(self, *_) -> str:
        return AUTOREGRESSIVE

    def for_target(self, target):
        return self

    def with_pool_size(self, count: int):
        return Factory(count)

    def build(self, names):
        assert not self.pool_size or names == [POOL], "the reduced pool has no such drafters"
        return [Method(AUTOREGRESSIVE, Engine()), Method(SELECTED, Engine())]


def measured(method: str, tokens: list[int], group: int, **section: object) -> Measurement:
    return Measurement(method, [RequestInfo(group, "sql")], [Generation([1], tokens)], group=group, **section)


def settle(**section: object) -> list[dict]:
    """Two near ties in a section."""
    pairs = [
        (measured(AUTOREGRESSIVE, [5, 6], n, **section), measured(SELECTED, [5, 7], n, **section)) for n in range(2)
    ]
    return settle_mismatches(EvaluateConfig(), Factory(), REQUESTS, [entry for pair in pairs for entry in pair])


@pytest.fixture(autouse=True)
def near_ties(monkeypatch):
    monkeypatch.setattr("drafterforge.evaluation.lossless.top2_margin", lambda *_: 0.0)


@pytest.mark.parametrize("section", [{}, {"axis": POOL_SIZE, "at": 1.0}])
def test_a_near_tie_is_settled_by_the_methods_of_its_pool(monkeypatch, section):
    monkeypatch.setattr(mismatches, "load_target", lambda cfg: None)
    assert [mismatch["rerun"] for mismatch in settle(**section)] == [True, True]


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_target_that_does_not_fit_in_float64_is_loaded_once_and_the_near_ties_count(monkeypatch, capsys, error):
    loads = []

    def load(cfg):
        loads.append(cfg.dtype)
        raise error

    monkeypatch.setattr(mismatches, "load_target", load)
    assert [mismatch["rerun"] for mismatch in settle()] == [False, False]
    assert loads == ["float64"]
    assert f"float64 does not fit in memory, so near ties of {SELECTED} count as mismatches" in capsys.readouterr().err
