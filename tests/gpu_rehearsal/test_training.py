"""Training steps on `meta`: no mix of devices, no read from the device without a reason, the shapes of a real run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule
from torch import Tensor

from drafterforge.config.drafter import CausalLMConfig, LoraConfig
from drafterforge.config.policy import LTDPolicyConfig, ReSpSPolicyConfig
from drafterforge.config.router import RouterConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.block.train import module as block_module
from drafterforge.drafters.causal_lm import train as causal_lm_train
from drafterforge.drafters.causal_lm.model import CausalLMDrafter, new_model, small_config
from drafterforge.drafters.eagle3.train import experts as experts_module
from drafterforge.drafters.eagle3.train import module as distill_module
from drafterforge.drafters.eagle3.train.experts import ExpertsModule
from drafterforge.drafters.eagle3.train.lora import add_adapter
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.router.net import RouterNet
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.targets.load import Target
from drafterforge.training import policies, ppo_module
from drafterforge.training.ppo_module import PPOModule
from drafterforge.training.router import RouterModule
from tests.drafters.blocks import tiny_block
from tests.gpu_rehearsal.tools import Log, rehearse, same_shapes
from tests.models import NORMS, tiny_drafter, tiny_target
from tests.replay.builders import profile, traces

MASKS = [0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0, 1, 1, 1], [0, 0, 0, 1]
SHORT = TrainerConfig(ttt_steps=3, max_steps=10, loss_chunk=4, precision="32-true", loggers=["csv"])
STEPS = 2  # optimiser steps, before a validation
# What is copied to the device: a batch, and what `lay_out` and the loss compute of it on the host.
UPLOADS = {
    "drafters.eagle3.train.ttt.PackedBatch.to: copy": 5 * (STEPS + 1),
    "drafters.eagle3.train.ttt.lay_out: copy": 2 * (STEPS + 1),
    "drafters.eagle3.train.loss._ChunkedLoss._forward: copy": 2 * (STEPS + 1),
    "drafters.eagle3.train.loss.valid_positions: copy": STEPS + 1,
    "kernels.rope.RopeTable._rotations: copy": 1,  # at the first use
}


class Attached:
    """What a module asks of its trainer."""

    accumulate_grad_batches = world_size = 1
    global_step = 0
    strategy = SimpleNamespace(reduce=lambda tensor, reduce_op: tensor)

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers, self.loggers, self.should_stop = list(optimizers), [], False


Step = Callable[[Log], None]


def rehearsed(build: Callable[[str], Step], watched: list[tuple[object, str]]) -> Log:
    """The log of a step on `meta`, which has the shapes of the real one.  build: the step on a device."""
    real_step, step = build("cpu"), build("meta")
    with rehearse(watched=watched) as real:
        real_step(real)
    with rehearse(values=real, watched=watched) as log:
        step(log)
    same_shapes(real, log)
    assert all(real.outputs[name] for _, name in watched)
    return log


def packed(target: Target) -> PackedBatch:
    """A random batch."""
    torch.manual_seed(0)
    mask = torch.tensor([bit for row in MASKS for bit in row]).bool()
    total, width, vocabulary = mask.numel(), target.config.hidden_size, target.config.vocab_size
    return PackedBatch(
        tokens=torch.randint(0, vocabulary, (total,)),
        positions=torch.cat([torch.arange(len(row)) for row in MASKS]),
        loss_mask=mask,
        lengths=[len(row) for row in MASKS],
        features=torch.randn(total, 3 * width),
        states=torch.randn(total, width),
        argmax=torch.randint(0, vocabulary, (total,)),
    )


def distillation(module: LightningModule, device: str, batch: Any, clip: Callable | None = None) -> Step:
    """Optimiser steps and a validation.  clip: how gradients are clipped; None: all together."""
    module.train().to(device)
    options = module.configure_optimizers()
    optimizer, scheduler = options["optimizer"], options["lr_scheduler"]["scheduler"]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.trainer = Attached(optimizer)

    def step(log: Log) -> None:
        module.log = lambda name, value, **_: log.mark(name, value)
        for _ in range(STEPS):
            moved = module.transfer_batch_to_device(batch, torch.device(device), 0)
            loss = module.training_step(moved, 0)
            loss.backward()
            log.mark("gradients", [parameter.grad for parameter in trained])
            clip(optimizer, 1.0) if clip else torch.nn.utils.clip_grad_norm_(trained, module.config.grad_clip or 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            log.mark("weights", module.state_dict())
        module.eval()
        module.on_validation_epoch_start()
        with torch.inference_mode():
            module.validation_step(module.transfer_batch_to_device(batch, torch.device(device), 0), 0)
        module.on_validation_epoch_end()

    return step


WATCHED = [(distill_module, name) for name in ("lay_out", "unroll", "ttt_loss")]


@pytest.mark.parametrize(
    ("norms", "recompute", "loss"),
    [(NORMS["EAGLE-3"], True, "cross_entropy"), (NORMS["EAGLE-3.1"], False, "lk_lambda")],
    ids=["EAGLE-3", "EAGLE-3.1"],
)
def test_distillation_of_a_full_drafter_never_reads_the_device(norms, recompute, loss):
    def build(device: str) -> Step:
        target = tiny_target(num_hidden_layers=4)
        config = TrainerConfig(**{**vars(SHORT), "checkpoint_steps": recompute, "loss": loss})
        module = DistillModule(tiny_drafter(target, **norms), target.head_weight, config)
        return distillation(module, device, packed(target))

    log = rehearsed(build, WATCHED)
    assert log.reads == {} and log.copies == UPLOADS


def test_distillation_of_a_lora_expert_never_reads_the_device():
    def build(device: str) -> Step:
        target = tiny_target(num_hidden_layers=4)
        expert = add_adapter(tiny_drafter(target), LoraConfig(rank=2, alpha=4.0), seed=1)
        return distillation(DistillModule(expert, target.head_weight, SHORT), device, packed(target))

    log = rehearsed(build, WATCHED)
    assert log.reads == {} and log.copies == UPLOADS


def test_distillation_of_several_experts_never_reads_the_device():
    streams = [0, 1, 0]

    def build(device: str) -> Step:
        target = tiny_target(num_hidden_layers=4)
        experts = [add_adapter(tiny_drafter(target), LoraConfig(rank=rank), seed=1) for rank in (2, 2, 3)]
        modules = [DistillModule(expert, target.head_weight, SHORT).to(device) for expert in experts]
        batch = packed(target)
        together = ExpertsModule(modules, ["a", "b", "c"], streams, streams)
        return distillation(together, device, [batch, batch], clip=together.configure_gradient_clipping)

    log = rehearsed(build, [(experts_module, "lay_out"), (experts_module, "unroll"), (distill_module, "ttt_loss")])
    assert log.reads == {}


def test_distillation_of_a_block_drafter_never_reads_the_device():
    def build(device: str) -> Step:
        target = tiny_target(num_hidden_layers=4)
        module = block_module.BlockModule(tiny_block(target, markov_rank=2).train(), target.head_weight, SHORT, 3)
        return distillation(module, device, packed(target))

    log = rehearsed(build, [(block_module, name) for name in ("lay_out_anchors", "draft_blocks", "ttt_loss")])
    assert log.reads == {}


def test_distillation_of_a_small_lm_never_reads_the_device():
    def build(device: str) -> Step:
        target = tiny_target(num_hidden_layers=4)
        model = new_model(small_config(target.config, CausalLMConfig(num_layers=1)))
        drafter = CausalLMDrafter(model, train_embeddings=True)
        module = causal_lm_train.CausalLMModule(drafter, target.head_weight, SHORT)
        return distillation(module, device, packed(target))

    log = rehearsed(build, [(causal_lm_train, name) for name in ("lay_out", "next_token_loss", "chain_counts")])
    assert log.reads == {}


@pytest.mark.parametrize("hidden", [0, 16])
@pytest.mark.parametrize("soft", [False, True])
def test_training_of_a_router_never_reads_the_device(hidden, soft):
    def build(device: str) -> Step:
        torch.manual_seed(0)
        module = RouterModule(RouterNet(8, 3, hidden), RouterConfig(max_steps=8, hidden=hidden)).to(device)
        options = module.configure_optimizers()
        labels = torch.rand(12, 3).softmax(dim=1) if soft else torch.arange(12) % 3
        batch = [torch.randn(12, 8).to(device), labels.to(device)]

        def step(log: Log) -> None:
            module.log = lambda name, value, **_: log.mark(name, value)
            loss = module.training_step(batch, 0)
            loss.backward()
            log.mark("gradients", [parameter.grad for parameter in module.parameters()])
            options["optimizer"].step()
            options["lr_scheduler"]["scheduler"].step()
            module.validation_step(batch, 0)
            log.mark("probabilities", module.net.probabilities(batch[0]))

        return step

    log = rehearsed(build, [])
    assert log.reads == {} and log.copies == {}


NETWORKS = {"actor": [8], "critic": [8], "num_envs": 3, "num_steps": 5, "batch_size": 6, "epochs": 2}
PPO_WATCHED = [(PPOModule, "collect"), (PPOModule, "samples_of"), (ppo_module, "gae"), (ppo_module, "ppo_loss")]


def ppo_update(module: PPOModule, device: str) -> Step:
    """A rollout, and the passes over it, of a copy of the module."""
    twin = PPOModule(deepcopy(module.net), deepcopy(module.environment), module.config).to(device)
    twin.generator.manual_seed(0)
    optimizer = twin.configure_optimizers()
    twin.trainer = Attached(optimizer)

    def step(log: Log) -> None:
        twin.on_fit_start()
        twin.training_step(0, 0)
        log.mark("gradients", [parameter.grad for parameter in twin.net.parameters()])
        log.mark("weights", twin.net.state_dict())
        assert len(twin.curve) == 1 and all(isinstance(value, int | float) for value in twin.curve[0].values())

    return step


@pytest.mark.parametrize(
    "config",
    [
        ReSpSPolicyConfig(**NETWORKS),
        ReSpSPolicyConfig(**NETWORKS, parts=["features", "length"], name="resps-text"),
        ReSpSPolicyConfig(**NETWORKS, objective="throughput", entropy=0.1, schedule="linear", name="resps-maxent"),
        LTDPolicyConfig(**NETWORKS, size_actor=[4, 2]),
        LTDPolicyConfig(**NETWORKS, decides="independent"),
    ],
    ids=["resps", "resps-text", "resps-maxent", "ltd", "ltd independent"],
)
def test_an_update_of_ppo_reads_the_device_once_a_decision_and_twice_a_rollout(config, tmp_path, monkeypatch):
    logs = []

    def update(module: PPOModule, folder, seed) -> list:
        logs.append(rehearsed(lambda device: ppo_update(module, device), PPO_WATCHED))
        return []

    monkeypatch.setattr(policies, "fit_ppo", update)
    inputs = policies.PolicyInputs(traces(), 0, profile(), ActionGrid("g", (1, 2, 4), (1, 2), (1, 2)), tmp_path, 0)
    train = policies.train_ltd if isinstance(config, LTDPolicyConfig) else policies.train_shapes
    train(config, inputs)
    assert logs
    for log in logs:
        assert log.reads == {
            "training.ppo_module.PPOModule.collect: copy": config.num_steps,  # logits: replay is on the host
            "training.ppo_module.PPOModule.rescale_critic: copy": 1,  # the critic's units
            "training.ppo_module.PPOModule.training_step: copy": 1,  # figures of the curve
        }


def test_a_batch_keeps_on_the_host_what_decides_shapes():
    batch = packed(tiny_target()).to(torch.device("meta"))
    assert {name for name, value in vars(batch).items() if isinstance(value, Tensor) and not value.is_meta} == {
        "loss_mask"
    }
