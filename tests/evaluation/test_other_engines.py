"""Decoding with transformers and other programs: the target's text, with their forward passes counted."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from drafterforge.config.target import TargetConfig
from drafterforge.errors import ConfigError
from drafterforge.evaluation import other_engines
from drafterforge.evaluation.other_engines import FlashSpec, OpenVINO, Transformers, open_model, require_openvino
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.targets.load import load_target
from tests.tiny import save_tiny_target

PROMPT = [5, 6, 7, 8] * 6


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = save_tiny_target(tmp_path_factory.mktemp("rival") / "tiny", eos_token_id=None)
    return load_target(TargetConfig(source="hf", model=str(folder), dtype="float32"))


@pytest.fixture(scope="module")
def model(target):
    return open_model(target)


def test_transformers_gives_our_text_in_one_pass_per_token(target, model):
    ours = Engine(target).generate([PROMPT, [9, 4]], 12)
    theirs = Transformers(model, target).generate([PROMPT, [9, 4]], 12, [GREEDY, GREEDY])
    assert [answer.tokens for answer in theirs] == [answer.tokens for answer in ours]
    for answer in theirs:
        assert [cycle.accept_length for cycle in answer.cycles] == [1] * 11 and answer.time_s["total"] > 0


def test_prompt_lookup_accepts_tokens_of_a_repeated_prompt(target, model):
    plain = Transformers(model, target).generate([PROMPT], 24)[0]
    again = plain.prompt + plain.tokens + plain.prompt  # the prompt already contains its continuation
    answer = Transformers(model, target, prompt_lookup_num_tokens=4).generate([again], 24)[0]
    assert answer.tokens == Engine(target).generate([again], 24)[0].tokens
    assert all(1 <= cycle.accept_length <= cycle.num_nodes for cycle in answer.cycles)
    assert any(cycle.num_nodes > 1 for cycle in answer.cycles)
    emitted = sum(cycle.accept_length for cycle in answer.cycles)
    assert 24 - 5 <= emitted <= 24 - 1  # the prefill emitted the rest


def test_flashspec_gives_the_same_text_in_fewer_passes(target):
    pytest.importorskip("flashspec")
    plain = Engine(target).generate([PROMPT], 24)[0]
    again = plain.prompt + plain.tokens + plain.prompt
    rival = FlashSpec(open_model(target), target)
    answer = rival.generate([again], 24)[0]
    assert answer.tokens == Engine(target).generate([again], 24)[0].tokens and answer.time_s["total"] > 0
    assert len(rival.engine.generate(torch.tensor([again]), 24).arm_steps) < 23
    ended = dataclasses.replace(target, eos_ids=frozenset(answer.tokens[5:6]))
    (cut,) = FlashSpec(open_model(target), ended).generate([again], 24)
    assert cut.tokens == answer.tokens[: answer.tokens.index(answer.tokens[5]) + 1]


def test_sampling_of_another_program_is_refused(target, model):
    for rival in (Transformers(model, target), OpenVINO(None, target)):
        with pytest.raises(ConfigError, match="samples with other noise"):
            rival.generate([PROMPT], 2, Sampling(temperature=1.0))


def test_openvino_names_its_missing_package_and_model(target, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"names no folder; type `optimum-cli export .* then suite\.openvino=FOLDER"):
        require_openvino("")
    with pytest.raises(ConfigError, match=r"has no openvino_model\.xml; type"):
        require_openvino(str(tmp_path))
    (tmp_path / "openvino_model.xml").touch()
    monkeypatch.setattr(other_engines, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"type pip install .drafterforge\[openvino\]."):
        require_openvino(str(tmp_path))
    monkeypatch.setattr(other_engines, "find_spec", lambda name: name)
    assert require_openvino(str(tmp_path)) == tmp_path


def test_openvino_gets_our_ids_and_end_tokens(target, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=list))
    monkeypatch.setitem(
        sys.modules,
        "openvino_genai",
        SimpleNamespace(TokenizedInputs=lambda *inputs: inputs, GenerationConfig=Namespace),
    )
    calls = []

    class Pipeline:
        def generate(self, inputs, config):
            calls.append((inputs, config))
            return SimpleNamespace(tokens=[[7, 8, 9]])

    ended = dataclasses.replace(target, eos_ids=frozenset({2}))
    (answer,) = OpenVINO(Pipeline(), ended).generate([PROMPT], 3)
    assert answer.tokens == [7, 8, 9] and len(answer.cycles) == 2 and answer.time_s["total"] > 0
    (((ids,), (mask,)), config), *_ = calls
    assert list(ids) == PROMPT and list(mask) == [1] * len(PROMPT)
    assert (config.max_new_tokens, config.do_sample) == (3, False)
    assert (config.stop_token_ids, config.ignore_eos) == ({2}, False)
    endless = dataclasses.replace(target, eos_ids=frozenset())
    OpenVINO(Pipeline(), endless).generate([PROMPT], 3)
    assert calls[1][1].ignore_eos
