"""Checkpoints of several experts trained together: each expert's file is that of a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterforge.drafters.eagle3.train.experts import ExpertsModule
from drafterforge.training.resume import SafetensorsCheckpointIO

STATE_KEY = "Keeper"  # state_key of `BestCheckpoint`


class ExpertCheckpointIO(SafetensorsCheckpointIO):
    """Writes lightning's checkpoint as one file for each expert that is still trained, and reads it from such files."""

    def __init__(self, module: ExpertsModule, paths: Sequence[Path]) -> None:
        """paths: of each expert's file."""
        super().__init__()
        self.module, self.paths = module, list(paths)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write each expert's file; all of them are of the same step, unless the process is killed in between."""
        for expert in self.module.active:
            super().save_checkpoint(select_expert(checkpoint, expert), self.paths[expert])

    def load_checkpoint(self, path: str | Path, map_location: Any | None = None, **unused: Any) -> dict[str, Any]:
        """Read all files, which are of the same step."""
        return join_experts([super(ExpertCheckpointIO, self).load_checkpoint(file) for file in self.paths])


def prefix_of(expert: int) -> str:
    """What the names of an expert's weights start with."""
    return f"experts.{expert}."


def select_expert(checkpoint: dict[str, Any], expert: int) -> dict[str, Any]:
    """The checkpoint that a run of this expert alone would write."""
    prefix = prefix_of(expert)
    weights = checkpoint["state_dict"].items()
    (optimizer,), (scheduler,) = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
    group = optimizer["param_groups"][expert]
    count = len(optimizer["param_groups"])
    return checkpoint | {
        "state_dict": {name.removeprefix(prefix): value for name, value in weights if name.startswith(prefix)},
        "optimizer_states": [
            {
                "state": {
                    number: optimizer["state"][parameter]
                    for number, parameter in enumerate(group["params"])
                    if parameter in optimizer["state"]
                },
                "param_groups": [group | {"params": list(range(len(group["params"])))}],
            }
        ],
        "lr_schedulers": [
            {
                name: [value[expert]] if isinstance(value, list) and len(value) == count else value
                for name, value in scheduler.items()
            }
        ],
        "callbacks": checkpoint["callbacks"] | {STATE_KEY: checkpoint["callbacks"][STATE_KEY]["experts"][expert]},
    }


def join_experts(checkpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The checkpoint from which `select_expert` selects these."""
    first, state, groups, offset = checkpoints[0], {}, [], 0
    for checkpoint in checkpoints:
        (optimizer,) = checkpoint["optimizer_states"]
        (group,) = optimizer["param_groups"]
        state |= {offset + number: value for number, value in optimizer["state"].items()}
        groups.append(group | {"params": [offset + number for number in group["params"]]})
        offset += len(group["params"])
    schedulers = [checkpoint["lr_schedulers"][0] for checkpoint in checkpoints]
    return first | {
        "state_dict": {
            prefix_of(expert) + name: value
            for expert, checkpoint in enumerate(checkpoints)
            for name, value in checkpoint["state_dict"].items()
        },
        "optimizer_states": [{"state": state, "param_groups": groups}],
        "lr_schedulers": [
            {
                name: [part for scheduler in schedulers for part in scheduler[name]]
                if isinstance(value, list)
                else value
                for name, value in schedulers[0].items()
            }
        ],
        "callbacks": first["callbacks"]
        | {STATE_KEY: {"experts": [checkpoint["callbacks"][STATE_KEY] for checkpoint in checkpoints]}},
    }
