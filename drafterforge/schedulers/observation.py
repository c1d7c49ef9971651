"""What a scheduler observes, computed by the same code in training on traces and in decoding.

Axes: B rows (or roots), C children, S candidates, H hidden of the target, O observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.dispatch import kernels_of

CHILDREN = 10  # number of the root's children whose log-probabilities are observed
PARTS = ("features", "text", "children", "length")
TEXT_WINDOW = 64  # last tokens, root included, whose embeddings are averaged
FLOOR = -20.0  # least log-probability; less probable and missing candidates get it
LENGTH_UNIT, LEVEL_UNIT = 1000.0, 10.0  # scales of LTD


@dataclass(frozen=True)
class Observation:
    """What is known before rows draft, in the precision of traces: float16."""

    features: Tensor | None  # [B, 3H] the target's, one position before the root; None: not observed
    children: Tensor | None  # [B, C] log-probabilities of the root's best children, descending; None: not observed
    lengths: Tensor  # [B] position of the root
    texts: Tensor | None = None  # [B, H] see `text_state`; None: not observed

    @property
    def rows(self) -> int:
        """The number of rows, B."""
        return len(self.lengths)


def observation_size(parts: Sequence[str], hidden_size: int, num_taps: int, num_children: int) -> int:
    """The size of an observation, O.  hidden_size, num_taps: of the target."""
    widths = {"features": num_taps * hidden_size, "text": hidden_size}
    sizes = widths | {"children": 2 * num_children + 1, "length": 1}
    if unknown := [part for part in parts if part not in sizes]:
        raise ConfigError(f"an observation has the parts {', '.join(PARTS)}, not {unknown[0]!r}")
    return sum(sizes[part] for part in parts)


def observation_vector(parts: Sequence[str], observation: Observation) -> Tensor:
    """The parts of an observation in one vector, [B, O] float32."""
    vectors = []
    for part in parts:
        if part == "features":
            vectors.append(observation.features.half().float())
        elif part == "text":
            vectors.append(observation.texts.half().float())
        elif part == "children":
            vectors.append(children_vector(observation.children))
        else:
            vectors.append(observation.lengths.view(-1, 1) / LENGTH_UNIT)
    return torch.cat(vectors, dim=1)


def children_vector(logp: Tensor) -> Tensor:
    """Log-probabilities [B, C] in float16 precision, probabilities, and the mass of other children, [B, 2C + 1]."""
    logp = logp.float()
    return kernels_of(logp).children_state(logp, FLOOR)


def text_state(tokens: Tensor, embedding: Tensor) -> Tensor:
    """The mean embedding of the last tokens, [H] float16; the papers ablate the feature state with it.

    tokens: [P], root included.  embedding: the target's, [V, H].
    """
    return torch.nn.functional.embedding(tokens[-TEXT_WINDOW:], embedding).float().mean(dim=0).half()


def best_children(logits: Tensor, count: int) -> Tensor:
    """Log-probabilities of the best children of logits [B, W], descending, [B, count]."""
    logits = logits.float()
    return kernels_of(logits).best_children(logits, min(count, logits.shape[-1]))


def level_observation(scores: Tensor, size: int, lengths: Tensor, level: int | Tensor) -> Tensor:
    """LTD's observation after a level: cumulative log-probabilities of candidates, length and level, [B, O].

    scores: [B, S], padded to `size` with the floor.  lengths: [B].  level: number of levels drafted so far.
    """
    padded = torch.full((len(scores), size), FLOOR, device=scores.device)
    padded[:, : scores.shape[1]] = scores.half().float().clamp(min=FLOOR)
    levels = level if isinstance(level, Tensor) else torch.full_like(lengths, level)
    return torch.cat((padded, lengths[:, None] / LENGTH_UNIT, levels[:, None] / LEVEL_UNIT), dim=1)


def level_size(top_k: int) -> int:
    """Candidates of a level."""
    return top_k * top_k


def pool_size(top_k: int, depth: int) -> int:
    """Candidates of all levels."""
    return top_k + (depth - 1) * top_k**2
