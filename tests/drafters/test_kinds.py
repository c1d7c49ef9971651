"""The registry is the only list of drafter kinds, and a registered kind works in every engine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import drafterforge
from drafterforge import pipelines
from drafterforge.assembly.drafters import open_named
from drafterforge.config import drafter as config_of_drafters
from drafterforge.config.drafter import DRAFTERS
from drafterforge.drafters import registry
from drafterforge.drafters.base import Drafter
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.registry import KINDS, kind_named, kind_of
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.replay.answer_recorder import record_answers
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import Sampling
from drafterforge.tree.grow import TreeShape
from tests.drafters.bigram import Bigrams
from tests.drafters.registering import registered, written
from tests.models import tiny_drafter, tiny_target

ROOMS = (Path(drafterforge.__file__).parent, Path(pipelines.__file__).parent)
SOURCES = [
    path
    for room in ROOMS
    for path in room.rglob("*.py")
    if "drafters" not in path.relative_to(room).parts and "shipped" not in path.parts
]
PROMPTS, COUNT, SHAPE = [[3, 14, 15, 9, 26, 5] * 3, [7], [4] * 17], 24, TreeShape(10, 3, 3)


def subclasses(base: type) -> set[str]:
    """Names of all subclasses of a class."""
    return {name for child in base.__subclasses__() for name in {child.__name__, *subclasses(child)}}


def calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Calls of these functions."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") in names]


def test_only_the_drafters_room_checks_a_drafter_s_type():
    assert len(SOURCES) > 150
    types = subclasses(Drafter) | {"Drafter", "Eagle3Drafter", "CausalLMDrafter"}
    lines = [
        f"{path}:{call.lineno}"
        for path in SOURCES
        if types & {*re.findall(r"\w+", path.read_text())}
        for call in calls(ast.parse(path.read_text()), "isinstance", "issubclass")
        for argument in call.args[1:]
        if types & {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(argument)}
    ]
    assert lines == []


def test_kinds_are_listed_once():
    keys = Path(config_of_drafters.__file__)  # their keys, which `--help` shows without torch
    assert list(DRAFTERS) == [kind.name for kind in KINDS.values() if kind.trained]
    listed = []
    for path in SOURCES:
        if path == keys:
            continue
        text = path.read_text()
        if sum(f'"{name}"' in text for name in KINDS) < 2:
            continue
        for node in ast.walk(ast.parse(text)):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            names = {part.value for part in parts if isinstance(part, ast.Constant) and part.value in KINDS}
            if len(names) > 1:
                listed.append(f"{path}:{node.lineno}")
    assert listed == []


def test_every_kind_has_a_name_and_is_found_by_its_earlier_names():
    assert [kind.name for kind in KINDS.values()] == list(KINDS)
    assert kind_named("merged") is KINDS["hybrid"]
    with pytest.raises(ConfigError, match="there is no kind of drafter 'eagle4'; have eagle3, causal_lm"):
        kind_named("eagle4")
    with pytest.raises(DrafterforgeError, match="'x' is of type int, not a drafter"):
        kind_of(3, "x")


@pytest.fixture(scope="module")
def target():
    """A tiny model."""
    return tiny_target(eos_token_id=None)


@pytest.fixture(scope="module")
def bigrams(target) -> Bigrams:
    """Bigrams of the target's answers to other prompts."""
    answers = Engine(target).generate([[5], [9, 8], *PROMPTS[:1]], 40)
    counts = torch.full((target.config.vocab_size,) * 2, 0.01)
    for answer in answers:
        text = torch.tensor(answer.prompt + answer.tokens)
        counts.index_put_((text[:-1], text[1:]), torch.tensor(1.0), accumulate=True)
    return Bigrams((counts / counts.sum(dim=1, keepdim=True)).log())


@pytest.fixture
def registered_kind():
    """The bigram kind, registered during the test."""
    with registered() as kind:
        yield kind


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=5)])
def test_a_registered_kind_decodes_losslessly_alone_and_in_a_pool(target, bigrams, registered_kind, sampling):
    expected = [Engine(target).generate([prompt], COUNT, sampling)[0].tokens for prompt in PROMPTS]
    eagle = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    pool = Pool({"eagle": eagle, "bigrams": bigrams, "retrieval": Retrieval()}, "hedgespec")
    for drafter in (bigrams, pool):
        answers = Engine(target, drafter, SHAPE, max_batch=2).generate(PROMPTS, COUNT, sampling)
        assert [answer.tokens for answer in answers] == expected
    used = {cycle.drafter for answer in answers for cycle in answer.cycles}
    assert "bigrams" in used
    alone = Engine(target, bigrams, SHAPE).generate(PROMPTS[:1], COUNT)[0]
    assert sum(cycle.accepted for cycle in alone.cycles) > 5  # the bigrams were counted on this answer too


@pytest.mark.parametrize("selector", ["hedgespec", "metasd_ucb", "thompson"])
def test_replayed_cycles_of_a_registered_kind_equal_live_ones(target, bigrams, registered_kind, selector):
    eagle = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    drafters = {"eagle": eagle, "bigrams": bigrams, "retrieval": Retrieval(min_probability=1e-3, min_expected=0.0)}
    answers = Engine(target).generate(PROMPTS, COUNT)
    recorded = record_answers(target, Pool(drafters), SHAPE, answers, branches=True)["static"]
    played = recorded.run(recorded.maker(selector, seed=3))
    live = Engine(target, Pool(drafters, selector, seed=3), SHAPE, max_batch=1).generate(PROMPTS, COUNT)
    for answer, cycles in zip(live, played, strict=True):
        replayed = [
            (recorded.names[cycle.drafter], cycle.accept_length, cycle.depth, cycle.num_nodes) for cycle in cycles
        ]
        assert replayed == [
            (cycle.drafter, cycle.accept_length, cycle.depth, cycle.num_nodes) for cycle in answer.cycles
        ]
    assert recorded.alone(1) != recorded.alone(0)


def test_a_registered_kind_joins_a_running_pool_and_is_refused_for_another_target(
    target, bigrams, registered_kind, tmp_path
):
    engine = Engine(target, Pool({"retrieval": Retrieval()}, "random"), SHAPE)
    expected = Engine(target).generate(PROMPTS[:1], COUNT)[0].tokens
    stream = engine.stream(PROMPTS[0], COUNT)
    next(stream), next(stream)
    opened = open_named(["bigrams"], lambda name: written(tmp_path, bigrams.table), target)["bigrams"]
    engine.add_drafter("bigrams", opened)
    *_, last = stream
    assert last.tokens == expected
    with pytest.raises(DrafterforgeError, match="'bigrams' has 61 token ids"):
        Engine(tiny_target(vocab_size=40), Pool({"bigrams": bigrams}))


def test_a_kind_that_is_not_registered_is_refused(target, bigrams):
    assert "bigram" not in registry.KINDS
    with pytest.raises(DrafterforgeError, match="is of type Bigrams, not a drafter"):
        Engine(target, bigrams)
