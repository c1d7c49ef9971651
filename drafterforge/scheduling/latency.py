"""What the steps of a cycle cost on one device: fitted to live cycles, and read by replay for any trees.

Every step is a sum of terms, each a number of a cycle times seconds that are never negative.  Node counts and widths
lie between knots, so that costs that jump where a kernel changes are followed.
Axes: M cycles, F terms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from drafterforge.artifacts.folder import open_artifact
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.scheduling.actions import ActionGrid

STEPS = ("draft", "refresh", "verify", "host")
SCHEMA = 1
FILE = "latency.json"


@dataclass(frozen=True)
class Cycles:
    """Cycles by what their cost depends on; arrays that broadcast, [M]."""

    depth: np.ndarray  # levels drafted
    top_k: np.ndarray  # beam and children per node
    nodes: np.ndarray  # verified, root included
    length: np.ndarray  # position of the root
    emitted: np.ndarray  # tokens, bonus included


def hats(values: np.ndarray, knots: Sequence[int]) -> list[np.ndarray]:
    """Weights of the knots whose sum is 1 and whose mean is the value, as it lies between two of them."""
    values = np.clip(values, knots[0], knots[-1]).astype(float)
    return [np.interp(values, knots, np.eye(len(knots))[place]) for place in range(len(knots))]


def terms(step: str, cycles: Cycles, nodes: Sequence[int], top_ks: Sequence[int]) -> dict[str, np.ndarray]:
    """The terms of a step; nodes, top_ks: knots."""
    depth, kilo = cycles.depth, cycles.length / 1000.0
    drafted = (depth > 0).astype(float)
    if step == "draft":
        deeper = np.maximum(depth - 1, 0)
        pool = drafted * (cycles.top_k + deeper * cycles.top_k**2)
        found = {"call": np.ones_like(kilo), "tree": drafted}
        found |= {f"level, top_k {k}": deeper * w for k, w in zip(top_ks, hats(cycles.top_k, top_ks), strict=True)}
        return found | {"level, kilotoken": deeper * kilo, "hundred candidates": pool / 100.0}
    if step == "refresh":
        return {"pass": np.ones_like(kilo), "token": cycles.emitted * 1.0, "kilotoken": kilo}
    if step == "verify":
        found = {f"{n} nodes": w for n, w in zip(nodes, hats(cycles.nodes, nodes), strict=True)}
        return found | {"kilotoken": kilo, "node, kilotoken": cycles.nodes * kilo}
    return {
        "cycle": np.ones_like(kilo),
        "node": cycles.nodes * 1.0,
        "level": depth * 1.0,
        "token": cycles.emitted * 1.0,
    }


@dataclass(frozen=True)
class LatencyProfile:
    """Seconds of every term on a device."""

    device: str
    dtype: str
    target: str
    drafter: str
    nodes: tuple[int, ...]  # knots
    top_ks: tuple[int, ...]  # knots
    depth: int  # deepest tree measured
    seconds: Mapping[str, Mapping[str, float]]  # step -> term -> seconds
    autoregressive: Mapping[str, float]  # token, kilotoken: seconds of decoding without a drafter
    errors: Mapping[str, float]  # median absolute error on held-out prompts, as shares; see `calibrate`
    schema: int = SCHEMA

    def step_s(self, step: str, cycles: Cycles) -> np.ndarray:
        """Seconds of one step, [M]."""
        known = self.seconds[step]
        return sum(known[name] * value for name, value in terms(step, cycles, self.nodes, self.top_ks).items())

    def cycle_s(self, cycles: Cycles) -> np.ndarray:
        """Seconds of whole cycles, [M]."""
        return sum(self.step_s(step, cycles) for step in STEPS)

    def token_s(self, length: np.ndarray) -> np.ndarray:
        """Seconds of one token without a drafter, [M]."""
        return self.autoregressive["token"] + self.autoregressive["kilotoken"] * np.asarray(length) / 1000.0

    def check(self, grid: ActionGrid, path: Path | str) -> None:
        """Refuse a grid that reaches beyond what was measured."""
        if max(grid.num_tokens) > self.nodes[-1] or max(grid.top_ks) > self.top_ks[-1] or max(grid.depths) > self.depth:
            raise ConfigError(
                f"{path} measured trees up to {self.nodes[-1]} nodes, {self.depth} levels and top_k {self.top_ks[-1]}, "
                f"but the grid {grid.name!r} has {grid.summary}; type drafterforge calibrate grid={grid.name} "
                "overwrite=true"
            )

    def as_json(self) -> dict:
        """Plain values."""
        return asdict(self)


def read_profile(path: Path | str) -> LatencyProfile:
    """From a `latency` artifact, or from a profile's JSON file, such as one of another device."""
    path = Path(path)
    if path.is_dir():
        open_artifact(path, "latency")
        path = path / FILE
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"no latency profile at {path}; type drafterforge calibrate") from error
    except ValueError as error:
        raise ArtifactError(f"{path} is no latency profile: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path} has schema {found.get('schema') if isinstance(found, dict) else found!r}, wanted {SCHEMA}"
        )
    try:
        return LatencyProfile(**{**found, "nodes": tuple(found["nodes"]), "top_ks": tuple(found["top_ks"])})
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} is no latency profile: {error}; type drafterforge calibrate overwrite=true"
        ) from error
