"""A pool never changes the text, whichever drafter its selector picks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drafterforge.drafters import proposer
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.runtime import pool_proposer
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target
from tests.runtime.drafters import PROMPTS, SHAPE, drafters_of_every_kind, full_drafters, lora_drafters

SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=5)
SKIPS = {"skip": 0.0, "skip_cycles": 2}  # cycles with and without evaluation in turns
SELECTORS = [("random", {}), ("normalhedge", {}), ("normalhedge", SKIPS), ("thompson", {}), ("metasd_ucb", {})]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "options", "sampling", "max_deferred"),
    [
        ("random", {}, GREEDY, 2),
        ("normalhedge", SKIPS, SAMPLED, 2),
        *((*case, sampling, pool_proposer.MAX_DEFERRED) for case in SELECTORS for sampling in (GREEDY, SAMPLED)),
    ],
)
def test_switching_drafters_never_changes_the_text(target, name, options, sampling, max_deferred, monkeypatch):
    monkeypatch.setattr(pool_proposer, "MAX_DEFERRED", max_deferred)
    expected = [Engine(target).generate([prompt], 14, sampling)[0].tokens for prompt in PROMPTS]
    shapes = {"retrieval": TreeShape(6, 5, 2), "sql": TreeShape(4, 2, 2)}
    pool = Pool(drafters_of_every_kind(target), name, shapes=shapes, **options)
    for max_batch in (1, 3):
        answers = Engine(target, pool, SHAPE, max_batch=max_batch).generate(PROMPTS, 14, sampling)
        assert [answer.tokens for answer in answers] == expected
    used = {cycle.drafter for answer in answers for cycle in answer.cycles}
    assert used <= set(pool.names) and len(used) > 1


def test_selectors_keep_their_state_between_requests_only_with_carry(target):
    for carry in (False, True):
        pool = Pool(drafters_of_every_kind(target), "normalhedge", carry=carry)
        Engine(target, pool, SHAPE).generate(PROMPTS[:2], 10)
        (learner,) = pool.idle[:1]
        before = learner.probs.copy()
        learner.begin([1, 2])
        assert np.array_equal(learner.probs, before) == carry


def test_engines_with_other_trees_get_other_selectors_of_a_pool(target):
    pool = Pool(drafters_of_every_kind(target), "normalhedge")
    for shape in (SHAPE, TreeShape(6, 2, 2)):
        engine = Engine(target, pool, shape)
        assert engine.generate(PROMPTS[:1], 10)[0].tokens == Engine(target).generate(PROMPTS[:1], 10)[0].tokens
        assert pool.idle[-1].depth == shape.depth


def test_bad_pools_are_refused_in_one_line(target):
    drafter = lora_drafters(target, 1)[0]
    with pytest.raises(ConfigError, match="needs at least one drafter"):
        Pool({})
    with pytest.raises(ConfigError, match="shapes names b; the pool has a"):
        Pool({"a": drafter}, shapes={"b": SHAPE})
    with pytest.raises(ConfigError, match="normalhege"):
        Engine(target, Pool({"a": drafter}, "normalhege"))
    pool = Pool({"a": drafter}, "random")
    with pytest.raises(ConfigError, match="already has a drafter 'a'"):
        Engine(target, pool).add_drafter("a", drafter)
    with pytest.raises(ConfigError, match="no drafter 'b'"):
        Engine(target, pool).remove_drafter("b")
    with pytest.raises(ConfigError, match="the only drafter"):
        Engine(target, pool).remove_drafter("a")
    with pytest.raises(DrafterforgeError, match="give it a Pool"):
        Engine(target, drafter).add_drafter("b", drafter)
    other_target = tiny_target(vocab_size=40)
    with pytest.raises(DrafterforgeError, match="drafter 'x' drafts for a target of vocabulary 40"):
        Engine(target, Pool({"x": FusedDrafter(tiny_drafter(other_target, 20), other_target.backbone.embedding)}))


def test_an_object_that_is_no_drafter_and_the_option_levels_are_refused():
    with pytest.raises(DrafterforgeError, match="'a' is of type int, not a drafter; wanted one of kind eagle3"):
        Pool({"a": 3})
    with pytest.raises(ConfigError, match="levels of a selector follows from the pool's trees"):
        Pool({"a": Retrieval()}, "ucb1", levels=[3])
    target = tiny_target()
    engine = Engine(target, Pool({"a": Retrieval()}, "ucb1"))
    with pytest.raises(DrafterforgeError, match="'b' is of type int, not a drafter"):
        engine.add_drafter("b", 5)
    assert engine.drafter.names == ["a"]


@pytest.mark.parametrize("count", [1, 3])
def test_drafters_are_judged_on_the_newest_tokens_of_a_prompt_however_it_is_read(target, count, monkeypatch):
    monkeypatch.setattr(proposer, "MOST_JUDGED", 40)
    names = ["general", "sql", "python"][:count]
    experts = dict(zip(names, full_drafters(target, count), strict=True))
    pool = Pool(experts | {"retrieval": Retrieval()}, "hedgespec-prompt")
    prompt = torch.randint(1, 40, (60,), generator=torch.Generator().manual_seed(0))
    root = torch.tensor([1])
    text = torch.cat((prompt, root))
    with torch.inference_mode():
        features = target.forward(prompt[None], torch.arange(len(prompt))[None], None)[1][0]
        after = torch.cat((features, features[:1]))  # the feature of the root is not read
        names_of_group, group = pool.groups()[0]
        accepted = group.read_text(text, after, [SHAPE.top_k] * count).accepted
        expected = dict(zip(names_of_group, accepted[:, -40:].mean(dim=1).tolist(), strict=True))
        for chunk in (1, 7, len(prompt)):
            pooled = pool_proposer.PoolProposer(pool, SHAPE)
            reader = pooled.prompt_reader(proposer.Request(len(prompt), 20, 0.0))
            for end in [*range(chunk, len(prompt), chunk), len(prompt)]:
                begin = (end - 1) // chunk * chunk
                reader.read(text[: end + 1], features[begin:end])
            assert dict(zip(names, reader.hit_rates_of(names), strict=True)) == pytest.approx(expected)
            pooled.join_row(reader, text, features)
            selector = pooled.rows[0].selector
            best = max(names, key=expected.get)
            assert selector.learner.rounds == 16 and selector.drafters[selector.probs.argmax()] == best
            assert np.isnan(reader.hit_rates_of(pool.names)[count])  # retrieval is not judged on prompts
    assert len(set(expected.values())) == count  # so that another order of names would be noticed
