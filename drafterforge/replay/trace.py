"""Traces: recorded answers with everything that a scheduler or selector could have observed at every position.

Decoding is lossless: the outcome of a cycle depends on its root alone, so one trace serves every policy.  A row is a
root, a position at which a cycle could begin.  A trace has the rank of each following token among the candidates of
some drafters, so that any of their trees can be looked up.
Axes: N such drafters, M drafters of the pool, R roots, K widths, D levels, C children, S candidates of one width,
A actions, P answers, T tokens of prompt and answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from drafterforge.artifacts.atomic import atomic_file, save_json_atomic
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.artifacts.manifest import Manifest
from drafterforge.errors import ArtifactError, ConfigError, shorten
from drafterforge.replay.counterfactual import CycleOutcomes
from drafterforge.schedulers.actions import NO_DRAFT, ActionGrid
from drafterforge.schedulers.observation import CHILDREN, pool_size, text_state

PER_ROOT = ("features", "margins", "ranks", "scores", "children", "log_q")
DTYPES = {  # of the stored arrays
    "features": "float16",
    "margins": "float32",
    "ranks": "uint16",
    "scores": "float16",
    "children": "float16",
    "log_q": "float32",
}
AGAIN = "type `drafterforge train-policy overwrite=true` to record them anew"
MAX_SIZE = 1024  # largest width and depth of a recorded tree
BY_DRAFTER = ("ranks", "scores", "children", "log_q")


@dataclass(frozen=True)
class BranchTrace:
    """Children along the most probable branch below every root, see `tree.union.Branch`."""

    probs: np.ndarray  # [N, R, D, C] of the target, 0 where no tree has the child
    ranks: np.ndarray  # [N, R, K, D (D + 1) / 2, C] uint16, pairs as in `Trace.ranks`
    overlaps: np.ndarray  # [N, R, D] of target and drafter at each node, see `tree.coverage`


@dataclass(frozen=True)
class Trace:
    """A recorded answer; its roots are the positions begin .. end - 2."""

    tokens: np.ndarray  # [end] int32, prompt and answer
    begin: int  # position of the answer's first token, the root of the first cycle
    max_new_tokens: int  # limit of the answer
    features: np.ndarray  # [R, 3H] float16, of the position before each root
    margins: np.ndarray  # [R] float32, the target's top-1 minus top-2 logit after each root
    ranks: np.ndarray  # [N, R, K, D (D + 1) / 2] uint16, see `Drafts.ranks`: pairs (d, j <= d), row by row
    scores: np.ndarray  # [N, R, S] float16, see `Drafts.scores`
    children: np.ndarray  # [N, R, CHILDREN] float16, log-probabilities of the root's best children
    log_q: np.ndarray  # [N, R] float32, of the token after the root; -inf outside the drafter's vocabulary
    # for selectors; not stored
    accepted: np.ndarray | None = None  # [M, T] whether the token is among the proposals of each drafter of the pool
    prompt_hit_rates: np.ndarray | None = None  # [M] see `Counterfactual`
    outcomes: CycleOutcomes | None = None  # [M, R] of drafters with one tree, coverages summed over levels
    branches: BranchTrace | None = None  # if recorded


@dataclass(frozen=True)
class TraceSpec:
    """Drafters, widths and depth of the recorded trees."""

    drafters: tuple[str, ...]
    top_ks: tuple[int, ...]
    depth: int
    score_top_k: int  # width of the trees whose candidates `scores` holds

    def bytes_per_root(self, num_features: int) -> int:
        """Bytes of a root on disk.  num_features: numbers of the target's at a position."""
        ranks = 2 * len(self.top_ks) * self.depth * (self.depth + 1) // 2
        scores, children = 2 * pool_size(self.score_top_k, self.depth), 2 * CHILDREN
        features, margin, log_q = 2 * num_features, 4, 4
        return features + margin + len(self.drafters) * (ranks + scores + children + log_q)

    def as_dict(self) -> dict[str, Any]:
        """The entry `recorded` in the manifest of a traces artifact."""
        return {"drafters": self.drafters, "top_ks": self.top_ks, "depth": self.depth, "told": self.score_top_k}

    @staticmethod
    def of(manifest: Manifest) -> TraceSpec:
        """The spec in the manifest of a traces artifact."""
        content = manifest.config.get("recorded")
        if isinstance(content, dict):
            content = {{"told": "score_top_k"}.get(key, key): value for key, value in content.items()}
        spec = parse_as(_SpecJson, content, f"manifest of traces {manifest.name}: recorded")
        numbers = [*spec.top_ks, spec.depth, spec.score_top_k]
        if not spec.drafters or not spec.top_ks or not all(1 <= number <= MAX_SIZE for number in numbers):
            raise ArtifactError(f"traces {manifest.name} are damaged ({shorten(spec)}); {AGAIN}")
        return TraceSpec(tuple(spec.drafters), tuple(spec.top_ks), spec.depth, spec.score_top_k)


@dataclass(frozen=True)
class _SpecJson:
    """`recorded` as JSON."""

    drafters: list[str]
    top_ks: list[int]
    depth: int
    score_top_k: int  # called `told` in files


@dataclass(frozen=True)
class Traces:
    """Traces of many answers, with concatenated roots."""

    spec: TraceSpec
    tokens: list[np.ndarray]  # [P] of [end]
    begins: np.ndarray  # [P]
    limits: np.ndarray  # [P] max_new_tokens
    domains: list[str]  # [P]
    splits: list[str]  # [P] train | test
    rows: dict[str, np.ndarray]  # PER_ROOT; roots are the first axis, after N if there is one

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of each answer, and the number of rows, [P + 1]."""
        return np.concatenate(([0], np.cumsum([len(t) - 1 - b for t, b in zip(self.tokens, self.begins, strict=True)])))

    @property
    def num_roots(self) -> int:
        """R."""
        return int(self.starts[-1])

    @cached_property
    def answer_of(self) -> np.ndarray:
        """The answer of each row, [R]."""
        return np.repeat(np.arange(len(self.tokens)), np.diff(self.starts))

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of each root, [R]."""
        return np.arange(self.num_roots) - self.starts[self.answer_of] + self.begins[self.answer_of]

    @cached_property
    def ahead(self) -> np.ndarray:
        """Tokens of the answer after each root, [R], at least 1."""
        return self.starts[self.answer_of + 1] - np.arange(self.num_roots)

    @cached_property
    def levels(self) -> np.ndarray:
        """Deepest level that can count at each root, as limited by the engine, [R]."""
        left = levels_left(self.limits[self.answer_of], self.positions - self.begins[self.answer_of])
        return np.minimum(left, self.spec.depth)

    def drafter(self, name: str) -> int:
        """Index of a drafter; ConfigError if the traces do not have it."""
        if name not in self.spec.drafters:
            raise ConfigError(f"these traces are of {', '.join(self.spec.drafters)}, not of drafter {name!r}")
        return self.spec.drafters.index(name)

    def drafted(self, grid: ActionGrid) -> tuple[np.ndarray, np.ndarray]:
        """Levels drafted and nodes verified by each action at each root, [R, A]."""
        return drafted_trees(grid.table, self.levels[:, None])

    def accept_lengths(self, grid: ActionGrid, drafter: int) -> np.ndarray:
        """Accept length of each action at each root, cut at the end of the answer, [R, A]."""
        if grid.shapes != (NO_DRAFT,):
            grid.check(self.spec.top_ks, self.spec.depth, "the trace")
        ranks, lengths = self.rows["ranks"][drafter], np.ones((self.num_roots, len(grid)), dtype=np.uint8)
        for action, (num_tokens, depth, top_k) in enumerate(grid.table):
            if num_tokens > 1:
                width = ranks[:, self.spec.top_ks.index(top_k)]
                lengths[:, action] = accept_lengths(width, np.minimum(depth, self.levels), num_tokens)
        return np.minimum(lengths, self.ahead[:, None].clip(max=255).astype(np.uint8))

    def with_texts(self, embedding: Tensor) -> Traces:
        """The traces with the text state before each root, see `text_state`; embedding: of the target, [V, H]."""
        states = []
        for tokens, begin in zip(self.tokens, self.begins, strict=True):
            text = torch.from_numpy(tokens.astype(np.int64)).to(embedding.device)
            states += [text_state(text[: root + 1], embedding) for root in range(begin, len(text) - 1)]
        return replace(self, rows={**self.rows, "texts": torch.stack(states).cpu().numpy()})

    def select(self, answers: Sequence[int]) -> Traces:
        """The traces of some answers; of answers in a row, their arrays are views."""
        answers = list(answers)
        if answers and answers == list(range(answers[0], answers[-1] + 1)):
            rows: slice | np.ndarray = slice(self.starts[answers[0]], self.starts[answers[-1] + 1])
        else:
            rows = np.concatenate([np.arange(self.starts[p], self.starts[p + 1]) for p in answers] or [np.arange(0)])
        return replace(
            self,
            tokens=[self.tokens[p] for p in answers],
            begins=self.begins[answers],
            limits=self.limits[answers],
            domains=[self.domains[p] for p in answers],
            splits=[self.splits[p] for p in answers],
            rows={key: v[:, rows] if key in BY_DRAFTER else v[rows] for key, v in self.rows.items()},
        )

    def split(self, name: str) -> Traces:
        return self.select([index for index, split in enumerate(self.splits) if split == name])


def levels_left(max_new_tokens: np.ndarray | int, emitted_before: np.ndarray) -> np.ndarray:
    """Levels that can count below roots after `emitted_before` tokens of their answer, as limited by the engine."""
    return max_new_tokens - emitted_before - 2


def drafted_trees(shapes: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Levels and nodes, root included, [...], of requested trees (num_tokens, depth, top_k), [..., 3].

    levels: that can count, [...].
    """
    num_tokens, depth, top_k = np.moveaxis(shapes, -1, 0)
    depth = np.minimum(depth, levels)
    candidates = np.where(depth > 0, top_k + (depth - 1) * top_k**2, 0)
    return depth, np.minimum(num_tokens, candidates + 1)


def ranks_at(ranks: np.ndarray, depth: np.ndarray, level: int) -> np.ndarray:
    """Ranks at a level of trees with these depths [...], [...]; arbitrary where the depth is less.

    ranks: [..., D (D + 1) / 2] of the trees' width, pairs as in `Trace.ranks`; further trailing axes are kept.
    """
    pair = np.where(level <= depth, depth * (depth - 1) // 2 + level - 1, 0)
    rows = ranks.reshape(depth.size, *ranks.shape[depth.ndim :])
    return rows[np.arange(depth.size), pair.ravel()].reshape(*depth.shape, *ranks.shape[depth.ndim + 1 :])


def accept_lengths(ranks: np.ndarray, depth: np.ndarray, num_nodes: np.ndarray | int) -> np.ndarray:
    """Accept lengths of cycles with trees of these depths and nodes [...], [...]; ranks: see `ranks_at`."""
    lengths = np.ones(depth.shape, dtype=np.uint8)
    for level in range(1, int(depth.max(initial=0)) + 1):
        lengths += (level <= depth) & (ranks_at(ranks, depth, level) < num_nodes)
    return lengths


def join(spec: TraceSpec, traces: Sequence[Trace], domains: Sequence[str], splits: Sequence[str]) -> Traces:
    """Concatenate traces."""
    return Traces(
        spec,
        [trace.tokens for trace in traces],
        np.array([trace.begin for trace in traces]),
        np.array([trace.max_new_tokens for trace in traces]),
        list(domains),
        list(splits),
        {
            key: np.concatenate([getattr(trace, key) for trace in traces], axis=int(key in BY_DRAFTER))
            for key in PER_ROOT
        },
    )


def save_shard(path: Path, traces: Traces) -> None:
    """Write traces to a file atomically."""
    arrays = {key: np.ascontiguousarray(value) for key, value in traces.rows.items()}
    arrays["tokens"] = np.concatenate(traces.tokens)
    arrays["lengths"] = np.array([len(tokens) for tokens in traces.tokens])
    arrays["begins"], arrays["limits"] = traces.begins, traces.limits
    words = {"domains": traces.domains, "splits": traces.splits}
    with atomic_file(path) as temporary:
        save_file(arrays, temporary)
    save_json_atomic(path.with_suffix(".json"), words)


def load_shards(folder: Path, spec: TraceSpec) -> Traces:
    """Read and concatenate all shards of a folder."""
    parts, shards = [], []
    for path in sorted(folder.glob("shard-*.safetensors")):
        try:
            arrays = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArtifactError(f"{path} is damaged ({shorten(error)}); {AGAIN}") from None
        words = parse_as(dict[str, list[str]], read_json(path.with_suffix(".json")), f"{path.with_suffix('.json')}:")
        if problem := _problem(arrays, words, spec):
            raise ArtifactError(f"{path} is damaged ({problem}); {AGAIN}")
        cuts = np.cumsum(arrays.pop("lengths"))[:-1]
        tokens = np.split(arrays.pop("tokens"), cuts)
        begins, limits = arrays.pop("begins"), arrays.pop("limits")
        parts.append(Traces(spec, tokens, begins, limits, words["domains"], words["splits"], {}))
        shards.append(arrays)
    if not parts:
        raise ArtifactError(f"{folder} holds no traces; {AGAIN}")
    return Traces(
        spec,
        [tokens for part in parts for tokens in part.tokens],
        np.concatenate([part.begins for part in parts]),
        np.concatenate([part.limits for part in parts]),
        [domain for part in parts for domain in part.domains],
        [split for part in parts for split in part.splits],
        # a shard's array is dropped once it is copied, as all of them may fill the memory
        {key: np.concatenate([rows.pop(key) for rows in shards], axis=int(key in BY_DRAFTER)) for key in PER_ROOT},
    )


def _problem(arrays: dict[str, np.ndarray], words: dict[str, list[str]], spec: TraceSpec) -> str:
    """What differs from a shard that `save_shard` wrote; empty if nothing does."""
    expected = {*PER_ROOT, "tokens", "lengths", "begins", "limits"}
    if arrays.keys() != expected or words.keys() != {"domains", "splits"}:
        return f"missing or unexpected: {shorten(', '.join(sorted((arrays.keys() ^ expected) | words.keys())))}"
    lengths, begins, limits, tokens = (arrays[key] for key in ("lengths", "begins", "limits", "tokens"))
    answers, vectors = len(words["domains"]), (lengths, begins, limits, tokens)
    if any(vector.ndim != 1 or vector.dtype.kind not in "iu" for vector in vectors) or answers < 1:
        return "tokens, lengths, begins and limits must be lists of numbers"
    if {answers, len(words["splits"])} != {len(lengths)} or {len(begins), len(limits)} != {len(lengths)}:
        return "its lists have different lengths"
    if (begins < 0).any() or (lengths <= begins).any() or (lengths > len(tokens)).any() or lengths.sum() != len(tokens):
        return "its answers do not fit its tokens"
    roots = int((lengths - 1 - begins).sum())
    num = len(spec.drafters)
    shapes = {
        "features": (roots,),
        "margins": (roots,),
        "ranks": (num, roots, len(spec.top_ks), spec.depth * (spec.depth + 1) // 2),
        "scores": (num, roots, pool_size(spec.score_top_k, spec.depth)),
        "children": (num, roots, CHILDREN),
        "log_q": (num, roots),
    }
    for key, shape in shapes.items():
        if arrays[key].shape[: len(shape)] != shape or arrays[key].dtype != DTYPES[key]:
            return f"{key} is {arrays[key].dtype} {list(arrays[key].shape)}, wanted {DTYPES[key]} {list(shape)}"
    return "" if arrays["features"].ndim == 2 else "features must have two axes"


def open_traces(path: Path | str, target_fingerprint: str, target: str) -> tuple[Manifest, Traces]:
    """Open and check a traces artifact."""
    manifest = open_artifact(path, "traces", target_fingerprint=target_fingerprint, target=target)
    return manifest, load_shards(Path(path), TraceSpec.of(manifest))
