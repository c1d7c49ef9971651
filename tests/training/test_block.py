"""Blocks of training predict as blocks that decode, and distillation reaches every parameter."""

from __future__ import annotations

import math

import pytest
import torch

from drafterforge.config.drafter import LoraConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.block.fused import FusedBlock, StackedBlocks
from drafterforge.drafters.block.propose import BlockGroup
from drafterforge.drafters.block.train.anchors import draft_blocks, lay_out_anchors
from drafterforge.drafters.block.train.module import BlockModule
from drafterforge.drafters.eagle3.train.lora import add_adapter
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out
from tests.drafters.blocks import VARIANTS, tiny_block
from tests.models import tiny_target

MASKS = [[0] * 3 + [1] * 9, [0] * 2 + [1] * 4 + [0] * 2 + [1] * 6, [0, 1, 1]]
CONFIG = TrainerConfig(ttt_steps=4, loss_chunk=7, checkpoint_steps=False)


@pytest.fixture(scope="module")
def target():
    """A tiny model."""
    return tiny_target()


@pytest.fixture(scope="module")
def batch(target) -> PackedBatch:
    """Three sequences, one with two answers."""
    torch.manual_seed(0)
    lengths = [len(mask) for mask in MASKS]
    total = sum(lengths)
    return PackedBatch(
        tokens=torch.randint(3, 59, (total,)),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        loss_mask=torch.tensor([bit for mask in MASKS for bit in mask]).bool(),
        lengths=lengths,
        features=torch.randn(total, 3 * target.config.hidden_size),
        states=torch.randn(total, target.config.hidden_size),
        argmax=torch.randint(0, 61, (total,)),
    )


def module_of(target, anchors: int = 100, **changes: object) -> BlockModule:
    return BlockModule(tiny_block(target, **changes).train(), target.head_weight, CONFIG, anchors)


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_in_training_equal_blocks_that_decode(target, batch, variant):
    drafter = tiny_block(target, **VARIANTS[variant])
    fused = FusedBlock(drafter, target.backbone.embedding)
    rows = lay_out(batch, 2).rows
    with torch.no_grad():
        outputs = draft_blocks(drafter, batch, rows)
    begin = 0
    for length in batch.lengths:
        for column in ((rows >= begin) & (rows < begin + length)).nonzero()[:, 0].tolist():
            anchor = int(rows[column]) + 1
            group = BlockGroup(StackedBlocks([fused]))
            with torch.inference_mode():
                group.admit(batch.tokens[begin : anchor + 1], batch.features[begin:anchor])
                logits = group._draft(0, [0])[0]
            logits = logits[:, : drafter.spec.draft_vocab_size]
            torch.testing.assert_close(drafter.lm_head(outputs[:, column]), logits, atol=1e-4, rtol=1e-4)
        begin += length
    assert len(rows) > 10


def test_anchors_are_drawn_in_every_answer_and_keep_their_predictions(batch):
    all_anchors = lay_out(batch, 4)
    drawn = lay_out_anchors(batch, 4, 3, seed=7)
    ends = torch.tensor(batch.lengths).cumsum(0)
    assert torch.searchsorted(ends, drawn.rows, right=True).bincount().tolist() == [3, 3, 1]
    assert not torch.equal(drawn.rows, lay_out_anchors(batch, 4, 3, seed=8).rows)
    assert torch.equal(drawn.rows, lay_out_anchors(batch, 4, 3, seed=7).rows)

    def predictions(layout) -> set[tuple[int, int, int]]:
        """(anchor's row, step, teacher position)"""
        step, column = (layout.slots >= 0).nonzero().unbind(1)
        rows = layout.rows[layout.slots[step, column]]
        return set(zip(rows.tolist(), step.tolist(), layout.teacher_positions[column].tolist(), strict=True))

    anchors = set(drawn.rows.tolist())
    assert predictions(drawn) == {entry for entry in predictions(all_anchors) if entry[0] in anchors}
    assert all(position == row + 1 + step for row, step, position in predictions(drawn))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "confidence" not in name])
def test_the_loss_is_that_of_every_prediction(target, batch, variant):
    module = module_of(target, **VARIANTS[variant])
    drafter, spec = module.drafter, module.drafter.spec
    loss, counts = module(batch)
    layout = lay_out(batch, spec.num_drafted)
    outputs = draft_blocks(drafter, batch, layout.rows)
    expected, joint = torch.tensor(0.0), torch.ones(len(layout.rows), dtype=torch.bool)
    for step in range(spec.num_drafted):
        losses, hits = [], torch.zeros(len(layout.rows), dtype=torch.bool)
        for slot, position in zip(layout.slots[step].tolist(), layout.teacher_positions.tolist(), strict=True):
            if slot < 0:
                continue
            logits = drafter.lm_head(outputs[step, slot])
            if spec.markov_rank:
                head = drafter.markov_head
                logits = logits + head.markov_w2(head.markov_w1(batch.tokens[layout.rows[slot] + 1 + step]))
            p = (batch.states[position] @ module.head.T).softmax(-1)
            hits[slot] = drafter.token_ids[logits.argmax()] == batch.argmax[position]
            if drafter.t2d[batch.argmax[position]]:
                losses.append(-(p * logits.log_softmax(-1)).sum())
        expected = expected + CONFIG.step_decay**step * torch.stack(losses).mean()
        joint &= hits
        assert counts.joint[step] == joint.sum()
    torch.testing.assert_close(loss, expected)


def test_dpace_weighs_a_position_by_what_the_accept_length_depends_on(target, batch):
    """Worked out prediction by prediction: w_j is the sum over m >= j of the products of smoothed probabilities."""
    alpha, module = 0.3, module_of(target, markov_rank=4)
    module.dpace_alpha = alpha
    drafter = module.drafter
    loss = module(batch)[0]
    layout = lay_out(batch, drafter.spec.num_drafted)
    outputs = draft_blocks(drafter, batch, layout.rows)
    losses, smoothed = ({} for _ in range(2))
    for step, slots in enumerate(layout.slots.tolist()):
        for slot, position in zip(slots, layout.teacher_positions.tolist(), strict=True):
            if slot < 0:
                continue
            head, before = drafter.markov_head, batch.tokens[layout.rows[slot] + 1 + step]
            logits = drafter.lm_head(outputs[step, slot]) + head.markov_w2(head.markov_w1(before))
            p = (batch.states[position] @ module.head.T).softmax(-1)
            drafted = bool(drafter.t2d[batch.argmax[position]])
            q = logits.softmax(-1)[p.argmax()].item() if drafted else 0.0
            smoothed[slot, step] = (1 - alpha) * q + alpha
            if drafted:
                losses[slot, step] = -(p * logits.log_softmax(-1)).sum()
    expected = torch.tensor(0.0)
    for step in range(drafter.spec.num_drafted):
        weighted = []
        for slot, value in [(slot, value) for (slot, at), value in losses.items() if at == step]:
            length = sum(key[0] == slot for key in smoothed)
            reached = [math.prod(smoothed[slot, i] for i in range(m + 1)) for m in range(length)]
            weighted.append(sum(reached[step:]) * value)
        expected = expected + torch.stack(weighted).sum() / len(layout.rows)
    torch.testing.assert_close(loss, expected)
    validated = module.eval()(batch)[0]
    module.dpace_alpha = None
    torch.testing.assert_close(validated, module(batch)[0])  # validation is that of all block drafters


def test_confidence_learns_how_much_of_the_target_a_position_covers(target, batch):
    """Binary cross-entropy with sum min(p, q), prediction by prediction; it leaves the block's gradients alone."""
    module = module_of(target, markov_rank=4, confidence=True)
    drafter, head = module.drafter, module.drafter.confidence_head.proj
    loss = module(batch)[0]
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters() if "confidence" not in name}
    assert head.weight.grad.any() and head.bias.grad.any()
    drafter.zero_grad()
    head.requires_grad_(False)  # as in a LoRA expert, which keeps its generalist's
    plain = module(batch)[0]
    plain.backward()
    for name, gradient in gradients.items():
        torch.testing.assert_close(drafter.get_parameter(name).grad, gradient)

    layout, expected = lay_out(batch, drafter.spec.num_drafted), plain
    outputs = draft_blocks(drafter, batch, layout.rows)
    for step, slots in enumerate(layout.slots.tolist()):
        losses = []
        for slot, position in zip(slots, layout.teacher_positions.tolist(), strict=True):
            if slot < 0:
                continue
            pair = drafter.pairs(batch.tokens[layout.rows[slot] + 1 + step])
            q = (drafter.lm_head(outputs[step, slot]) + drafter.markov_head.markov_w2(pair)).softmax(-1)
            p = (batch.states[position] @ module.head.T).softmax(-1)
            covered = torch.minimum(p, q).sum() * drafter.t2d[batch.argmax[position]]
            confidence = head(torch.cat((outputs[step, slot], pair)))[0].sigmoid()
            losses.append(-covered * confidence.log() - (1 - covered) * (1 - confidence).log())
        expected = expected + CONFIG.step_decay**step * torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)


def test_a_batch_without_answers_adds_nothing(target, batch):
    for module in (module_of(target), module_of(target).eval()):
        loss, counts = module(batch.without_answers())
        assert loss == 0 and not counts.valid.any()


def test_gradients_reach_every_parameter_or_every_addition(target, batch):
    module = module_of(target, markov_rank=4, confidence=True)
    module(batch)[0].backward()
    assert [name for name, p in module.drafter.named_parameters() if p.grad is None or not p.grad.any()] == []

    module = module_of(target, markov_rank=4)
    plain = module(batch)[0]
    add_adapter(module.drafter, LoraConfig(rank=2), seed=1)
    adapted = module(batch)[0]
    torch.testing.assert_close(plain, adapted)  # additions start at zero
    adapted.backward()
    trained = {name for name, p in module.drafter.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained) and any("lm_head" in name for name in trained)
    assert [name for name in trained if "lora_B" in name and not module.drafter.get_parameter(name).grad.any()] == []
