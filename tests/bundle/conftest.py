"""A tiny target, a drafter and an expert of it, and a head as others publish it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafterforge.artifacts.manifest import Manifest
from drafterforge.bundle.layout import TargetFacts
from drafterforge.bundle.sglang import write_sglang
from drafterforge.bundle.vllm import write_vllm
from tests.bundle.made import facts_of, random_drafter, write_drafter, write_expert
from tests.tiny import save_tiny_target


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A tiny Llama and its tokenizer."""
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def facts(tiny) -> TargetFacts:
    return facts_of(tiny)


@pytest.fixture
def drafter(facts):
    return random_drafter(facts)


@pytest.fixture
def runs(tmp_path, facts, drafter) -> Path:
    """Runs with a generalist and a LoRA expert of it."""
    path = write_drafter(tmp_path / "runs", facts, drafter)
    write_expert(tmp_path / "runs", facts, random_drafter(facts), Manifest.read(path))
    return tmp_path / "runs"


@pytest.fixture
def eagle3(tmp_path, facts, drafter) -> Path:
    """A head in SafeAILab's and SGLang's layout."""
    folder = tmp_path / "eagle3"
    folder.mkdir()
    write_sglang(folder, drafter, facts, folder)
    return folder


@pytest.fixture
def speculators(tmp_path, facts, drafter) -> Path:
    """A head in speculators' layout."""
    folder = tmp_path / "speculators"
    folder.mkdir()
    write_vllm(folder, drafter, facts, folder)
    return folder
