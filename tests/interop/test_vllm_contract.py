"""Names that the plug-in uses are read from the source of vLLM, which is not imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drafterforge.interop.vllm import contract

RUNNER = """
from other import Drafter as Proposer

if True:
    LIMIT: int = 3

raise RuntimeError("this module is only read")

class Runner:
    size: int

    def __init__(self, config, *, device=None):
        self.model = config
        self.rows: list = []
        local = 1

    def propose(self, tokens, /, positions, *rest, depth):
        return tokens
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of which the contract reads one module."""
    folder = tmp_path / "engine_with_names"
    (folder / "worker").mkdir(parents=True)
    for path in (folder, folder / "worker"):
        (path / "__init__.py").write_text("TOP = 1\n")
    (folder / "worker" / "runner.py").write_text(RUNNER)
    monkeypatch.syspath_prepend(tmp_path)
    contract.definitions.cache_clear()
    yield folder
    contract.definitions.cache_clear()
    assert "engine_with_names.worker" not in sys.modules


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("Proposer", True),
        ("Drafter", False),
        ("LIMIT", True),
        ("Runner", True),
        ("Runner.size", True),
        ("Runner.model", True),
        ("Runner.rows", True),
        ("Runner.local", False),
        ("Runner.propose", True),
        ("Runner.propose(tokens, depth)", True),
        ("Runner.propose(tokens, width)", False),
        ("Runner.__init__(config, device)", True),
        ("Runner.prepare", False),
        ("Walker.propose", False),
    ],
)
def test_names_of_a_module_are_read_from_its_source(package, name, is_there):
    assert contract.has_name("engine_with_names.worker.runner", name) is is_there


def test_names_of_packages_and_of_missing_modules(package):
    assert contract.has_name("engine_with_names.worker", "TOP")
    assert not contract.has_name("engine_with_names.scheduler", "TOP")
    assert not contract.has_name("engine_that_is_missing.worker", "TOP")


@pytest.mark.parametrize("has_triton", [True, False])
def test_a_missing_name_is_reported(package, monkeypatch, has_triton):
    module = "engine_with_names.worker.runner"
    monkeypatch.setattr(contract, "USED", {module: ("Runner.model", "Runner.prepare(batch)")})
    monkeypatch.setattr(contract, "USED_V2", {module: ("Runner.rows", "Runner.columns")})
    find_spec = contract.find_spec
    fakes = {"triton": object() if has_triton else None}
    monkeypatch.setattr(contract, "find_spec", lambda name: fakes[name] if name in fakes else find_spec(name))
    v2 = [f"{module}.Runner.columns"] if has_triton else []
    assert contract.missing_names() == [f"{module}.Runner.prepare(batch)", *v2]
