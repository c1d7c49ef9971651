"""How several devices train one drafter: each with all of it (DDP), or each with a share of its state (FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from drafterforge.training.fit import device_options
from drafterforge.training.ranks import PATIENCE, JoinedEnvironment, is_joined, rank


class ShardedStrategy(DDPStrategy):
    """FSDP2: parameters, gradients and optimiser state are sharded, and parameters are gathered for each forward pass.

    A drafter is about one layer deep, so all its trained parameters form one group.  Frozen ones, which would be
    gathered just the same, stay on every device.  Checkpoints are those of one device.  The module cannot be used
    without the other devices any more.
    """

    def configure_ddp(self) -> None:
        """Shard the module, whose parameters are those of the first process."""
        module = self.lightning_module
        for parameter in module.parameters():
            distributed.broadcast(parameter.data, 0)
        fully_shard(module, ignored_params={p for p in module.parameters() if not p.requires_grad})

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The complete weights."""
        return gathered(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The complete state of the optimiser."""
        return gathered(super().optimizer_state(optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load each device's share of a complete state."""
        for optimizer, complete in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state = {
                number: {name: _share(value, parameters[number]) for name, value in values.items()}
                for number, values in complete["state"].items()
            }
            optimizer.load_state_dict({**complete, "state": state})


def gathered(value: Any) -> Any:
    """Nested dicts and lists with complete tensors in place of sharded ones, which the first process gets.

    Every process has to call it.
    """
    if isinstance(value, DTensor):
        complete = value.full_tensor()
        return complete.cpu() if rank() == 0 else None
    if isinstance(value, dict):
        return {key: gathered(item) for key, item in value.items()}
    return [gathered(item) for item in value] if isinstance(value, list) else value


def _share(value: Any, parameter: Tensor) -> Any:
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def strategy_options(strategy: str, device: torch.device) -> dict[str, Any]:
    """Arguments of `Trainer` that make it train on this process's device, with those of the other processes."""
    options = device_options(device)
    if not is_joined():
        return options
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    shared = {
        "parallel_devices": [device] * local_ranks,
        "cluster_environment": JoinedEnvironment(),
        "timeout": PATIENCE,
    }
    if strategy == "fsdp":
        return options | {"strategy": ShardedStrategy(**shared)}
    # buffers are constants
    return options | {"strategy": DDPStrategy(**shared, broadcast_buffers=False, gradient_as_bucket_view=True)}
