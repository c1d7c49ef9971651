"""The tree shapes a scheduler chooses from: a grid of node counts, depths and widths, and no drafting.

Axes: A actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from drafterforge.config.runtime import MAX_LEVELS, MAX_NODES
from drafterforge.errors import ConfigError, shorten
from drafterforge.tree.grow import TreeShape

MOST_VALUES = 64  # of one key of a grid
LARGEST = {"num_tokens": MAX_NODES, "depths": MAX_LEVELS, "top_ks": MAX_NODES}  # the limits of any tree
MOST_CANDIDATES = 1 << 20  # of a tree, see `TreeShape.pool_size`
NO_DRAFT = TreeShape(num_tokens=1, depth=0, top_k=1)
MASKS = ("pool", "growing", "drafting", "resps")  # of the combinations, see `ActionGrid`


@dataclass(frozen=True)
class ActionGrid:
    """Action 0 drafts nothing; the others are all combinations whose candidate pool can fill their nodes.

    A combination with more nodes than candidates gives the same tree as one with fewer nodes, so it is left out.
    mask: `growing` keeps the smallest size at every depth; its tree is cut to its candidates.  `drafting` has no action
    without drafting.  `resps` is Re-SpS's rule: neither has it, and top_k^(d - 1) nodes at most, where d, as EAGLE
    counts, is a level less.
    """

    name: str
    num_tokens: tuple[int, ...]
    depths: tuple[int, ...]
    top_ks: tuple[int, ...]
    mask: str = "pool"

    def __post_init__(self) -> None:
        """Check ranges."""
        for key in ("num_tokens", "depths", "top_ks"):
            values = getattr(self, key)
            valid = 0 < len(values) <= MOST_VALUES and all(type(value) is int for value in values)
            if not valid or list(values) != sorted(set(values)) or values[0] < 1 or values[-1] > LARGEST[key]:
                raise ConfigError(
                    f"{key} of an action grid must be rising numbers from 1 to {LARGEST[key]}, got {shorten(values)}"
                )
        largest = TreeShape(1, self.depths[-1], self.top_ks[-1])
        if largest.pool_size > MOST_CANDIDATES:
            raise ConfigError(
                f"{largest.depth} levels of top_k {largest.top_k} in an action grid are {largest.pool_size:,} "
                f"candidates; wanted {MOST_CANDIDATES:,} at most"
            )
        if self.mask not in MASKS:
            raise ConfigError(f"mask of an action grid must be one of {', '.join(MASKS)}, got {shorten(self.mask)}")
        if not self.shapes:
            raise ConfigError(f"the grid {self.name!r} has no tree that grid.mask={self.mask} allows")

    @cached_property
    def shapes(self) -> tuple[TreeShape, ...]:
        """The shape of each action."""
        combinations = product(self.num_tokens, self.depths, self.top_ks)
        drafting = (TreeShape(*numbers) for numbers in combinations)
        shapes = tuple(shape for shape in drafting if 1 < shape.num_tokens <= self._most_nodes(shape))
        return shapes if self.mask in ("drafting", "resps") else (NO_DRAFT, *shapes)

    def _most_nodes(self, shape: TreeShape) -> float:
        """The most nodes of an action with the depth and top_k of `shape`."""
        if self.mask == "resps":
            return min(shape.pool_size + 1, shape.top_k ** (shape.depth - 2))
        smallest = min((count for count in self.num_tokens if count > 1), default=0) if self.mask == "growing" else 0
        return max(shape.pool_size + 1, smallest)

    def __len__(self) -> int:
        return len(self.shapes)

    @cached_property
    def table(self) -> np.ndarray:
        """num_tokens, depth and top_k of each action, [A, 3]."""
        return np.array([(shape.num_tokens, shape.depth, shape.top_k) for shape in self.shapes])

    @cached_property
    def drafted(self) -> np.ndarray:
        """`table` with the depth and top_k of what is drafted, which a few nodes limit, [A, 3]."""
        drafted = (shape.drafted for shape in self.shapes)
        return np.array([(shape.num_tokens, shape.depth, shape.top_k) for shape in drafted])

    @property
    def largest(self) -> TreeShape:
        """The most nodes of the grid, and the most levels and the largest top_k of `drafted`."""
        _, depth, top_k = self.drafted.max(axis=0).tolist()
        return TreeShape(self.num_tokens[-1], depth, top_k)

    def index(self, shape: TreeShape) -> int:
        if shape not in self.shapes:
            raise ConfigError(f"{describe(shape)} is no action of the grid {self.name!r}, which has {self.summary}")
        return self.shapes.index(shape)

    @property
    def summary(self) -> str:
        """The grid in one line, for errors."""
        parts = (self.num_tokens, self.depths, self.top_ks)
        words = (
            f"{key} {','.join(map(str, values))}"
            for key, values in zip(("nodes", "levels", "top_k"), parts, strict=True)
        )
        return f"{', '.join(words)}: {len(self)} actions"

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "num_tokens": list(self.num_tokens),
            "depths": list(self.depths),
            "top_ks": list(self.top_ks),
            **({} if self.mask == "pool" else {"mask": self.mask}),
        }

    @staticmethod
    def of(values: dict) -> ActionGrid:
        """The grid that `as_dict` returned."""
        axes = (tuple(values[key]) for key in ("num_tokens", "depths", "top_ks"))
        return ActionGrid(values["name"], *axes, values.get("mask", "pool"))

    def check(self, top_ks: Iterable[int], depth: int, where: str) -> None:
        """Refuse a grid with shapes larger than the recorded ones."""
        missing = sorted(set(self.top_ks) - set(top_ks))
        if missing or max(self.depths) > depth:
            raise ConfigError(
                f"the grid {self.name!r} has {self.summary}, but {where} holds top_k {sorted(top_ks)} and "
                f"{depth} levels; type overwrite=true to record again, or traces.name=OTHER to keep them"
            )


TREE_LEGEND = "6/3/2: a draft tree of 6 tokens, the root included, in 3 levels, with at most 2 children a token"


def describe(shape: TreeShape) -> str:
    """The shape as nodes/levels/top_k, as in the papers."""
    return f"{shape.num_tokens}/{shape.depth}/{shape.top_k}"
