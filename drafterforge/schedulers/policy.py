"""Learnt schedulers: a network over what a scheduler sees, its actions; and how policies of every kind are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.typed import read_json, typed
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.schedulers.observation import PARTS, Observation, observed
from drafterforge.schedulers.spec import SCHEMA, PolicySpec
from drafterforge.tree.grow import TreeShape

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
ROUTER = "router.json"  # what a router has in its place
MOST_LAYERS, WIDEST = 16, 1 << 20  # of a network


class ShapePolicy(Scheduler):
    """Chooses a whole shape, kept for some cycles."""

    def __init__(self, spec: PolicySpec, net: ActorCritic, seed: int = 0) -> None:
        self.spec, self.net, self.name = spec, net.eval(), spec.method
        self.grid, self.every = ActionGrid.of(spec.grid), spec.every
        self.depth = max(self.grid.depths)
        self.reads_children = "children" in spec.parts
        self.reads_features, self.reads_text = "features" in spec.parts, "text" in spec.parts
        self.generator = torch.Generator(device=net.mean.device).manual_seed(seed)

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The best shapes, or some drawn at a temperature."""
        logits = self.net.logits(observed(self.spec.parts, seen).to(self.net.mean.device))
        return [self.grid.shapes[place] for place in act(logits, self.spec.temperature, self.generator).tolist()]


def save_policy(folder: Path, spec: PolicySpec, nets: dict[str, ActorCritic], seconds: Tensor | None = None) -> None:
    """Write a policy's weights and description; seconds: of kind=marginal."""
    tensors = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
    tensors |= {} if seconds is None else {"seconds": seconds}
    save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, folder / WEIGHTS)
    sizes = {name: [net.observation_size, net.num_actions] for name, net in nets.items()}
    save_json_atomic(folder / DESCRIPTION, asdict(spec) | {"nets": sizes})


def load_policy(folder: Path | str, seed: int = 0) -> Scheduler:
    """The scheduler that is stored in a folder."""
    folder = Path(folder)
    path = folder / DESCRIPTION
    if not path.exists() and (folder / ROUTER).exists():
        raise ConfigError(
            f"{folder} is a router, which picks drafters, and no tree scheduler; type pool.router={folder.name}, or "
            "drafterforge train-policy policy=planner for a scheduler"
        )
    found = read_json(path)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        version = found.get("schema") if isinstance(found, dict) else None
        raise ArtifactError(f"{folder} has a policy of schema {str(version)[:20]}, this version reads {SCHEMA}")
    sizes = typed(dict[str, list[int]], found.pop("nets", None), f"{path}: nets")
    spec = typed(PolicySpec, {"numbers": {}} | found, str(path))  # which policies before `marginal` do not name
    if not spec.parts and spec.kind == "shapes":
        raise ArtifactError(f"{path}: parts is empty; wanted some of {', '.join(PARTS)}")
    try:
        tensors = load_file(folder / WEIGHTS)
        nets = {name: _net(name, spec.hidden[name], *size, tensors) for name, size in sizes.items()}
        if spec.kind == "shapes":
            return ShapePolicy(spec, nets["shapes"], seed)
        if spec.kind == "marginal":
            return MarginalPolicy(spec, tensors["seconds"])
        return LTDPolicy(spec, nets.get("depth"), nets.get("size"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError, SafetensorError, ConfigError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(
            f"{folder} holds no whole policy: {reason}; type drafterforge train-policy overwrite=true"
        ) from error


def _net(name: str, hidden: Sequence[int], size: int, actions: int, tensors: dict[str, Tensor]) -> ActorCritic:
    own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    critic = [value.shape[1] for key, value in own.items() if key.startswith("critic.") and key.endswith("weight")][:-1]
    if len(hidden) > MOST_LAYERS or not all(0 < width <= WIDEST for width in (*hidden, size, actions)):
        raise ValueError(f"{name} has layers of {size}, {str(list(hidden))[:80]} and {actions} numbers")
    with torch.device("meta"):  # what is described is compared with what is stored before it costs memory
        net = ActorCritic(size, actions, hidden, critic)
    net.load_state_dict(own, assign=True)
    return net.float().frozen()


def check_policy(policy: Scheduler, target_fingerprint: str, drafter: str, drafter_sha256: str, folder: Path) -> None:
    """Refuse a policy of another target or drafter."""
    spec = policy.spec
    if spec.target_fingerprint != target_fingerprint:
        raise ConfigError(
            f"{folder} is a policy for a target with fingerprint {spec.target_fingerprint}, this one has "
            f"{target_fingerprint}; type drafterforge train-policy"
        )
    if spec.drafter_sha256 != drafter_sha256:
        raise ConfigError(
            f"{folder} is a policy for drafter {spec.drafter!r} as it was when traces were recorded, not for this "
            f"{drafter!r}; type drafterforge train-policy drafter={drafter}"
        )
