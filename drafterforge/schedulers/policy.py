"""`ShapePolicy`, whose network chooses among tree shapes, and the files of policies of every kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import remake_hint
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.schedulers.observation import (
    CHILDREN,
    PARTS,
    Observation,
    level_size,
    observation_size,
    observation_vector,
    pool_size,
)
from drafterforge.schedulers.spec import SCHEMA, PolicySpec
from drafterforge.tree.grow import TreeShape

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
KINDS = ("shapes", "ltd", "marginal")
ROUTER = "router.json"  # a router has this file instead
MOST_LAYERS, WIDEST = 16, 1 << 20  # most layers of a network, and their largest width


class ShapePolicy(Scheduler):
    """Chooses a tree shape and keeps it for some cycles."""

    def __init__(self, spec: PolicySpec, net: ActorCritic, seed: int = 0) -> None:
        self.spec, self.net, self.name = spec, net.eval(), spec.method
        self.grid, self.hold_cycles = ActionGrid.of(spec.grid), spec.hold_cycles
        self.depth, self.stochastic = max(self.grid.depths), spec.temperature > 0
        self.reads_children = "children" in spec.parts
        self.reads_features, self.reads_text = "features" in spec.parts, "text" in spec.parts
        self.generator = torch.Generator(device=net.mean.device).manual_seed(seed)

    def largest_shapes(self) -> Sequence[TreeShape]:
        """All shapes of the grid."""
        return self.grid.shapes

    def choose(self, observation: Observation) -> list[TreeShape]:
        """The best shapes, or samples at a temperature."""
        logits = self.net.logits(observation_vector(self.spec.parts, observation).to(self.net.mean.device))
        actions = act(logits, self.spec.temperature, self.generator).tolist()
        return [self.grid.shapes[action] for action in actions]


def save_policy(folder: Path, spec: PolicySpec, nets: dict[str, ActorCritic], seconds: Tensor | None = None) -> None:
    """Write a policy's weights and description.  seconds: for kind=marginal, see `MarginalPolicy`."""
    tensors = {f"{name}.{key}": value for name, net in nets.items() for key, value in net.state_dict().items()}
    tensors |= {} if seconds is None else {"seconds": seconds}
    save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, folder / WEIGHTS)
    sizes = {name: [net.observation_size, net.num_actions] for name, net in nets.items()}
    description = asdict(spec) | {"nets": sizes}
    description["every"] = description.pop("hold_cycles")
    save_json_atomic(folder / DESCRIPTION, description)


def load_policy(folder: Path | str, seed: int = 0) -> Scheduler:
    """The scheduler of a folder that `save_policy` wrote; older descriptions are read, too."""
    folder = Path(folder)
    path = folder / DESCRIPTION
    if not path.exists() and (folder / ROUTER).exists():
        raise ConfigError(
            f"{folder} is a router, not a tree scheduler; type pool.router={folder.name}, or "
            "`drafterforge train-policy policy=planner` for a scheduler"
        )
    description = read_json(path)
    if not isinstance(description, dict) or description.get("schema") != SCHEMA:
        version = description.get("schema") if isinstance(description, dict) else None
        raise ArtifactError(f"{folder} has a policy of schema {shorten(version)}, but this version reads {SCHEMA}")
    sizes = parse_as(dict[str, list[int]], description.pop("nets", None), f"{path}: nets")
    description.setdefault("numbers", {})  # policies from before `marginal` have none
    if "every" in description:
        description["hold_cycles"] = description.pop("every")
    spec = parse_as(PolicySpec, description, str(path))
    _check_spec(spec, path)
    try:
        tensors = load_file(folder / WEIGHTS)
        nets = {name: _net(name, spec.hidden[name], *size, tensors) for name, size in sizes.items()}
        _check_nets(spec, nets)
        if spec.kind == "shapes":
            return ShapePolicy(spec, nets["shapes"], seed)
        if spec.kind == "marginal":
            return MarginalPolicy(spec, tensors["seconds"])
        return LTDPolicy(spec, nets.get("depth"), nets.get("size"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError, SafetensorError, ConfigError) as error:
        raise ArtifactError(f"{folder} holds no usable policy: {shorten(error, 200)}; {remake_hint(folder)}") from error


def _check_spec(spec: PolicySpec, path: Path) -> None:
    """Refuse values that no policy has; `path` names the file in errors."""
    if spec.kind not in KINDS:
        raise ArtifactError(f"{path}: kind is {quote(spec.kind)}, wanted {', '.join(KINDS)}")
    parts = [part for part in PARTS if part in spec.parts]
    if sorted(spec.parts) != sorted(parts) or (not spec.parts and spec.kind == "shapes"):
        raise ArtifactError(f"{path}: parts is {shorten(spec.parts)}; wanted some of {', '.join(PARTS)}, each once")
    if spec.hold_cycles < 1:
        raise ArtifactError(f"{path}: every is {spec.hold_cycles}, wanted 1 cycle or more")
    if spec.temperature < 0:
        raise ArtifactError(f"{path}: temperature is {spec.temperature}, wanted 0 or more")


def _check_nets(spec: PolicySpec, nets: dict[str, ActorCritic]) -> None:
    """Refuse networks whose inputs or actions do not fit the description."""
    grid = ActionGrid.of(spec.grid)
    sizes: dict[str, tuple[int | None, int]] = {}  # size of the input (None: depends on the target), and actions
    if spec.kind != "shapes" and grid.top_ks != (spec.top_k,):
        raise ValueError(f"top_k is {spec.top_k}, wanted the only one of its grid, which has {shorten(grid.top_ks)}")
    if spec.kind == "shapes":
        sizes = {"shapes": (None, len(grid))}
    elif spec.kind == "ltd":
        pool = pool_size(spec.top_k, max(grid.depths))
        sizes = {"depth": (level_size(spec.top_k) + 2, 2), "size": (pool + 2, sum(n > 1 for n in grid.num_tokens))}
    for name, net in nets.items():
        if name not in sizes:
            raise ValueError(f"a policy of kind {spec.kind} has no network {quote(name)}")
        reads, actions = sizes[name]
        if (net.observation_size, net.num_actions) != (reads or net.observation_size, actions):
            expected = f"{actions} actions" if reads is None else f"{reads} and {actions}"
            raise ValueError(
                f"its network {name} reads {net.observation_size} numbers and has {net.num_actions} actions; "
                f"wanted {expected}"
            )


def check_observations(
    policy: Scheduler, hidden_size: int, num_taps: int, draft_sizes: Iterable[int], folder: Path
) -> None:
    """Refuse a policy whose network does not fit the observations of this target and its drafters.

    hidden_size, num_taps: of the target.  draft_sizes: sizes of the drafters' vocabularies.
    """
    if not isinstance(policy, ShapePolicy):
        return
    for size in draft_sizes:
        num_values = observation_size(policy.spec.parts, hidden_size, num_taps, min(CHILDREN, size))
        if policy.net.observation_size != num_values:
            raise ArtifactError(
                f"{folder / DESCRIPTION}: parts is {', '.join(policy.spec.parts)}, which is {num_values} numbers, "
                f"but the network reads {policy.net.observation_size}; {remake_hint(folder)}"
            )


def _net(name: str, hidden: Sequence[int], size: int, actions: int, tensors: dict[str, Tensor]) -> ActorCritic:
    state = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    critic = [value.shape[1] for key, value in state.items() if key.startswith("critic.") and key.endswith("weight")][
        :-1
    ]
    if len(hidden) > MOST_LAYERS or not all(0 < width <= WIDEST for width in (*hidden, size, actions)):
        raise ValueError(f"{name} has layers of {size}, {shorten(list(hidden))} and {actions} numbers")
    with torch.device("meta"):  # the description is compared with the stored tensors before memory is allocated
        net = ActorCritic(size, actions, hidden, critic)
    net.load_state_dict(state, assign=True)
    return net.float().frozen()


def check_policy(policy: Scheduler, target_fingerprint: str, drafter: str, drafter_sha256: str, folder: Path) -> None:
    """Refuse a policy of another target or drafter."""
    spec = policy.spec
    if spec.target_fingerprint != target_fingerprint:
        raise ConfigError(
            f"{folder} is a policy for a target with fingerprint {spec.target_fingerprint}, but this target has "
            f"{target_fingerprint}; type `drafterforge train-policy`"
        )
    if spec.drafter_sha256 != drafter_sha256:
        raise ConfigError(
            f"{folder} was trained for drafter {quote(spec.drafter)}, which is not this {quote(drafter)} or has "
            f"changed since; type `drafterforge train-policy drafter={drafter}`"
        )
