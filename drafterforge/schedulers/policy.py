"""Learnt schedulers: a network over what a scheduler sees, its actions; and how policies of every kind are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.base import Scheduler
from drafterforge.schedulers.growing import LTDPolicy
from drafterforge.schedulers.marginal import MarginalPolicy
from drafterforge.schedulers.nets import ActorCritic, act
from drafterforge.schedulers.observation import CHILDREN, PARTS, Observation, level_size, observed, pool_size, widths
from drafterforge.schedulers.spec import SCHEMA, PolicySpec
from drafterforge.tree.grow import TreeShape

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
KINDS = ("shapes", "ltd", "marginal")
ROUTER = "router.json"  # what a router has in its place
MOST_LAYERS, WIDEST = 16, 1 << 20  # of a network


class ShapePolicy(Scheduler):
    """Chooses a whole shape, kept for some cycles."""

    def __init__(self, spec: PolicySpec, net: ActorCritic, seed: int = 0) -> None:
        self.spec, self.net, self.name = spec, net.eval(), spec.method
        self.grid, self.every = ActionGrid.of(spec.grid), spec.every
        self.depth, self.stochastic = max(self.grid.depths), spec.temperature > 0
        self.reads_children = "children" in spec.parts
        self.reads_features, self.reads_text = "features" in spec.parts, "text" in spec.parts
        self.generator = torch.Generator(device=net.mean.device).manual_seed(seed)

    def replayed_shapes(self) -> Sequence[TreeShape]:
        """All shapes of the grid."""
        return self.grid.shapes

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
        raise ArtifactError(f"{folder} has a policy of schema {shorten(version)}, this version reads {SCHEMA}")
    sizes = parse_as(dict[str, list[int]], found.pop("nets", None), f"{path}: nets")
    spec = parse_as(PolicySpec, {"numbers": {}} | found, str(path))  # which policies before `marginal` do not name
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
        raise ArtifactError(
            f"{folder} holds no whole policy: {shorten(error, 200)}; type drafterforge train-policy overwrite=true"
        ) from error


def _check_spec(spec: PolicySpec, path: Path) -> None:
    """Refuse values that no policy has; `path` names the file in errors."""
    if spec.kind not in KINDS:
        raise ArtifactError(f"{path}: kind is {quote(spec.kind)}, wanted {', '.join(KINDS)}")
    known = [part for part in PARTS if part in spec.parts]
    if sorted(spec.parts) != sorted(known) or (not spec.parts and spec.kind == "shapes"):
        raise ArtifactError(f"{path}: parts is {shorten(spec.parts)}; wanted some of {', '.join(PARTS)}, each once")
    if spec.every < 1:
        raise ArtifactError(f"{path}: every is {spec.every}, wanted 1 cycle or more")
    if spec.temperature < 0:
        raise ArtifactError(f"{path}: temperature is {spec.temperature}, wanted 0 or more")


def _check_nets(spec: PolicySpec, nets: dict[str, ActorCritic]) -> None:
    """Refuse networks that read or decide other things than a policy of this description."""
    grid = ActionGrid.of(spec.grid)
    sizes: dict[str, tuple[int | None, int]] = {}  # numbers read, where the target does not decide; and actions
    if spec.kind != "shapes" and grid.top_ks != (spec.top_k,):
        raise ValueError(f"top_k is {spec.top_k}, wanted the only one of its grid, which has {shorten(grid.top_ks)}")
    if spec.kind == "shapes":
        sizes = {"shapes": (None, len(grid))}
    elif spec.kind == "ltd":
        pool = pool_size(spec.top_k, max(grid.depths))
        sizes = {"depth": (level_size(spec.top_k) + 2, 2), "size": (pool + 2, sum(n > 1 for n in grid.num_tokens))}
    for name, net in nets.items():
        if name not in sizes:
            raise ValueError(f"its network {quote(name)} is none of kind {spec.kind}")
        reads, actions = sizes[name]
        found = net.observation_size, net.num_actions
        if found != (reads or net.observation_size, actions):
            wanted = f"{actions} actions" if reads is None else f"{reads} and {actions}"
            raise ValueError(f"its network {name} reads {found[0]} numbers and has {found[1]} actions; wanted {wanted}")


def check_observations(policy: Scheduler, hidden_size: int, draft_sizes: Iterable[int], folder: Path) -> None:
    """Refuse a policy whose network reads another number of values than it will see.

    hidden_size: of the target.  draft_sizes: token ids that each drafter whose trees it chooses can propose.
    """
    if not isinstance(policy, ShapePolicy):
        return
    for size in draft_sizes:
        wanted = widths(policy.spec.parts, 3 * hidden_size, min(CHILDREN, size))
        if policy.net.observation_size != wanted:
            raise ArtifactError(
                f"{folder / DESCRIPTION}: parts is {', '.join(policy.spec.parts)}, {wanted} numbers of this target, "
                f"but the network reads {policy.net.observation_size}; type drafterforge train-policy overwrite=true"
            )


def _net(name: str, hidden: Sequence[int], size: int, actions: int, tensors: dict[str, Tensor]) -> ActorCritic:
    own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    critic = [value.shape[1] for key, value in own.items() if key.startswith("critic.") and key.endswith("weight")][:-1]
    if len(hidden) > MOST_LAYERS or not all(0 < width <= WIDEST for width in (*hidden, size, actions)):
        raise ValueError(f"{name} has layers of {size}, {shorten(list(hidden))} and {actions} numbers")
    with torch.device("meta"):  # what is described is compared with what is stored before it costs memory
        net = ActorCritic(size, actions, hidden, critic)
    net.load_state_dict(own, assign=True)
    return net.float().frozen()


def check_policy(
    policy: Scheduler, target_fingerprint: str, drafter: str, drafter_sha256: str, folder: Path, typed: str = ""
) -> None:
    """Refuse a policy of another target or drafter.  typed: keys of a suggested command, see `config.hints`."""
    spec = policy.spec
    if spec.target_fingerprint != target_fingerprint:
        raise ConfigError(
            f"{folder} is a policy for a target with fingerprint {spec.target_fingerprint}, this one has "
            f"{target_fingerprint}; type drafterforge train-policy{typed}"
        )
    if spec.drafter_sha256 != drafter_sha256:
        raise ConfigError(
            f"{folder} is a policy for drafter {quote(spec.drafter)} as it was when traces were recorded, not for this "
            f"{quote(drafter)}; type drafterforge train-policy drafter={drafter}{typed}"
        )
