"""The latency profile: seconds of every step of a cycle on one device, fitted to live cycles, for trees of any shape.

The seconds of a step are a sum of terms, each a quantity of the cycle times non-negative seconds.  Node counts and
widths are interpolated between knots, to follow jumps where a kernel changes.
Axes: M cycles, F terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

import drafterforge.configs
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.config.runtime import MAX_NODES
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.schedulers.actions import ActionGrid

PROFILES = Path(drafterforge.configs.__file__).parent / "latency"  # of other devices
STEPS = ("draft", "refresh", "verify", "host")
SCHEMA = 1
FILE = "latency.json"


@dataclass(frozen=True)
class Cycles:
    """The quantities of cycles that their cost depends on; arrays that broadcast, [M]."""

    depth: np.ndarray  # levels drafted
    top_k: np.ndarray  # beam and children per node
    nodes: np.ndarray  # verified, root included
    length: np.ndarray  # position of the root
    emitted: np.ndarray  # tokens, bonus included


def hats(values: np.ndarray, knots: Sequence[int]) -> list[np.ndarray]:
    """Weights of the knots for linear interpolation at `values`; they sum to 1."""
    values = np.clip(values, knots[0], knots[-1]).astype(float)
    return [np.interp(values, knots, weights) for weights in np.eye(len(knots))]


def terms(step: str, cycles: Cycles, nodes: Sequence[int], top_ks: Sequence[int]) -> dict[str, np.ndarray]:
    """The quantities of a step's terms, [M] each.  nodes, top_ks: knots."""
    depth, kilo = cycles.depth, cycles.length / 1000.0
    drafted = (depth > 0).astype(float)
    if step == "draft":
        deeper = np.maximum(depth - 1, 0)
        pool = drafted * (cycles.top_k + deeper * cycles.top_k**2)
        quantities = {"call": np.ones_like(kilo), "tree": drafted}
        quantities |= {f"level, top_k {k}": deeper * w for k, w in zip(top_ks, hats(cycles.top_k, top_ks), strict=True)}
        return quantities | {"level, kilotoken": deeper * kilo, "hundred candidates": pool / 100.0}
    if step == "refresh":
        return {"pass": np.ones_like(kilo), "token": cycles.emitted * 1.0, "kilotoken": kilo}
    if step == "verify":
        quantities = {f"{n} nodes": w for n, w in zip(nodes, hats(cycles.nodes, nodes), strict=True)}
        return quantities | {"kilotoken": kilo, "node, kilotoken": cycles.nodes * kilo}
    return {
        "cycle": np.ones_like(kilo),
        "node": cycles.nodes * 1.0,
        "level": depth * 1.0,
        "token": cycles.emitted * 1.0,
    }


def knot_terms(step: str, nodes: Sequence[int], top_ks: Sequence[int]) -> dict[int, str]:
    """Knot -> name of its term of a step; the seconds never fall from one knot to the next."""
    if step == "verify":
        return {n: f"{n} nodes" for n in nodes}
    return {k: f"level, top_k {k}" for k in top_ks} if step == "draft" else {}


@dataclass(frozen=True)
class LatencyProfile:
    """Seconds of every term of every step on a device."""

    device: str
    dtype: str
    target: str
    drafter: str
    nodes: tuple[int, ...]  # knots
    top_ks: tuple[int, ...]  # knots
    depth: int  # deepest tree measured
    seconds: Mapping[str, Mapping[str, float]]  # step -> term -> seconds
    autoregressive: Mapping[str, float]  # token, kilotoken: seconds of decoding without a drafter
    errors: Mapping[str, float]  # median relative errors on held-out prompts; see `calibrate`
    schema: int = SCHEMA
    sources: Mapping[str, str] = field(default_factory=dict)  # of published seconds, by step

    def step_s(self, step: str, cycles: Cycles) -> np.ndarray:
        """Seconds of one step, [M]."""
        seconds = self.seconds[step]
        return sum(seconds[name] * value for name, value in terms(step, cycles, self.nodes, self.top_ks).items())

    def cycle_s(self, cycles: Cycles) -> np.ndarray:
        """Seconds of whole cycles, [M]."""
        return sum(self.step_s(step, cycles) for step in STEPS)

    def token_s(self, length: np.ndarray) -> np.ndarray:
        """Seconds of one token without a drafter, [M]."""
        return self.autoregressive["token"] + self.autoregressive["kilotoken"] * np.asarray(length) / 1000.0

    def check(self, grid: ActionGrid, path: Path | str) -> None:
        """Refuse a grid with shapes larger than the measured ones."""
        tree = grid.largest
        if tree.num_tokens > self.nodes[-1] or tree.top_k > self.top_ks[-1] or tree.depth > self.depth:
            raise ConfigError(
                f"{path} measured trees up to {self.nodes[-1]} nodes, {self.depth} levels and top_k {self.top_ks[-1]}, "
                f"but the grid {grid.name!r} has {grid.summary}; type `drafterforge calibrate drafter={self.drafter} "
                f"grid.num_tokens={_listed(self.nodes, grid.num_tokens)} grid.depths={_listed(grid.depths)} "
                f"grid.top_ks={_listed(self.top_ks, grid.top_ks)} overwrite=true`"
            )

    def as_json(self) -> dict:
        content = asdict(self)
        return content if self.sources else {key: value for key, value in content.items() if key != "sources"}


@dataclass(frozen=True)
class _ProfileJson:
    """The JSON of a `LatencyProfile`."""

    device: str
    dtype: str
    target: str
    drafter: str
    nodes: list[int]
    top_ks: list[int]
    depth: int
    seconds: dict[str, dict[str, float]]
    autoregressive: dict[str, float]
    errors: dict[str, float | None]
    schema: int
    sources: dict[str, str]


def path_of_device(name: str) -> Path:
    """The file with the latency profile of another device, published or measured there."""
    names = sorted(path.stem for path in PROFILES.glob("*.json"))
    if name not in names:
        raise ConfigError(f"latency.device={name} is unknown; type one of {', '.join(names)}, or latency.path=FILE")
    return PROFILES / f"{name}.json"


def read_profile(path: Path | str) -> LatencyProfile:
    """The profile of a `latency` artifact, or of a JSON file, such as one of another device."""
    path = Path(path)
    if path.is_dir():
        open_artifact(path, "latency")
        path = path / FILE
    if not path.exists():
        raise ArtifactError(f"no latency profile at {path}; type `drafterforge calibrate drafter=NAME`")
    try:
        content = read_json(path)
        version = content.get("schema") if isinstance(content, dict) else None
        if version != SCHEMA:
            raise ArtifactError(f"it has schema {shorten(version)}, wanted {SCHEMA}")
        profile = parse_as(_ProfileJson, {"sources": {}} | content, "it")
        _check(profile)
    except ArtifactError as error:
        raise ArtifactError(
            f"{path} is no latency profile: {error}; "
            "type `drafterforge calibrate drafter=NAME overwrite=true` on its device"
        ) from error
    return LatencyProfile(**vars(profile) | {"nodes": tuple(profile.nodes), "top_ks": tuple(profile.top_ks)})


def _check(profile: _ProfileJson) -> None:
    """Refuse a profile that cannot price a cycle."""
    for key, knots in (("nodes", profile.nodes), ("top_ks", profile.top_ks)):
        rise = all(knot < following for knot, following in pairwise(knots))
        if not knots or not 1 <= knots[0] <= knots[-1] <= MAX_NODES or not rise:
            raise ArtifactError(f"its {key} are {shorten(knots)}; wanted rising numbers from 1 to {MAX_NODES}")
    if profile.depth < 1:
        raise ArtifactError(f"its depth is {profile.depth}; wanted 1 or more")
    none = Cycles(*(np.zeros(1) for _ in range(5)))
    expected = {step: list(terms(step, none, profile.nodes, profile.top_ks)) for step in STEPS}
    _require_keys("seconds", profile.seconds, list(STEPS))
    for step, names in expected.items():
        _require_keys(f"seconds.{step}", profile.seconds[step], names)
    _require_keys("autoregressive", profile.autoregressive, ["token", "kilotoken"])
    for step, seconds in (*profile.seconds.items(), ("autoregressive", profile.autoregressive)):
        for name, value in seconds.items():
            if value < 0:
                raise ArtifactError(f"{step}, {name} takes {value} s; wanted 0 or more")


def _require_keys(where: str, values: Mapping, keys: Sequence[str]) -> None:
    if odd := sorted({*keys} ^ {*values}):
        verb = "lacks" if odd[0] in keys else "has the unknown key"
        raise ArtifactError(f"its {where} {verb} {quote(odd[0])}")


def _listed(*numbers: Sequence[int]) -> str:
    """All numbers, sorted, as a list is typed."""
    return f"[{','.join(map(str, sorted(set().union(*numbers))))}]"
