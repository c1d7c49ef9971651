"""A small LM learns the target's distribution from packed sequences and is validated by its accept length."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafterforge.config.drafter import CausalLMConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.causal_lm.model import (
    CausalLMDrafter,
    copy_embeddings,
    copy_layers,
    new_model,
    small_config,
    spaced_layers,
)
from drafterforge.drafters.causal_lm.train import CausalLMModule
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.drafters.eagle3.train.loss import Teacher, chain_counts, next_token_loss
from drafterforge.drafters.eagle3.train.ttt import lay_out
from drafterforge.errors import ConfigError
from drafterforge.targets.capture import FeatureCapture
from drafterforge.training.batches import PackedData
from drafterforge.training.trainer import distil
from tests.models import FAMILIES, TINY, tiny_model, tiny_target
from tests.tiny import build_tokenizer
from tests.training.runs import Row

SHORT = TrainerConfig(
    ttt_steps=3,
    max_steps=30,
    tokens_per_batch=60,
    val_every=15,
    lr=1e-2,
    precision="32-true",
    loggers=["csv"],
)


def small(family: str = "llama", train_embeddings: bool = False, **changes: object) -> CausalLMDrafter:
    """A random small LM of two layers."""
    return CausalLMDrafter(tiny_model(family, num_hidden_layers=2, **changes), train_embeddings)


def data_of(target, rows: list[Row], seed: int | None = None) -> PackedData:
    """Batches of 60 tokens with the target's features."""
    capture = FeatureCapture(target)
    return PackedData(rows, lambda indices: capture([rows[i].input_ids for i in indices]), 60, seed)


def some_rows(count: int, length: int = 18) -> list[Row]:
    """Random conversations: six tokens of prompt, then an answer."""
    return [Row(torch.randint(3, 61, (length,)).tolist(), [0] * 6 + [1] * (length - 6)) for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_sequences_do_not_see_each_other(family):
    lengths = [5, 1, 9]
    tokens = [torch.randint(0, 61, (length,)) for length in lengths]
    model = tiny_model(family, num_hidden_layers=2)
    alone = [model.model(sequence[None]).last_hidden_state[0] for sequence in tokens]
    positions = torch.cat([torch.arange(length) for length in lengths])
    states = CausalLMDrafter(model, False)(torch.cat(tokens), positions, lengths)
    torch.testing.assert_close(states, torch.cat(alone))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("train_embeddings", [True, False])
def test_the_gradient_reaches_every_trained_parameter_and_no_other(target, tied, train_embeddings):
    drafter = small(tie_word_embeddings=tied, train_embeddings=train_embeddings)
    module = CausalLMModule(drafter, target.head_weight, SHORT)
    module(data_of(target, some_rows(3)).pack([0, 1, 2]))[0].backward()
    names = {"embedding", *([] if tied else ["head"])} if train_embeddings else set()
    trained = dict(drafter.named_parameters())
    assert {name for name in trained if not name.startswith("decoder.")} == names
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in trained.values())
    assert drafter.state_dict().keys() == trained.keys()  # frozen parameters are not saved


def test_the_loss_is_the_mean_cross_entropy_with_the_target_s_distribution():
    torch.manual_seed(2)
    hidden, weight, states, head = (torch.randn(shape) for shape in ((5, 8), (11, 8), (5, 6), (11, 6)))
    hidden.requires_grad_()
    argmax = (states @ head.T).argmax(dim=-1)
    teacher = Teacher(states, head, argmax, torch.ones(5, dtype=torch.bool))
    loss, correct = next_token_loss(hidden, weight, teacher, torch.arange(11), chunk=2)
    logits = hidden @ weight.T
    slow = -((states @ head.T).softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
    torch.testing.assert_close(loss, slow)
    assert correct.tolist() == (logits.argmax(dim=-1) == argmax).tolist()
    gradient, expected = (torch.autograd.grad(value, hidden, retain_graph=True)[0] for value in (loss, slow))
    torch.testing.assert_close(gradient, expected)


def test_the_accept_length_is_that_of_a_chain_from_every_token_of_an_answer(target):
    masks = [[0, 0, 1, 1, 1, 1, 1], [0, 1, 1], [0, 1, 1, 0, 0, 1, 1, 1]]
    rows = [Row(torch.randint(3, 61, (len(mask),)).tolist(), mask) for mask in masks]
    batch = data_of(target, rows).pack([0, 1, 2])
    layout = lay_out(batch, 3)
    correct = torch.rand(layout.teacher_positions.numel()) < 0.6
    matched = dict(zip(layout.teacher_positions.tolist(), correct.tolist(), strict=True))
    counts = chain_counts(torch.tensor(2.0), correct, layout.slots)
    valid, joint, start = [0, 0, 0], [0, 0, 0], 0
    for mask in masks:
        for root in range(len(mask)):
            for step in range(3):
                if mask[root : root + step + 2] == [1] * (step + 2):
                    valid[step] += 1
                    joint[step] += all(matched[start + root + i] for i in range(step + 1))
        start += len(mask)
    assert counts.valid.tolist() == valid and counts.joint.tolist() == joint
    assert float(counts.accept_length()) == pytest.approx(1 + sum(j / v for j, v in zip(joint, valid, strict=True)))
    assert float((counts + counts).mean_loss(0.8)) == pytest.approx(2.0)


def test_every_token_of_the_target_as_drafter_is_accepted(target):
    module = CausalLMModule(CausalLMDrafter(tiny_model(), False), target.head_weight, SHORT)
    counts = module(data_of(target, some_rows(3)).pack([0, 1, 2]))[1]
    assert float(counts.accept_length()) == 1 + SHORT.ttt_steps


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_distilling_lowers_the_loss_and_raises_the_accept_length(tmp_path, precision):
    target = tiny_target(eos_token_id=None)
    rows = some_rows(3)
    config = dataclasses.replace(SHORT, precision=precision)
    module = CausalLMModule(small(), target.head_weight, config)
    before = module.drafter.embedding.clone()
    train, val = data_of(target, rows, 0), data_of(target, rows)
    checkpoint = distil(module, train, val, config, tmp_path, torch.device("cpu"), 0)
    first, last = checkpoint.curve
    assert last["val/loss"] < first["val/loss"] and last["val/accept_length"] > 1.5
    assert torch.equal(module.drafter.embedding, before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_drafter_is_a_hugging_face_folder(tmp_path, family, tied):
    drafter = small(family, tie_word_embeddings=tied)
    drafter.save(tmp_path, build_tokenizer(), torch.float32)
    tokens = torch.randint(0, 61, (7,))
    expected = drafter(tokens, torch.arange(7), [7]) @ drafter.head_weight.T
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(model(tokens[None]).logits[0], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_warm_start_takes_embeddings_and_evenly_spaced_layers(tmp_path, family):
    target = tiny_model(family)
    target.save_pretrained(tmp_path)
    model = new_model(small_config(target.config, CausalLMConfig(num_layers=3)))
    copy_layers(model, TargetWeights(tmp_path), target.config)
    assert copy_embeddings(model, target.model.embed_tokens.weight, target.lm_head.weight)
    expected = target.state_dict()
    for name, value in model.state_dict().items():
        for ours, theirs in {0: 0, 1: 3, 2: 6}.items():
            if name.startswith(f"model.layers.{ours}."):
                name = name.replace(f".{ours}.", f".{theirs}.", 1)
                break
        assert torch.equal(value, expected[name]), name


def test_layers_are_spaced_from_the_first_to_the_last():
    assert [spaced_layers(count, 30) for count in (1, 2, 4)] == [[29], [0, 29], [0, 10, 19, 29]]


def test_a_smaller_model_keeps_the_target_s_proportions(tmp_path):
    target = tiny_model().config
    config = small_config(target, CausalLMConfig(hidden_size=16))
    assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (2, 2, 8)
    assert config.intermediate_size == TINY["intermediate_size"] // 2 and config.tie_word_embeddings
    model = new_model(config)
    assert not copy_embeddings(model, torch.randn(61, 32), torch.randn(61, 32))
    with pytest.raises(ConfigError, match=r"hidden_size is 32, not 16; type drafter\.init=scratch"):
        copy_layers(model, TargetWeights(tmp_path), target)
    with pytest.raises(ConfigError, match="does not split into 3 heads"):
        small_config(target, CausalLMConfig(num_heads=3))
