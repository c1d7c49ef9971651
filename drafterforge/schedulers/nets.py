"""The networks of a learnt scheduler: an actor that scores actions, and a critic for training.

Axes: B decisions, O observation, A actions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from drafterforge.kernels.dispatch import kernels_of

CLIP = 10.0  # standard deviations at which observations are clipped, as in a new domain


class Dense(nn.Module):
    """A linear layer with weight [in, out]: on a few rows it takes a third of the time of [out, in]."""

    def __init__(self, fan_in: int, fan_out: int, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(fan_in, fan_out), gain))
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias, inputs, self.weight)


def mlp(widths: Sequence[int], gain: float) -> nn.Sequential:
    """Dense layers of these widths with tanh between them.  gain: of the last layer's initial weights."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers += [Dense(fan_in, fan_out, 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, Dense(widths[-2], widths[-1], gain))


class ActorCritic(nn.Module):
    """Actor and critic: two separate tanh networks on one normalised observation."""

    def __init__(
        self,
        observation_size: int,
        num_actions: int,
        actor: Sequence[int] = (128, 128),
        critic: Sequence[int] = (128, 128),
    ) -> None:
        """actor, critic: widths of the hidden layers."""
        super().__init__()
        self.observation_size, self.num_actions = observation_size, num_actions
        self.actor = mlp((observation_size, *actor, num_actions), gain=0.01)  # nearly uniform at first
        self.critic = mlp((observation_size, *critic, 1), gain=1.0)
        self.register_buffer("mean", torch.zeros(observation_size))
        self.register_buffer("scale", torch.ones(observation_size))
        self._packed: Callable[[Tensor], Tensor] | None = None

    def normalise_by(self, observations: Tensor) -> None:
        """Set the normalisation so that `observations` [N, O] get mean 0 and deviation 1."""
        deviation, mean = torch.std_mean(observations.double(), dim=0, correction=0)
        self.mean.copy_(mean)
        constant = deviation <= 1e-6 * mean.abs().clamp(min=1.0)
        self.scale.copy_(deviation.masked_fill(constant, 1.0))

    def normalised(self, observations: Tensor) -> Tensor:
        """The input of both networks, [B, O], from observations [B, O] of any floating type."""
        return ((observations.to(self.mean.dtype) - self.mean) / self.scale).clamp(-CLIP, CLIP)

    def forward(self, observations: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [B, A], and values [B] in the units of the critic's training.

        observations: [B, O].  mask: [B, A], true for allowed actions, at least one in each row.
        """
        inputs = self.normalised(observations)
        return forbid(self.actor(inputs), mask), self.critic(inputs).squeeze(-1)

    def logits(self, observations: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logits [B, A]; serving needs no values.

        Once frozen, on a CPU with compiled kernels, they are batch-invariant, so live choices equal replayed ones.
        """
        if self._packed is not None:
            return forbid(self._packed(observations.to(self.mean.dtype).contiguous()), mask)
        return forbid(self.actor(self.normalised(observations)), mask)

    def on(self, device: torch.device) -> ActorCritic:
        """This network on a device, ready to serve."""
        if self.mean.device.type == device.type:
            return self
        packed, self._packed = self._packed, None  # belongs to the CPU
        twin = copy.deepcopy(self).to(device).frozen()
        self._packed = packed
        return twin

    def frozen(self) -> ActorCritic:
        """Prepares this network for serving and returns it; its weights must not change afterwards."""
        self.eval().requires_grad_(False)
        layers = [(layer.weight, layer.bias) for layer in self.actor if isinstance(layer, Dense)]
        self._packed = kernels_of(self.mean).pack_mlp(self.mean, self.scale, CLIP, layers)
        return self


def forbid(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [B, A], -inf where mask [B, A] is false."""
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)


def act(logits: Tensor, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
    """Actions [B] by logits [B, A]: the best at temperature 0, else samples of softmax(logits / temperature)."""
    if temperature == 0.0:
        return logits.argmax(dim=-1)
    noise = (
        torch.empty_like(logits).exponential_(generator=generator).log_()
    )  # never -inf, as exponential_ draws no zeros
    return (logits / temperature - noise).argmax(dim=-1)  # the Gumbel-max trick
