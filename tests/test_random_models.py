"""Random models of real sizes: the target's text is known, and drafted tokens are accepted at the chosen rate."""

from __future__ import annotations

import importlib

import pytest
import torch

from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.tree.grow import TreeShape
from tests.test_bench_steps import SCRIPT

VOCAB, COUNT, CPU = 64, 40, torch.device("cpu")
SHAPES = [TreeShape(4, 3, 1), TreeShape(8, 3, 2)]


@pytest.fixture
def models(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("random_models")


def cycles_at(models, rate: float, token: int, depth: int) -> list[int]:
    """Accept lengths of the cycles after `token`: drafted tokens are right until the first that is not a successor."""
    drafted, following = models.drafted_tokens(VOCAB, rate).tolist(), models.successors(VOCAB).tolist()
    lengths, emitted, token = [], 1, following[token]
    while emitted < COUNT:
        length = 1
        while length <= depth and drafted[token] == following[token]:
            token, length = following[token], length + 1
        token, length = following[token], min(length, COUNT - emitted)
        lengths.append(length)
        emitted += length
    return lengths


@pytest.mark.parametrize("size", ["tiny", "tiny-qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_target_continues_as_its_weights_say(models, size, dtype):
    target = models.random_target(size, CPU, dtype, VOCAB)
    prompt = models.random_prompt(VOCAB, 12, seed=0)
    answer = Engine(target, numerics="fast").generate([prompt], COUNT)[0]
    assert answer.tokens == models.continuation(prompt[-1], COUNT, VOCAB)
    assert target.dtype == dtype and len(target.backbone.layers) == models.SIZES[size]["num_hidden_layers"]
    weights = [layer.qkv.weight for layer in target.backbone.layers]
    assert not torch.equal(weights[0], weights[1])


def test_successors_are_one_cycle_through_the_vocabulary(models):
    assert sorted(models.continuation(3, VOCAB, VOCAB)) == list(range(VOCAB))


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_a_chain_is_accepted_where_the_drafter_is_right(models, rate):
    target = models.random_target("tiny", CPU, torch.float32, VOCAB)
    (drafter,) = models.random_pool(target, VOCAB, 1, rate)
    prompt = models.random_prompt(VOCAB, 12, seed=1)
    expected = cycles_at(models, rate, prompt[-1], depth=3)
    for graphs in (False, True):
        answer = Engine(target, drafter, SHAPES[0], numerics="fast", graphs=graphs).generate([prompt], COUNT)[0]
        assert answer.tokens == models.continuation(prompt[-1], COUNT, VOCAB)
        assert [cycle.accept_length for cycle in answer.cycles] == expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["generalist", "expert"])
def test_all_drafters_of_a_pool_are_right_at_the_same_tokens(models, shape, name):
    target = models.random_target("tiny-qwen3", CPU, torch.float32, VOCAB)
    drafters = dict(zip(("generalist", "expert"), models.random_pool(target, VOCAB, 2, 0.7), strict=True))
    prompt = models.random_prompt(VOCAB, 12, seed=2)
    alone = Engine(target, drafters["generalist"], shape, numerics="fast").generate([prompt], COUNT)[0]
    pool = Pool(drafters, "static", drafter=name)
    answer = Engine(target, pool, shape, numerics="fast").generate([prompt], COUNT)[0]
    lengths = [cycle.accept_length for cycle in answer.cycles]
    assert lengths == [cycle.accept_length for cycle in alone.cycles] and len(set(lengths)) > 1


@pytest.mark.parametrize(("mat", "depth"), [(1.0, 3), (2.5, 3), (3.0, 8), (9.0, 8)])
def test_the_rate_gives_the_tokens_of_a_cycle(models, mat, depth):
    rate = models.rate_for(mat, depth)
    assert sum(rate**level for level in range(depth + 1)) == pytest.approx(mat)
