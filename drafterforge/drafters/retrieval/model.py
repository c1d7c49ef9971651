"""The retrieval drafter's host side: what followed earlier occurrences of the context's suffix.

Occurrences come from the context itself and from a datastore of many answers.  A match is (length, positions):
places where the last `length` tokens stood before, each given by the index of the token after them; every place is
named once, with its longest match.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from drafterforge.artifacts.typed import read_json
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.tree.evidence import SEPARATOR, Evidence

KIND = "retrieval"
FILE = "datastore.safetensors"
REMEDY = "build the datastore again from its answers"
NARROW_SEPARATOR = 0xFFFF  # the same in a file of two bytes a token

Match = tuple[int, list[int]]


@dataclass(frozen=True)
class RetrievalSpec:
    """How far to look back, and what an occurrence is worth."""

    max_ngram: int = 8  # longest suffix looked up
    min_ngram: int = 1  # shortest
    max_matches: int = 32  # occurrences used, longest first; of the context and of the datastore each
    length_weight: float = 2.0  # an occurrence that matches one token more counts this much more
    recency: float = 0.9  # weight of an occurrence in the context over that of the next more recent one of its length
    datastore_weight: float = 0.1  # of an occurrence in the datastore over one in the context
    doubt: float = 4.0  # weight of "none of these", where a context occurrence that matches one token has 1; > 0


class ContextIndex:
    """Where every n-gram of one growing token sequence stands."""

    def __init__(self, spec: RetrievalSpec) -> None:
        self.spec = spec
        self.tokens: list[int] = []
        self._positions: dict[tuple[int, ...], list[int]] = {}

    def append(self, tokens: Iterable[int]) -> None:
        """Lengthen the sequence."""
        text, positions = self.tokens, self._positions
        shortest, longest = self.spec.min_ngram, self.spec.max_ngram
        for token in tokens:
            end = len(text)  # only now do the n-grams before `token` have a continuation
            recent = tuple(text[-longest:])
            for start in range(len(recent) - shortest + 1):
                positions.setdefault(recent[start:], []).append(end)
            text.append(token)

    def occurrences(self) -> list[Match]:
        """The best `max_matches` earlier occurrences of the current suffix: longest first, then most recent first."""
        text, positions, spec = self.tokens, self._positions, self.spec
        recent = tuple(text[-spec.max_ngram :])
        matches: list[Match] = []
        room = spec.max_matches
        for length in range(len(recent), spec.min_ngram - 1, -1):
            if not room:
                break
            # the most recent max_matches suffice: any that matches longer has been named, and used up room
            ends = positions.get(recent[-length:], [])[: -spec.max_matches - 1 : -1]
            if ends and length < len(recent):
                preceding, distance = recent[-length - 1], length + 1
                ends = [end for end in ends if end < distance or text[end - distance] != preceding]
            if ends:
                matches.append((length, ends[:room]))
                room -= len(matches[-1][1])
        return matches


class Datastore:
    """Answers of a domain, searchable by what stands before a place: a suffix array over the reversed text."""

    def __init__(self, text: np.ndarray) -> None:
        """text: sequences with separators around them, [N] int32."""
        order = suffix_order(text)
        self._text = text
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
        return Datastore(np.concatenate(parts))

    def lookup(self, context: Sequence[int], spec: RetrievalSpec) -> list[Match]:
        """Places whose preceding tokens end as `context` does: `max_matches` at most, longest match first.

        Where only some places of a length have room, they are spread evenly over all of them.
        """
        order = self.order
        inner_low = inner_high = 0  # places in between match longer and are named already
        matches: list[Match] = []
        room = spec.max_matches
        ranges = self._ranges(context[: -spec.max_ngram - 1 : -1])
        for length in range(len(ranges), spec.min_ngram - 1, -1):
            low, high = ranges[length - 1]
            if length == len(ranges):
                inner_low = inner_high = low
            hole = inner_high - inner_low
            count = high - low - hole
            num_picks = min(count, room)
            if num_picks:
                picks = [low + pick * count // num_picks for pick in range(num_picks)]
                matches.append((length, [order[pick if pick < inner_low else pick + hole] for pick in picks]))
                room -= num_picks
            if not room:
                break
            inner_low, inner_high = low, high
        return matches

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

            def token_before(position: int, length: int = length) -> int:
                return text[position - length]

            low = bisect_left(order, token, low, high, key=token_before)
            high = bisect_right(order, token, low, high, key=token_before)
        return [*ranges, (low, high)] if low < high else ranges

    def save(self, folder: Path) -> None:
        """Write its tensor and `config.json` into an existing folder; small ids take two bytes each."""
        text = self._text
        small = text.max() < NARROW_SEPARATOR
        text = np.where(text == SEPARATOR, NARROW_SEPARATOR, text).astype(np.uint16) if small else text
        save_file({"text": text}, folder / FILE)
        (folder / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n")

    @property
    def num_sequences(self) -> int:
        """How many sequences it was built from."""
        return int((self._text == SEPARATOR).sum()) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return int((self._text != SEPARATOR).sum())

    def _config(self) -> dict[str, Any]:
        return {"kind": KIND, "num_sequences": self.num_sequences, "num_tokens": self.num_tokens}

    @staticmethod
    def open(folder: Path, vocab_size: int | None = None) -> Datastore:
        """The datastore in `folder`; raises ArtifactError unless it is whole and consistent.

        vocab_size: of the target that it is for, which has no other token ids; None: not known.
        """
        path = folder / FILE
        try:
            config = read_json(folder / "config.json")
            arrays = load_file(path)
        except (ArtifactError, OSError, ValueError, SafetensorError, TypeError, AttributeError) as error:
            # TypeError, AttributeError: half precision that NumPy does not know
            raise ArtifactError(
                f"{folder} is no readable datastore ({error}); wanted config.json and {path.name}; {REMEDY}"
            ) from None
        kind = config.get("kind") if isinstance(config, dict) else config
        if kind != KIND:
            raise ArtifactError(f"{folder / 'config.json'} describes a {quote(kind)}, wanted kind {KIND!r}; {REMEDY}")
        if arrays.keys() - {"order"} != {"text"}:  # order: of datastores that were stored sorted
            raise ArtifactError(
                f"{path} holds {shorten(', '.join(sorted(arrays))) or 'nothing'}; wanted text; {REMEDY}"
            )
        text = arrays["text"]
        if text.dtype not in (np.uint16, np.int32) or text.ndim != 1:
            raise ArtifactError(
                f"{path}: text is {text.dtype} {list(text.shape)}, wanted uint16 or int32 of one axis; {REMEDY}"
            )
        if text.dtype == np.uint16:
            text = np.where(text == NARROW_SEPARATOR, SEPARATOR, text.astype(np.int32))
        if len(text) == 0 or text[0] != SEPARATOR or text[-1] != SEPARATOR or text.min() < SEPARATOR:
            raise ArtifactError(f"{path}: text is no list of sequences with separators around them; {REMEDY}")
        if vocab_size is not None and text.max() >= vocab_size:
            raise ArtifactError(
                f"{path} holds the token id {text.max()}; wanted ids below {vocab_size}, as many as the target has; "
                f"{REMEDY}"
            )
        store = Datastore(text.astype(np.int32))
        if config != store._config():
            raise ArtifactError(f"{folder / 'config.json'} says {shorten(config)}, wanted {store._config()}; {REMEDY}")
        return store


@dataclass(frozen=True)
class Retrieval(Drafter):
    """What drafts by lookup: the text so far and, optionally, answers of a domain."""

    kind = KIND

    spec: RetrievalSpec = field(default_factory=RetrievalSpec)
    datastore: Datastore | None = None
    min_probability: float = 0.06  # candidates less likely than this are not verified
    min_expected: float = 0.3  # nor is a tree of which fewer tokens than this are expected to be confirmed


def suffix_order(text: np.ndarray) -> np.ndarray:
    """Places of `text` with a token on both sides, [M] int32, sorted by the tokens before them, nearest first.

    Prefix doubling: ranks by the last h tokens give ranks by the last 2h.  Separators differ from each other.
    """
    separators = text == SEPARATOR
    rank = np.unique(np.where(separators, -np.cumsum(separators), text), return_inverse=True)[1]
    reach = 1
    while rank.max() < len(text) - 1:
        pair = rank * len(text)
        pair[reach:] += rank[:-reach]
        rank = np.unique(pair, return_inverse=True)[1]
        reach *= 2
    positions = inner_positions(text)
    return positions[np.argsort(rank[positions - 1])].astype(np.int32)


def inner_positions(text: np.ndarray) -> np.ndarray:
    """The places of `text` with a token on both sides, ascending."""
    separators = text == SEPARATOR
    return np.flatnonzero(~separators[1:] & ~separators[:-1]) + 1


def evidence_of(context: ContextIndex, datastore: Datastore | None, depth: int) -> Evidence:
    """What followed the context's suffix before, `depth` tokens of each occurrence."""
    spec = context.spec
    return Evidence(weighted_occurrences(context, datastore, depth), spec.doubt, spec.length_weight)


def weighted_occurrences(
    context: ContextIndex, datastore: Datastore | None, depth: int
) -> list[tuple[float, list[int]]]:
    """Weight of every occurrence and the `depth` tokens after it; a separator stands where its sequence ends."""
    spec, text = context.spec, context.tokens
    occurrences: list[tuple[float, list[int]]] = []
    for length, positions in context.occurrences():
        weight = spec.length_weight ** (length - 1)
        for position in positions:
            ahead = text[position : position + depth]
            while len(ahead) < depth:  # what overlaps the suffix goes on as it did: the text repeats itself
                ahead += ahead[: depth - len(ahead)]
            occurrences.append((weight, ahead))
            weight *= spec.recency
    if datastore is not None:
        for length, positions in datastore.lookup(text, spec):
            weight = spec.datastore_weight * spec.length_weight ** (length - 1)
            occurrences += [(weight, datastore.text[position : position + depth].tolist()) for position in positions]
    return occurrences
