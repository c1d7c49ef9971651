"""Every objective against its formula and autograd, and in the chunked loss against plain logits."""

from __future__ import annotations

import pytest
import torch

from drafterforge.config.trainer import LOSSES, TrainerConfig
from drafterforge.drafters.eagle3.train.loss import ttt_loss
from drafterforge.drafters.eagle3.train.objectives import Objective
from drafterforge.drafters.eagle3.train.ttt import lay_out, unroll
from drafterforge.errors import ConfigError
from tests.training.test_ttt import DECAY, MASKS, STEPS, packed


def formula(name: str, eta: float, p: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The loss of each row as the docstring of `objectives` states it."""
    q = logits.softmax(-1)
    alpha = torch.minimum(p, q).sum(-1)
    kl = (p * (p / q).log()).sum(-1)
    share = (-eta * alpha.detach()).exp()
    return {
        "cross_entropy": -(p * q.log()).sum(-1),
        "reverse_kl": (q * (q / p).log()).sum(-1),
        "tv": (p - q).abs().sum(-1) / 2,
        "lk_alpha": -alpha.log(),
        "lk_lambda": share * kl + (1 - share) * (1 - alpha),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_those_of_the_formula(name):
    p = (2 * torch.randn(6, 17)).softmax(-1)
    logits = 2 * torch.randn(6, 17)
    free = logits.double().requires_grad_()
    expected = formula(name, 2.5, p.double(), free)
    expected.sum().backward()
    loss, gradient = Objective(name, 2.5)(p, logits.clone(), gradient=True)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), free.grad, rtol=1e-4, atol=1e-6)
    assert torch.equal(Objective(name, 2.5)(p, logits.clone(), gradient=False)[0], loss)


@pytest.mark.parametrize("name", LOSSES)
def test_the_chunked_loss_has_the_gradients_of_plain_logits(name):
    batch, teacher, drafter = packed(MASKS["packed"])
    layout = lay_out(batch, STEPS)
    outputs = unroll(drafter, batch, layout, STEPS, False).detach().requires_grad_()
    weight = drafter.lm_head.weight.detach().requires_grad_()
    ids, objective = drafter.token_ids, Objective(name)
    loss = ttt_loss(outputs, weight, teacher, layout.slots, DECAY, ids, 3, objective)[0]
    gradients = torch.autograd.grad(loss, (outputs, weight))
    p, expected = (teacher.states @ teacher.head.T).softmax(-1), 0.0
    for step in range(STEPS):
        at = ((layout.slots[step] >= 0) & teacher.in_vocab).nonzero()[:, 0]
        if at.numel():
            logits = outputs[step, layout.slots[step, at]] @ weight.T
            expected = expected + DECAY**step * formula(name, objective.eta, p[at], logits).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for gradient, plain in zip(gradients, torch.autograd.grad(expected, (outputs, weight)), strict=True):
        torch.testing.assert_close(gradient, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_distributions_far_apart_give_finite_gradients(name):
    p = torch.tensor([[200.0, 0.0, -200.0]]).softmax(-1)
    loss, gradient = Objective(name)(p, torch.tensor([[-200.0, 0.0, 200.0]]), gradient=True)
    assert loss.isfinite().all() and gradient.isfinite().all()


def test_a_drafter_equal_to_the_target_is_at_the_minimum_of_every_objective():
    logits = torch.randn(4, 9)
    p = logits.softmax(-1)
    for name in LOSSES:
        loss, gradient = Objective(name)(p, logits.clone(), gradient=True)
        entropy = -(p * p.log()).sum(-1) if name == "cross_entropy" else torch.zeros(4)
        torch.testing.assert_close(loss, entropy, rtol=1e-5, atol=1e-6)
        if name in ("cross_entropy", "reverse_kl"):  # the others have a kink at their minimum
            assert gradient.abs().max() < 1e-6


def test_an_unknown_loss_is_refused():
    with pytest.raises(ConfigError, match="cross_entropy"):
        TrainerConfig(loss="jsd")
