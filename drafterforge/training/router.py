"""Trains and calibrates a router.  Axes: n prompts, F features, L labels."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drafterforge.config.router import RouterConfig
from drafterforge.errors import ConfigError
from drafterforge.router.net import RouterNet
from drafterforge.training.fit import fit, quiet

LOG_TEMPERATURES = (-3.0, 3.0)  # range that is searched


class RouterModule(LightningModule):
    """Cross-entropy of a router's net with hard labels [n] or soft ones [n, L]."""

    def __init__(self, net: RouterNet, config: RouterConfig) -> None:
        super().__init__()
        self.net, self.config = net, config
        self.curve: list[dict[str, float]] = []  # one point per validation

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Loss of a batch."""
        pooled, labels = batch
        loss = F.cross_entropy(self.net(pooled), labels, label_smoothing=self._smoothing(labels))
        self.log("train/loss", loss.detach())
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Loss and accuracy of a batch."""
        pooled, labels = batch
        logits = self.net(pooled)
        best = labels if labels.dim() == 1 else labels.argmax(dim=1)
        self.log("val/loss", F.cross_entropy(logits, labels))
        self.log("val/accuracy", (logits.argmax(dim=1) == best).float().mean())

    def on_validation_epoch_end(self) -> None:
        """Record a point of the curve."""
        figures = {key: float(value) for key, value in self.trainer.callback_metrics.items()}
        self.curve.append({"step": self.global_step, **figures})

    def configure_optimizers(self) -> dict:
        """AdamW with a cosine decay to zero."""
        config = self.config
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _smoothing(self, labels: Tensor) -> float:
        """Label smoothing, of hard labels only: soft ones are smooth already."""
        return self.config.label_smoothing if labels.dim() == 1 else 0.0


def fit_router(
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    num_labels: int,
    config: RouterConfig,
    seed: int,
) -> tuple[RouterNet, list[dict[str, float]]]:
    """A trained and calibrated net, and its learning curve; a function of the seed.

    train, val: pooled features [n, F], and labels: int64 [n], or soft [n, L].
    """
    check_examples(train, num_labels, "train")
    check_examples(val, num_labels, "val")
    quiet()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = RouterNet(train[0].shape[1], num_labels, config.hidden)
        net.normalise(train[0])
        module = RouterModule(net, config)
        fit_module(module, train, val)
    net.eval().requires_grad_(False)
    net.temperature.fill_(calibrate_temperature(net(val[0]), val[1]))
    return net, module.curve


def fit_module(module: RouterModule, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> None:
    """`max_steps` optimiser steps, validated about ten times.  Raises KeyboardInterrupt when interrupted."""
    config = module.config
    loaders = (
        DataLoader(TensorDataset(*train), batch_size=config.batch_size, shuffle=True),
        DataLoader(TensorDataset(*val), batch_size=len(val[0])),
    )
    trainer = Trainer(
        accelerator="cpu",
        max_steps=config.max_steps,
        max_epochs=-1,
        check_val_every_n_epoch=max(1, config.max_steps // (10 * len(loaders[0]))),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fit(trainer, module, *loaders)


def check_examples(examples: tuple[Tensor, Tensor], num_labels: int, split: str) -> None:
    """Refuse labels that do not fit the prompts or the router."""
    pooled, labels = examples
    soft = labels.dim() == 2 and labels.shape[1] == num_labels
    hard = labels.dim() == 1 and len(labels) and labels.min() >= 0 and labels.max() < num_labels
    if not (soft or hard) or not len(pooled) or len(pooled) != len(labels):
        raise ConfigError(
            f"{split}: {len(pooled)} prompts have labels {list(labels.shape)}, wanted one of {num_labels} each, "
            f"or {num_labels} probabilities each"
        )


def soft_labels(accept_lengths: Tensor, temperature: float) -> Tensor:
    """Label probabilities [n, L] from the MAT of each drafter on each prompt, [n, L]: near ties share a prompt."""
    return torch.softmax(accept_lengths.float() / temperature, dim=1)


def calibrate_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of least cross-entropy for logits [n, L] and labels: int64 [n], or soft [n, L].

    Guo et al., arXiv 1706.04599.  If all logits are right, no temperature is low enough; so, as in Platt scaling, a
    hard label leaves a probability of 1 / (n + 2) to the others.
    """
    logits = logits.double()
    if labels.dim() == 1:
        count, width = logits.shape
        doubt = 1 / (count + 2)
        labels = F.one_hot(labels, width).double() * (1 - doubt) + doubt / width

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log_temperature), labels.double()))

    return float(np.exp(minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded").x))


def expected_calibration_error(probabilities: Tensor, labels: Tensor, num_bins: int = 15) -> float:
    """Mean distance of confidence and accuracy over equal bins of confidence, weighted by bin size.

    probabilities: [n, L].  labels: int64 [n].
    """
    confidence, predicted = probabilities.double().max(dim=1)
    correct = (predicted == labels).double()
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gaps = torch.zeros(num_bins, dtype=torch.double).index_add(0, bins, correct - confidence)
    return float(gaps.abs().sum() / len(labels))
