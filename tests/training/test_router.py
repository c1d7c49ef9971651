"""A router learns separable labels, the seed decides its weights, and its probabilities are calibrated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from drafterforge.config.router import RouterConfig
from drafterforge.errors import ConfigError
from drafterforge.router.net import RouterNet
from drafterforge.training.router import (
    RouterModule,
    calibrate_temperature,
    expected_calibration_error,
    fit_router,
    soft_labels,
)

SHORT = RouterConfig(max_steps=24, batch_size=32, lr=0.03, hidden=0)


def clusters(count: int, spread: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around three corners, far from the origin and of unequal scale, and the corner of each."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    points = 4.0 * F.one_hot(labels, 8).float() + spread * torch.randn(count, 8, generator=draw)
    return points * torch.logspace(-2, 2, 8) + 7.0, labels


@pytest.mark.parametrize("hidden", [0, 16])
def test_separable_labels_are_learned_without_a_mistake(hidden):
    net, curve = fit_router(
        clusters(96, 0.3, 0), clusters(30, 0.3, 1), 3, replace(SHORT, hidden=hidden, max_steps=60, lr=0.1), seed=0
    )
    pooled, labels = clusters(90, 0.3, 2)
    assert torch.equal(net(pooled).argmax(dim=1), labels)
    assert curve[-1]["val/accuracy"] == 1.0 and curve[-1]["val/loss"] < curve[0]["val/loss"]


def test_the_same_seed_gives_the_same_router_and_leaves_the_global_seed_alone():
    before = torch.get_rng_state()
    nets = [
        fit_router(clusters(48, 1.0, 0), clusters(30, 1.0, 1), 3, replace(SHORT, hidden=4), s)[0] for s in (5, 5, 6)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other_seed = (net.state_dict() for net in nets)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.0.weight"], other_seed["head.0.weight"])


def test_soft_labels_are_learned_as_a_distribution():
    pooled = torch.eye(2).repeat(32, 1)
    labels = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]).repeat(32, 1)
    config = replace(SHORT, max_steps=80, weight_decay=0.0)
    net, _ = fit_router((pooled, labels), (pooled, labels), 3, config, seed=0)
    torch.testing.assert_close(net.probabilities(torch.eye(2)), labels[:2], atol=0.02, rtol=0)


def test_gradients_reach_every_parameter():
    module = RouterModule(RouterNet(8, 3, hidden=5), SHORT)
    module.log = lambda *_: None
    module.training_step(list(clusters(12, 1.0, 0)), 0).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.net.parameters())


def test_equally_good_drafters_share_a_prompt():
    labels = soft_labels(torch.tensor([[3.0, 3.0, 2.0], [2.0, 4.0, 3.0]]), 0.1)
    assert labels[0, 0] == labels[0, 1] and labels[0, 2] < 1e-4
    torch.testing.assert_close(labels[1], torch.tensor([0.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def drawn(temperature: float, count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from their softmax at a temperature."""
    logits = 3.0 * torch.randn(count, 4)
    labels = torch.multinomial(torch.softmax(logits / temperature, dim=1), 1)[:, 0]
    return logits, labels


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_calibration_finds_the_temperature_that_labels_were_drawn_at(temperature):
    assert calibrate_temperature(*drawn(temperature)) == pytest.approx(temperature, rel=0.08)


def test_calibration_lowers_the_cross_entropy_and_the_calibration_error_and_leaves_the_best_label():
    logits, labels = drawn(3.0)
    held_out, truth = drawn(3.0)
    cooled = held_out / calibrate_temperature(logits, labels)
    assert F.cross_entropy(cooled, truth) < F.cross_entropy(held_out, truth)
    assert torch.equal(cooled.argmax(dim=1), held_out.argmax(dim=1))
    raw, calibrated = (expected_calibration_error(torch.softmax(x, dim=1), truth) for x in (held_out, cooled))
    assert calibrated < 0.03 < raw


def test_a_router_without_mistakes_is_not_fully_certain():
    logits = 9.0 * torch.eye(4).repeat(5, 1)
    confidence = torch.softmax(logits[0] / calibrate_temperature(logits, torch.arange(4).repeat(5)), dim=0).max()
    assert confidence == pytest.approx(1 - 0.75 / 22, abs=1e-3)


def test_calibration_error_of_calibrated_probabilities_is_zero():
    probabilities = torch.tensor([[0.75, 0.25]]).repeat(8, 1)
    labels = torch.tensor([0, 0, 0, 1]).repeat(2)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0.0, abs=1e-7)
    assert expected_calibration_error(torch.eye(3), torch.arange(3)) == 0.0


def test_calibration_error_is_the_weighted_gap_of_confidence_and_accuracy():
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 1, 1])
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 3]), torch.tensor([0, -1]), torch.tensor([0]), torch.rand(2, 2), torch.tensor([])]
)
def test_labels_that_do_not_fit_are_one_line(labels):
    good = torch.randn(2, 8), torch.tensor([0, 1])
    for pair in (((good[0], labels), good), (good, (good[0], labels))):
        with pytest.raises(ConfigError, match="prompts have labels"):
            fit_router(*pair, 3, SHORT, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "mood"}, "router.features must be one of target, text"),
        ({"features": "text"}, "router.encoder= and router.features=text belong together"),
        ({"encoder": "bert"}, "router.encoder= and router.features=text belong together"),
        ({"num_val": 0}, "router.num_val must be >= 1"),
        ({"rephrased": 1.5}, "router.rephrased must lie in"),
        ({"hidden": -1}, "router.hidden must be >= 0"),
        ({"lr": 0.0}, "router.lr must be > 0"),
    ],
)
def test_a_wrong_setting_is_one_line(changes, message):
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**changes)
