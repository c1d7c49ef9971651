"""The retrieval drafter's host side: what followed earlier occurrences of the context's suffix, as a token tree.

Occurrences come from the context itself and from a datastore of many answers.  A match is (length, positions):
places where the last `length` tokens stood before, each given by the index of the token after them; every place is
named once, with its longest match.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from drafterforge.artifacts.typed import read_json
from drafterforge.errors import ArtifactError

KIND = "retrieval"
REMEDY = "build the datastore again from its answers"
SEPARATOR = -1  # before, between and after the datastore's sequences

Match = tuple[int, list[int]]


@dataclass(frozen=True)
class RetrievalSpec:
    """How far to look back, and what an occurrence is worth."""

    max_ngram: int = 8  # longest suffix looked up
    min_ngram: int = 1  # shortest
    max_matches: int = 32  # occurrences used, longest first; of the context and of the datastore each
    length_weight: float = 2.0  # an occurrence that matches one token more counts this much more
    recency: float = 0.9  # weight of an occurrence in the context over that of the next more recent one of its length
    datastore_weight: float = 0.2  # of an occurrence in the datastore over one in the context
    doubt: float = 4.0  # weight of "none of these", where a context occurrence that matches one token has 1; > 0


class Candidates(NamedTuple):
    """Nodes below the root in level order, parents first; `scores` are cumulative log-probabilities."""

    tokens: list[int]
    parents: list[int]  # index of the parent, -1 for children of the root
    levels: list[int]  # from 1
    scores: list[float]


class ContextIndex:
    """Where every n-gram of one growing token sequence stands."""

    def __init__(self, spec: RetrievalSpec) -> None:
        self.spec = spec
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def append(self, tokens: Iterable[int]) -> None:
        """Lengthen the sequence."""
        text, places = self.tokens, self._places
        shortest, longest = self.spec.min_ngram, self.spec.max_ngram
        for token in tokens:
            end = len(text)  # only now do the n-grams before `token` have a continuation
            recent = tuple(text[-longest:])
            for start in range(len(recent) - shortest + 1):
                places.setdefault(recent[start:], []).append(end)
            text.append(token)

    def occurrences(self) -> list[Match]:
        """The best `max_matches` earlier occurrences of the current suffix: longest first, then most recent first."""
        text, places, spec = self.tokens, self._places, self.spec
        recent = tuple(text[-spec.max_ngram :])
        found: list[Match] = []
        room = spec.max_matches
        for length in range(len(recent), spec.min_ngram - 1, -1):
            if not room:
                break
            # the most recent max_matches suffice: any that matches longer has been named, and used up room
            ends = places.get(recent[-length:], [])[: -spec.max_matches - 1 : -1]
            if ends and length < len(recent):
                before, back = recent[-length - 1], length + 1
                ends = [end for end in ends if end < back or text[end - back] != before]
            if ends:
                found.append((length, ends[:room]))
                room -= len(found[-1][1])
        return found


class Datastore:
    """Answers of a domain, searchable by what stands before a place: a suffix array over the reversed text."""

    def __init__(self, text: np.ndarray, order: np.ndarray) -> None:
        """text: sequences with separators around them, [N] int32.  order: [M] int32, see `reading_back`."""
        self._arrays = {"text": text, "order": order}
        self.text, self.order = memoryview(text), memoryview(order)  # gives plain integers, quickly
        before = text[order - 1]
        starts = np.flatnonzero(np.diff(before, prepend=SEPARATOR))
        bounds = pairwise([*starts.tolist(), len(order)])
        self._starts = dict(zip(before[starts].tolist(), bounds, strict=True))  # of `order`, by the token before

    @staticmethod
    def build(sequences: Iterable[Sequence[int]]) -> Datastore:
        """The datastore of these token sequences; no match runs from one into the next."""
        separator = np.array([SEPARATOR], np.int32)
        parts = [separator]
        for sequence in sequences:
            parts += [np.asarray(sequence, np.int32), separator]
        text = np.concatenate(parts)
        return Datastore(text, reading_back(text))

    def lookup(self, context: Sequence[int], spec: RetrievalSpec) -> list[Match]:
        """Places whose preceding tokens end as `context` does: `max_matches` at most, longest match first.

        Where only some places of a length have room, they are spread evenly over all of them.
        """
        order = self.order
        inner_low = inner_high = 0  # places in between match longer and are named already
        found: list[Match] = []
        room = spec.max_matches
        ranges = self._ranges(context[: -spec.max_ngram - 1 : -1])
        for length in range(len(ranges), spec.min_ngram - 1, -1):
            low, high = ranges[length - 1]
            if length == len(ranges):
                inner_low = inner_high = low
            hole = inner_high - inner_low
            count = high - low - hole
            taken = min(count, room)
            if taken:
                picks = [low + pick * count // taken for pick in range(taken)]
                found.append((length, [order[pick if pick < inner_low else pick + hole] for pick in picks]))
                room -= taken
            if not room:
                break
            inner_low, inner_high = low, high
        return found

    def _ranges(self, backwards: Sequence[int]) -> list[tuple[int, int]]:
        """Ranges of `order` whose places follow the first 1, 2, ... of these tokens, as long as there are any."""
        text, order = self.text, self.order
        ranges: list[tuple[int, int]] = []
        low, high = self._starts.get(backwards[0], (0, 0)) if backwards else (0, 0)
        for length, token in enumerate(backwards[1:], start=2):
            if low == high:
                break
            ranges.append((low, high))
            if text[order[low] - length] == token == text[order[high - 1] - length]:
                continue

            def before(place: int, length: int = length) -> int:
                return text[place - length]

            low = bisect_left(order, token, low, high, key=before)
            high = bisect_right(order, token, low, high, key=before)
        return [*ranges, (low, high)] if low < high else ranges

    def save(self, folder: Path) -> None:
        """Write `datastore.safetensors` and `config.json` into an existing folder."""
        save_file(self._arrays, folder / "datastore.safetensors")
        (folder / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n")

    @property
    def num_sequences(self) -> int:
        """How many sequences it was built from."""
        return int((self._arrays["text"] == SEPARATOR).sum()) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return int((self._arrays["text"] != SEPARATOR).sum())

    def _config(self) -> dict[str, Any]:
        return {"kind": KIND, "num_sequences": self.num_sequences, "num_tokens": self.num_tokens}

    @staticmethod
    def open(folder: Path) -> Datastore:
        """The datastore in `folder`; raises ArtifactError unless it is whole and consistent."""
        path = folder / "datastore.safetensors"
        try:
            config = read_json(folder / "config.json")
            arrays = load_file(path)
        except (ArtifactError, OSError, ValueError, SafetensorError, TypeError, AttributeError) as error:
            # TypeError, AttributeError: half precision that NumPy does not know
            raise ArtifactError(
                f"{folder} is no readable datastore ({error}); wanted config.json and {path.name}; {REMEDY}"
            ) from None
        found = config.get("kind") if isinstance(config, dict) else config
        if found != KIND:
            raise ArtifactError(f"{folder / 'config.json'} describes a {found!r}, wanted kind {KIND!r}; {REMEDY}")
        if arrays.keys() != {"text", "order"}:
            raise ArtifactError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; wanted order, text; {REMEDY}")
        for name, array in arrays.items():
            if array.dtype != np.int32 or array.ndim != 1:
                raise ArtifactError(
                    f"{path}: {name} is {array.dtype} {list(array.shape)}, wanted int32 of one axis; {REMEDY}"
                )
        if not may_order(arrays["order"], arrays["text"]):
            raise ArtifactError(f"{path}: order is no sorted list of the places of text; {REMEDY}")
        store = Datastore(arrays["text"], arrays["order"])
        if config != store._config():
            raise ArtifactError(f"{folder / 'config.json'} says {config}, wanted {store._config()}; {REMEDY}")
        return store


@dataclass(frozen=True)
class Retrieval:
    """What drafts by lookup: the text so far and, optionally, answers of a domain."""

    spec: RetrievalSpec = field(default_factory=RetrievalSpec)
    datastore: Datastore | None = None
    min_probability: float = 0.03  # candidates less likely than this are not verified
    min_expected: float = 0.3  # nor is a tree of which fewer tokens than this are expected to be confirmed


def reading_back(text: np.ndarray) -> np.ndarray:
    """Places of `text` with a token on both sides, [M] int32, sorted by the tokens before them, nearest first.

    Prefix doubling: ranks by the last h tokens give ranks by the last 2h.  Separators differ from each other.
    """
    walls = text == SEPARATOR
    rank = np.unique(np.where(walls, -np.cumsum(walls), text), return_inverse=True)[1]
    reach = 1
    while rank.max() < len(text) - 1:
        pair = rank * len(text)
        pair[reach:] += rank[:-reach]
        rank = np.unique(pair, return_inverse=True)[1]
        reach *= 2
    places = inside(text)
    return places[np.argsort(rank[places - 1])].astype(np.int32)


def inside(text: np.ndarray) -> np.ndarray:
    """The places of `text` with a token on both sides, ascending."""
    walls = text == SEPARATOR
    return np.flatnonzero(~walls[1:] & ~walls[:-1]) + 1


def may_order(order: np.ndarray, text: np.ndarray) -> bool:
    """Whether `order` may be what `reading_back` makes of `text`; its sorting is checked by two tokens."""
    if len(text) == 0 or text[0] != SEPARATOR or text[-1] != SEPARATOR or text.min() < SEPARATOR:
        return False
    if not np.array_equal(np.sort(order), inside(text)):
        return False
    nearest = (text[order - 1].astype(np.int64) << 32) + text[order - 2]
    return bool((np.diff(nearest) >= 0).all())


def grow_candidates(
    context: ContextIndex, datastore: Datastore | None, num_tokens: int, depth: int, top_k: int
) -> Candidates:
    """The most likely tree below the context's last token: at most `num_tokens` - 1 nodes, `depth` levels.

    Given its parent, a child has the probability of its share in the weight of the parent's occurrences and of doubt.
    The likeliest node comes first, equal ones by level, then as found.
    """
    occurrences = weighted_occurrences(context, datastore, depth)
    doubt, length_weight = context.spec.doubt, context.spec.length_weight
    frontier: list[tuple] = []
    nodes: list[tuple[int, int, int, float]] = []  # parent, level, token, score
    parent, level, score, found = -1, 0, 0.0, 0
    while True:
        if level < depth:
            shares: dict[int, float] = {}
            behind: dict[int, list] = {}
            for occurrence in occurrences:
                weight, ahead = occurrence
                token = ahead[level]
                if token in shares:
                    shares[token] += weight
                    behind[token].append(occurrence)
                elif token != SEPARATOR:
                    shares[token] = weight
                    behind[token] = [occurrence]
            # every occurrence here matches `level` tokens more than at the root
            total = sum(shares.values()) + doubt / length_weight**level
            tokens = sorted(shares, key=shares.__getitem__, reverse=True)[:top_k] if len(shares) > 1 else shares
            for token in tokens:
                cost = -score - math.log(shares[token] / total)
                heappush(frontier, (cost, level + 1, found, token, parent, behind[token]))
                found += 1
        if not frontier or len(nodes) >= num_tokens - 1:
            break
        cost, level, _, token, above, occurrences = heappop(frontier)
        score, parent = -cost, len(nodes)
        nodes.append((above, level, token, score))
    order = sorted(range(len(nodes)), key=lambda node: nodes[node][1])
    place = [0] * len(nodes) + [-1]  # the root, -1, keeps its name
    for new, node in enumerate(order):
        place[node] = new
    parents, levels, tokens, scores = zip(*(nodes[node] for node in order), strict=True) if nodes else ((),) * 4
    return Candidates(list(tokens), [place[node] for node in parents], list(levels), list(scores))


def weighted_occurrences(
    context: ContextIndex, datastore: Datastore | None, depth: int
) -> list[tuple[float, list[int]]]:
    """Weight of every occurrence and the `depth` tokens after it; a separator stands where its sequence ends."""
    spec, text = context.spec, context.tokens
    found: list[tuple[float, list[int]]] = []
    for length, places in context.occurrences():
        weight = spec.length_weight ** (length - 1)
        for place in places:
            ahead = text[place : place + depth]
            while len(ahead) < depth:  # what overlaps the suffix goes on as it did: the text repeats itself
                ahead += ahead[: depth - len(ahead)]
            found.append((weight, ahead))
            weight *= spec.recency
    if datastore is not None:
        for length, places in datastore.lookup(text, spec):
            weight = spec.datastore_weight * spec.length_weight ** (length - 1)
            found += [(weight, datastore.text[place : place + depth].tolist()) for place in places]
    return found
