"""The fast unrolled loss equals a slow one written slot by slot."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.eagle3.train.loss import Teacher, ttt_loss
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out, unroll
from tests.models import NORMS, tiny_drafter, tiny_target, uneven

STEPS, DECAY = 4, 0.8


def packed(masks: list[list[int]], seed: int = 0, **changes: object) -> tuple[PackedBatch, Teacher, object]:
    """A random batch with the given loss masks, its teacher and a drafter."""
    target = tiny_target()
    drafter = uneven(tiny_drafter(target, **changes))
    torch.manual_seed(seed)
    mask = torch.tensor([bit for row in masks for bit in row]).bool()
    total, width = mask.numel(), drafter.spec.hidden_size
    batch = PackedBatch(
        tokens=torch.randint(0, drafter.spec.vocab_size, (total,)),
        positions=torch.cat([torch.arange(len(row)) for row in masks]),
        loss_mask=mask,
        lengths=[len(row) for row in masks],
        features=torch.randn(total, 3 * width),
        states=torch.randn(total, width),
        argmax=torch.randint(0, drafter.spec.vocab_size, (total,)),
    )
    layout = lay_out(batch, STEPS)
    positions = layout.teacher_positions
    head = torch.randn(drafter.spec.draft_vocab_size, width)
    teacher = Teacher(batch.states[positions], head, batch.argmax[positions], drafter.t2d[batch.argmax[positions]])
    return batch, teacher, drafter


def slow_loss(batch: PackedBatch, teacher: Teacher, drafter) -> tuple[torch.Tensor, dict]:
    """One slot and one step at a time, with plain attention over a list of keys."""
    spec, layer = drafter.spec, drafter.midlayer
    losses = [[] for _ in range(STEPS)]
    valid, correct = torch.zeros(STEPS), torch.zeros(STEPS)
    joint = torch.zeros(STEPS)
    start = 0
    for length in batch.lengths:
        part = slice(start, start + length)
        tokens, mask = batch.tokens[part], batch.loss_mask[part]
        features, states, argmax = batch.features[part], batch.states[part], batch.argmax[part]
        start += length

        def slot(token, hidden, position, keys, layer=layer):
            x = torch.cat(
                (
                    layer.input_layernorm(drafter.embed(token[None])),
                    layer.hidden_norm(hidden[None]),
                ),
                dim=-1,
            )
            rope = drafter.rotary(torch.tensor([position]), torch.float32)
            from drafterforge.kernels.rope import apply_rope

            attention = layer.self_attn
            q = apply_rope(attention.q_proj(x).view(1, spec.num_heads, -1), *rope)[0]
            k = apply_rope(attention.k_proj(x).view(1, spec.num_key_heads, -1), *rope)[0]
            v = attention.v_proj(x).view(spec.num_key_heads, -1)
            keys = [*keys, (k, v)]
            group = spec.num_heads // spec.num_key_heads
            all_k = torch.stack([pair[0] for pair in keys]).repeat_interleave(group, 1)
            all_v = torch.stack([pair[1] for pair in keys]).repeat_interleave(group, 1)
            prob = (torch.einsum("hd,shd->hs", q, all_k) / spec.head_dim**0.5).softmax(-1)
            mixed = torch.einsum("hs,shd->hd", prob, all_v).reshape(1, -1)
            residual = layer.hidden_norm(hidden[None]) if spec.norm_before_residual else hidden[None]
            hidden = residual + attention.o_proj(mixed)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            return hidden[0], drafter.norm(hidden)[0], keys

        if spec.fc_norm:
            parts = features.chunk(3, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(drafter.fc_norm, parts, strict=True)], dim=-1)
        fused = drafter.fc(features)
        prefix: list = []
        for j in range(length - 1):
            hidden, normed, prefix = slot(tokens[j + 1], fused[j], j, prefix)
            keys = prefix
            still = True
            for step in range(STEPS):
                predicted = j + 2 + step
                if predicted >= length or not mask[j + 1 : predicted + 1].all():
                    break
                if step:
                    read = normed if spec.norm_output else hidden
                    hidden, normed, keys = slot(tokens[j + 1 + step], read, j + step, keys)
                logits = drafter.lm_head(normed)
                teaching = predicted - 1
                p = (states[teaching] @ teacher.head.T).softmax(-1)
                hit = bool(drafter.token_ids[logits.argmax()] == argmax[teaching])
                valid[step] += 1
                correct[step] += hit
                still = still and hit
                joint[step] += still
                if drafter.t2d[argmax[teaching]]:
                    losses[step].append(-(p * logits.log_softmax(-1)).sum())
    loss = sum(DECAY**i * torch.stack(slots).mean() for i, slots in enumerate(losses) if slots)
    return loss, {"valid": valid, "marginal": correct, "joint": joint}


MASKS = {
    "one answer": [[0, 0, 0, 1, 1, 1, 1, 1, 1]],
    "packed": [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1]],
    "two turns": [[0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1]],
    "an answer of one token": [[0, 0, 1], [0, 1, 1, 1, 1, 1, 1]],
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("before", [False, True], ids=["norm after residual", "norm before residual"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_packed_loss_and_gradients_equal_the_slow_ones(masks, recompute, before):
    compare_with_the_slow_ones(masks, recompute, norm_before_residual=before)


@pytest.mark.parametrize("norms", [norms for norms in NORMS.values() if norms], ids=[*NORMS][1:])
def test_loss_and_gradients_equal_the_slow_ones_with_the_norms_of_eagle_3_1(norms):
    compare_with_the_slow_ones(MASKS["packed"], True, **norms)


def compare_with_the_slow_ones(masks, recompute, **changes):
    batch, teacher, drafter = packed(masks, **changes)
    layout = lay_out(batch, STEPS)
    outputs = unroll(drafter, batch, layout, STEPS, recompute)
    loss, counts = ttt_loss(outputs, drafter.lm_head.weight, teacher, layout.slots, DECAY, drafter.token_ids, chunk=3)
    loss.backward()
    fast = {name: parameter.grad.clone() for name, parameter in drafter.named_parameters()}
    drafter.zero_grad()
    expected, sums = slow_loss(batch, teacher, drafter)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(
            fast[name],
            parameter.grad,
            rtol=1e-4,
            atol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    for name, value in sums.items():
        assert getattr(counts, name).tolist() == value.tolist(), name
    torch.testing.assert_close(counts.mean_loss(DECAY), loss.detach())


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_every_parameter_gets_a_gradient(norms):
    batch, teacher, drafter = packed(MASKS["packed"], **norms)
    layout = lay_out(batch, STEPS)
    outputs = unroll(drafter, batch, layout, STEPS, recompute=True)
    ttt_loss(outputs, drafter.lm_head.weight, teacher, layout.slots, DECAY, drafter.token_ids, 64)[0].backward()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_batch_without_answers_gives_no_loss():
    batch, _, _ = packed([[0, 0, 0, 0], [0, 0]])
    layout = lay_out(batch, STEPS)
    assert layout.rows.numel() == 0 and layout.slots.shape[1] == 0


def test_a_norm_in_float32_under_autocast_trains(monkeypatch):
    """CUDA's autocast computes rms_norm in float32; the test imitates that, because CPU autocast does not."""
    import torch.nn.functional as F

    plain = F.rms_norm
    monkeypatch.setattr(F, "rms_norm", lambda x, shape, weight, eps: plain(x.float(), shape, weight.float(), eps))
    batch, teacher, drafter = packed(MASKS["packed"])
    layout = lay_out(batch, STEPS)
    exact = ttt_loss(
        unroll(drafter, batch, layout, STEPS, False),
        drafter.lm_head.weight,
        teacher,
        layout.slots,
        DECAY,
        drafter.token_ids,
        8,
    )
    with torch.autocast("cpu", torch.bfloat16):
        outputs = unroll(drafter, batch, layout, STEPS, True)
        loss, counts = ttt_loss(outputs, drafter.lm_head.weight, teacher, layout.slots, DECAY, drafter.token_ids, 8)
        assert outputs.dtype == torch.bfloat16
        wide = ttt_loss(outputs.float(), drafter.lm_head.weight, teacher, layout.slots, DECAY, drafter.token_ids, 8)
    loss.backward()
    assert loss.dtype == torch.float32 and counts.loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(loss, wide[0], rtol=0.01, atol=0.01)
    assert all(torch.isfinite(parameter.grad).all() for parameter in drafter.parameters())
