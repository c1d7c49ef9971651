"""A router in a pool: it selects drafters by features or texts, and advises learners."""

from __future__ import annotations

import pytest
import torch

from drafterforge.data.chat import prompt_ids
from drafterforge.drafters.cycle import CycleRecord
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError
from drafterforge.router.features import request_of, request_text
from drafterforge.router.net import RouterNet
from drafterforge.router.router import Router
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from tests.models import tiny_target
from tests.runtime.drafters import PROMPTS, SHAPE, drafters_of_every_kind, lora_drafters
from tests.tiny import build_tokenizer


def random_router(width: int, encoder=None) -> Router:
    """A router of two drafters with random weights."""
    net = RouterNet(width, 2)
    net.normalise(torch.randn(9, width))
    for parameter in net.parameters():
        parameter.data.normal_()
    return Router(net, ["general", "sql"], encoder=encoder)


class Encoder:
    """An encoder whose vectors depend on the text, and which records the texts."""

    width, source, fingerprint = 4, "made", "00"

    def __init__(self):
        self.texts = []

    def __call__(self, text):
        self.texts.append(text)
        return torch.tensor([float(len(text)), *map(float, text.encode()[:3].ljust(3))])


def test_a_router_of_texts_selects_drafters_in_the_runtime():
    """The router reads the user's text, as in training, without the chat template."""
    tokenizer, encoder, texts = build_tokenizer(), Encoder(), ["Count users by country.", "What is 3 + 4?"]
    target = tiny_target(vocab_size=len(tokenizer), eos_token_id=None)
    drafters, router = dict(zip(("general", "sql"), lora_drafters(target, 2), strict=True)), random_router(4, encoder)
    with pytest.raises(ConfigError, match="features=text needs a tokenizer"):
        Engine(target, Pool(drafters, "router", router=router), SHAPE)
    target.tokenizer = tokenizer
    prompts = [[{"role": "user", "content": text}] for text in texts]
    answers = Engine(target, Pool(drafters, "router", router=router), SHAPE).generate(prompts, 8)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in Engine(target).generate(prompts, 8)]
    assert encoder.texts == texts and request_of(tokenizer, tokenizer("as it is").input_ids) == "as it is"
    for text, answer in zip(texts, answers, strict=True):
        best = ["general", "sql"][int(router.probabilities(text).argmax())]
        assert {cycle.drafter for cycle in answer.cycles} == {best}


def test_a_router_reads_what_it_was_trained_on_in_a_conversation_with_a_system_message():
    tokenizer = build_tokenizer()
    talk = [
        ("system", "You are terse."),
        ("user", "Count users."),
        ("assistant", "3 users."),
        ("user", "And by country?"),
    ]
    messages = [{"role": role, "content": text} for role, text in talk]
    assert request_of(tokenizer, prompt_ids(tokenizer, messages)) == request_text(messages)
    assert request_text(messages) == "Count users.\nAnd by country?"


def test_a_router_s_advice_reaches_learners_and_is_refused_for_bandits(target):
    router = random_router(target.config.hidden_size)
    engine = Engine(target, Pool(drafters_of_every_kind(target), "hedgespec", router=router), SHAPE)
    batch = engine.open_batch()
    with torch.inference_mode():
        batch.admit(*engine.read(PROMPTS[0], 16))
        batch.proposer.plan(CycleRecord(batch.root, [15], SHAPE))
    row = batch.proposer.rows[0]
    assert engine.drafter.options["prior"] == 4 and row.choice == row.selector.drafters[row.selector.advice.argmax()]
    assert Pool(drafters_of_every_kind(target), "hedgespec", router=router, prior=0).options["prior"] == 0
    with pytest.raises(ConfigError, match=r"pool\.selector=ucb1 takes no advice.*pool\.selector=router"):
        Pool(drafters_of_every_kind(target), "ucb1", router=router)
    with pytest.raises(ConfigError, match="the router knows general, sql, but the pool has retrieval"):
        Engine(target, Pool({"retrieval": Retrieval()}, "hedgespec", router=router))
