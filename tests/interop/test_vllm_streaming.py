"""A stream's prompts fit vLLM's context, and a start of vLLM that fails is one line; vLLM is a stub."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from drafterforge.config.commands import PrepareDataConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answering import encode_prompts
from drafterforge.data.prompts import load_prompts
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.vllm import streaming
from drafterforge.interop.vllm.streaming import stream_answers
from drafterforge.targets.load import load_tokenizer
from tests.tiny import save_tiny_target

NEW_TOKENS = 8


@dataclass
class EngineArgs:
    """Arguments of vLLM."""

    max_model_len: int | None = None


class LLM:
    """An engine that finds no memory."""

    def __init__(self, **arguments: Any) -> None:
        raise RuntimeError("Engine core initialization failed.\nSee root cause above.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(autouse=True)
def vllm(monkeypatch) -> None:
    stub = ModuleType("vllm")
    stub.LLM, stub.EngineArgs = LLM, EngineArgs
    monkeypatch.setitem(sys.modules, "vllm", stub)
    monkeypatch.setattr(streaming, "missing_of", lambda used: [])
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")


def config(folder: Path, stream: Path, **arguments: Any) -> PrepareDataConfig:
    target = TargetConfig(name="tiny", source="hf", model=str(folder))
    sizes = {"num_train": 8, "num_val": 4, "num_test": 4, "max_new_tokens": NEW_TOKENS}
    return PrepareDataConfig(target, DomainConfig(), DataConfig(stream=str(stream), vllm=arguments, **sizes))


def test_a_failed_start_is_one_line_with_a_remedy(folder, tmp_path):
    message = (
        r"did not start \(Engine core initialization failed\. See root .*\).*'data\.vllm=\{max_model_len: 4096\}'$"
    )
    with pytest.raises(ArtifactError, match=message):
        stream_answers(config(folder, tmp_path / "ring"))


def test_prompts_that_do_not_fit_vllm_are_dropped_and_counted(folder, tmp_path, caplog):
    cfg = config(folder, tmp_path / "ring")
    prompts = load_prompts(cfg.data, cfg.domain, cfg.seed)
    tokenizer = load_tokenizer(folder)
    by_split = {split: encode_prompts(tokenizer, split, prompts, cfg.data) for split in ("train", "val", "test")}
    lengths = {split: sorted(len(entry.ids) for entry in entries) for split, entries in by_split.items()}
    room = max(numbers[0] for numbers in lengths.values())
    num_long = sum(length > room for length in lengths["train"])
    with caplog.at_level(logging.WARNING), pytest.raises(ArtifactError, match="did not start"):
        stream_answers(config(folder, tmp_path / "cut", max_model_len=room + NEW_TOKENS))
    assert f"{num_long} of 8 train prompts are longer than {room} tokens and were dropped" in caplog.text
    with pytest.raises(ConfigError, match=r"leaves no room for a prompt: the target reads 8 tokens"):
        stream_answers(config(folder, tmp_path / "none", max_model_len=NEW_TOKENS))
