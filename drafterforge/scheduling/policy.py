"""Learnt schedulers: a network over what a scheduler sees, its actions, and how it is stored.

Axes: B rows, A actions, S candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.typed import read_json, typed
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.scheduling.actions import ActionGrid
from drafterforge.scheduling.nets import ActorCritic, act
from drafterforge.scheduling.observation import PARTS, Observation, level_size, observed, of_level, pool_size
from drafterforge.scheduling.schedulers import Scheduler
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import TreeShape

SCHEMA = 1
WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
ROUTER = "router.json"  # what a router has in its place
MOST_LAYERS, WIDEST = 16, 1 << 20  # of a network


@dataclass(frozen=True)
class PolicySpec:
    """What a stored policy is and is for."""

    kind: str  # shapes: a whole shape at once | ltd: depth and size while drafting
    method: str  # resps | ltd | planner
    target_fingerprint: str
    drafter: str  # name
    drafter_sha256: str  # of its manifest: a policy knows one drafter
    device: str  # that its latency profile was measured on
    grid: dict[str, Any]
    parts: list[str] = field(default_factory=list)  # of the observation
    every: int = 1  # cycles an action is kept
    temperature: float = 0.0  # of choosing; 0: the best
    top_k: int = 0  # width, for kind=ltd
    hidden: dict[str, list[int]] = field(default_factory=dict)  # network -> widths of its hidden layers
    schema: int = SCHEMA


class ShapePolicy(Scheduler):
    """Chooses a whole shape, kept for some cycles."""

    def __init__(self, spec: PolicySpec, net: ActorCritic, seed: int = 0) -> None:
        self.spec, self.net, self.name = spec, net.eval(), spec.method
        self.grid, self.every = ActionGrid.of(spec.grid), spec.every
        self.depth = max(self.grid.depths)
        self.reads_features, self.reads_text = "features" in spec.parts, "text" in spec.parts
        self.generator = torch.Generator(device=net.mean.device).manual_seed(seed)

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The best shapes, or some drawn at a temperature."""
        logits = self.net.logits(observed(self.spec.parts, seen))
        return [self.grid.shapes[place] for place in act(logits, self.spec.temperature, self.generator).tolist()]


class LTDPolicy(Scheduler):
    """Decides after every level whether to draft another, and then how many candidates to verify."""

    def __init__(self, spec: PolicySpec, depth_net: ActorCritic | None, size_net: ActorCritic | None) -> None:
        """A network that is missing: as deep, or as large, as the grid allows."""
        self.spec, self.name, self.grid = spec, spec.method, ActionGrid.of(spec.grid)
        self.depth_net, self.size_net = depth_net, size_net
        self.depth, self.every = max(self.grid.depths), 1
        self.sizes = [count for count in self.grid.num_tokens if count > 1]
        self.shape = TreeShape(self.sizes[-1], self.depth, spec.top_k)

    def choose(self, seen: Observation) -> list[TreeShape]:
        """The largest tree, which `growth` cuts."""
        return [self.shape] * seen.rows

    def growth(self, lengths: Tensor) -> Growth:
        """Decisions for rows with roots at these positions."""
        return LTDGrowth(self, lengths)

    def nodes(self, depths: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Nodes to verify of trees with so many levels [B] and roots at `lengths` [B]; scores: [B, P], see `Growth`.

        As in training, a size that a pool cannot fill is not chosen; one that is smaller than all sizes is taken whole.
        """
        top_k, sizes = self.spec.top_k, torch.tensor(self.sizes, device=scores.device)
        pool = depths * level_size(top_k) - level_size(top_k) + top_k + 1
        fits = sizes <= pool[:, None]
        fits[:, 0] = True
        if self.size_net is None:
            place = fits.sum(dim=1) - 1
        else:
            seen = of_level(scores, pool_size(top_k, self.depth), lengths, depths)
            place = self.size_net.logits(seen, fits).argmax(dim=1)
        return torch.minimum(sizes[place], pool)


class LTDGrowth:
    """Decisions of an `LTDPolicy` for the rows of one draft."""

    def __init__(self, policy: LTDPolicy, lengths: Tensor) -> None:
        self.policy, self.lengths = policy, lengths

    def go_on(self, level: int, scores: Tensor) -> Tensor:
        """See `Growth`."""
        policy = self.policy
        if policy.depth_net is None:
            return torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        seen = of_level(scores, level_size(policy.spec.top_k), self.lengths, level)
        return policy.depth_net.logits(seen).argmax(dim=1) == 1

    def nodes(self, depths: Tensor, scores: Tensor) -> Tensor:
        """See `Growth`."""
        return self.policy.nodes(depths, scores, self.lengths)


def save_policy(folder: Path, spec: PolicySpec, nets: dict[str, ActorCritic]) -> None:
    """Write a policy's weights and description."""
    tensors = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
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
    spec = typed(PolicySpec, found, str(path))
    if not spec.parts and spec.kind == "shapes":
        raise ArtifactError(f"{path}: parts is empty; wanted some of {', '.join(PARTS)}")
    try:
        tensors = load_file(folder / WEIGHTS)
        nets = {name: _net(name, spec.hidden[name], *size, tensors) for name, size in sizes.items()}
        if spec.kind == "shapes":
            return ShapePolicy(spec, nets["shapes"], seed)
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
