"""What a scheduler sees: one construction for training on traces and for decoding, so that both see the same numbers.

Axes: B rows (or roots), C children, S candidates, H hidden of the target, O observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.dispatch import kernels_of

CHILDREN = 10  # of the root, whose log-probabilities a scheduler sees before it chooses
PARTS = ("features", "text", "children", "length")
TEXT_WINDOW = 64  # tokens before and with the root whose embeddings are averaged
FLOOR = -20.0  # of log-probabilities; less probable candidates look alike, as do missing ones
LENGTH_UNIT, LEVEL_UNIT = 1000.0, 10.0  # as LTD scales them


@dataclass(frozen=True)
class Observation:
    """What is known before rows draft; float16 as in traces where one is recorded."""

    features: Tensor | None  # [B, 3H] the target's, one position before the root; None: nobody asks
    children: Tensor | None  # [B, C] log-probabilities of the root's best children, descending; None: nobody asks
    lengths: Tensor  # [B] position of the root
    texts: Tensor | None = None  # [B, H] see `text_state`; None: nobody asks

    @property
    def rows(self) -> int:
        """B."""
        return len(self.lengths)


def widths(parts: Sequence[str], num_features: int, num_children: int) -> int:
    """O: entries of an observation."""
    sizes = {"features": num_features, "text": num_features // 3, "children": 2 * num_children + 1, "length": 1}
    if unknown := [part for part in parts if part not in sizes]:
        raise ConfigError(f"an observation has {', '.join(PARTS)}, not {unknown[0]!r}")
    return sum(sizes[part] for part in parts)


def observed(parts: Sequence[str], seen: Observation) -> Tensor:
    """The chosen parts side by side, [B, O] float32.

    `children` are the log-probabilities, the probabilities and what is left of them for all other children.
    """
    found = []
    for part in parts:
        if part == "features":
            found.append(seen.features.half().float())
        elif part == "text":
            found.append(seen.texts.half().float())
        elif part == "children":
            found.append(of_children(seen.children))
        else:
            found.append(seen.lengths.view(-1, 1) / LENGTH_UNIT)
    return torch.cat(found, dim=1)


def of_children(logp: Tensor) -> Tensor:
    """Log-probabilities [B, C] as traces hold them, the probabilities and what is left of them, [B, 2C + 1] float32."""
    logp = logp.float()
    return kernels_of(logp).children_state(logp, FLOOR)


def text_state(tokens: Tensor, embedding: Tensor) -> Tensor:
    """The mean of the last tokens' embeddings, [H] float16: what a text says without a model reading it.

    tokens: [P], root included.  embedding: the target's, [V, H].  The papers' ablation of the feature state.
    """
    return torch.nn.functional.embedding(tokens[-TEXT_WINDOW:], embedding).float().mean(dim=0).half()


def best_children(logits: Tensor, count: int) -> Tensor:
    """Log-probabilities of the best children of logits [B, W], descending, [B, count]; their ids are not asked for."""
    logits = logits.float()
    return kernels_of(logits).best_children(logits, min(count, logits.shape[-1]))


def of_level(scores: Tensor, size: int, lengths: Tensor, level: int | Tensor) -> Tensor:
    """What a depth policy sees after a level: its candidates' cumulative log-probabilities, length and level, [B, O].

    scores: [B, S], padded to `size` with the floor.  lengths: [B].  level: number of levels drafted so far.
    """
    padded = torch.full((len(scores), size), FLOOR, device=scores.device)
    padded[:, : scores.shape[1]] = scores.half().float().clamp(min=FLOOR)
    levels = torch.as_tensor(level, device=scores.device).expand(len(scores))
    return torch.cat((padded, lengths[:, None] / LENGTH_UNIT, levels[:, None] / LEVEL_UNIT), dim=1)


def level_size(top_k: int) -> int:
    """Candidates of a level."""
    return top_k * top_k


def pool_size(top_k: int, depth: int) -> int:
    """Candidates of all levels."""
    return top_k + (depth - 1) * top_k**2
