"""Byte-level tokenizers with chat templates of the kinds that targets have."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from tests.tiny import CHATML, THINKING, build_tokenizer


@pytest.fixture(scope="session")
def chatml() -> PreTrainedTokenizerFast:
    return build_tokenizer(CHATML)


@pytest.fixture(scope="session")
def thinking() -> PreTrainedTokenizerFast:
    return build_tokenizer(THINKING)


@pytest.fixture(scope="session")
def plain() -> PreTrainedTokenizerFast:
    return build_tokenizer(None)
