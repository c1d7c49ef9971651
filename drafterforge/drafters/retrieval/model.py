"""Lookup of earlier occurrences of the context's suffix, in the context itself and in a datastore of answers.

A match is (length, positions): the last `length` tokens of the context also occur before each of these positions. A
position is reported once, with its longest match.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from drafterforge.artifacts.json_input import read_json
from drafterforge.drafters.base import Drafter
from drafterforge.errors import ArtifactError, quote, shorten
from drafterforge.kernels.dispatch import SuffixArray, retrieval_kernels
from drafterforge.tree.evidence import SEPARATOR, Evidence

KIND = "retrieval"
FILE = "datastore.safetensors"
REMEDY = "train the retrieval drafter again"
MOST_IDS = 1 << 24  # of any vocabulary
NARROW_SEPARATOR = 0xFFFF  # the separator in files with uint16 tokens

Match = tuple[int, list[int]]
Continuations = list[tuple[int, list[list[int]]]]  # of each match: its length, and the tokens after each position


@dataclass(frozen=True)
class RetrievalSpec:
    """Lengths of the suffixes to look up, and weights of their occurrences."""

    max_ngram: int = 8  # longest suffix
    min_ngram: int = 1  # shortest suffix
    max_matches: int = 32  # occurrences to use, longest first, of the context and of the datastore each
    length_weight: float = 2.0  # factor of an occurrence's weight per matching token
    recency: float = 0.9  # factor of weights from a context occurrence to the next older one of the same length
    datastore_weight: float = 0.1  # of a datastore occurrence, relative to one in the context
    doubt: float = 4.0  # weight of "none of these", > 0; a context occurrence that matches one token has weight 1


class ContextIndex:
    """A growing token sequence in which its last tokens are looked up."""

    def __init__(self, spec: RetrievalSpec) -> None:
        self.spec = spec
        self.tokens = array("i")

    def append(self, tokens: Iterable[int]) -> None:
        self.tokens.extend(tokens)

    def occurrences(self) -> list[Match]:
        """The best `max_matches` earlier occurrences of the current suffix: longest first, then most recent first."""
        spec, text = self.spec, np.array(self.tokens, np.int32)
        ends = np.arange(len(text) - 1, 0, -1)
        lengths, longer = np.zeros_like(ends), np.arange(len(ends))
        for length in range(1, min(spec.max_ngram, len(text)) + 1):
            longer = longer[ends[longer] >= length]
            longer = longer[text[ends[longer] - length] == text[-length]]
            if not len(longer):
                break
            lengths[longer] = length
        matches = np.flatnonzero(lengths >= max(spec.min_ngram, 1))
        best = matches[np.argsort(-lengths[matches], kind="stable")[: spec.max_matches]]
        by_length = groupby(zip(lengths[best].tolist(), ends[best].tolist(), strict=True), key=itemgetter(0))
        return [(length, [end for _, end in part]) for length, part in by_length]


class Datastore:
    """Answers of a domain, searchable by preceding tokens: a suffix array over the reversed text."""

    def __init__(self, text: np.ndarray) -> None:
        """text: sequences with separators before, between and after them, [N] int32."""
        order = suffix_order(text)
        self._text = text
        self.text, self.order = memoryview(text), memoryview(order)  # items are Python integers
        starts = np.concatenate(([0], np.bincount(text[order - 1]).cumsum())).astype(np.int32)
        self.starts = memoryview(starts)  # index in `order` of the first place behind each token
        self.suffixes = SuffixArray(text, order, starts)

    @staticmethod
    def build(sequences: Iterable[Sequence[int]]) -> Datastore:
        """Build a datastore; no match crosses from one sequence into the next."""
        separator = np.array([SEPARATOR], np.int32)
        parts = [separator]
        for sequence in sequences:
            parts += [np.asarray(sequence, np.int32), separator]
        return Datastore(np.concatenate(parts))

    def lookup(self, context: Sequence[int], spec: RetrievalSpec) -> list[Match]:
        """At most `max_matches` positions after occurrences of the context's suffix, longest match first.

        If only some positions of a length fit, an even sample of them is used.
        """
        order = self.order
        inner_low = inner_high = 0  # positions in between were reported with longer matches
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

    @property
    def stored(self) -> Datastore:
        """See `AnswerSource`."""
        return self

    def remembered(self, context: Sequence[int], spec: RetrievalSpec, depth: int) -> Continuations:
        """See `AnswerSource`."""
        return []

    def continuations(self, context: Sequence[int], spec: RetrievalSpec, depth: int) -> Continuations:
        """As `lookup`, with the `depth` tokens after each position; a separator marks the end of its sequence."""
        return [(length, self.ahead(positions, depth)) for length, positions in self.lookup(context, spec)]

    def ahead(self, positions: Iterable[int], depth: int) -> list[list[int]]:
        """The `depth` tokens after each position."""
        return [self.text[position : position + depth].tolist() for position in positions]

    def _ranges(self, backwards: Sequence[int]) -> list[tuple[int, int]]:
        """Ranges of `order` whose positions follow the first 1, 2, ... of these tokens, while not empty."""
        text, order = self.text, self.order
        ranges: list[tuple[int, int]] = []
        low = high = 0
        if backwards and 0 <= backwards[0] < len(self.starts) - 1:
            low, high = self.starts[backwards[0]], self.starts[backwards[0] + 1]
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
        """Write the tokens and `config.json` into an existing folder; ids below 65535 take two bytes each."""
        text = self._text
        small = text.max() < NARROW_SEPARATOR
        text = np.where(text == SEPARATOR, NARROW_SEPARATOR, text).astype(np.uint16) if small else text
        save_file({"text": text}, folder / FILE)
        (folder / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n")

    def sequences(self) -> list[np.ndarray]:
        """The stored sequences, [n] int32 each."""
        ends = np.flatnonzero(self._text == SEPARATOR)
        return [self._text[start + 1 : end] for start, end in pairwise(ends)]

    @property
    def num_sequences(self) -> int:
        return int((self._text == SEPARATOR).sum()) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens without separators."""
        return int((self._text != SEPARATOR).sum())

    def _config(self) -> dict[str, Any]:
        return {"kind": KIND, "num_sequences": self.num_sequences, "num_tokens": self.num_tokens}

    @staticmethod
    def open(folder: Path, vocab_size: int | None = None) -> Datastore:
        """The datastore in `folder`; ArtifactError if it is damaged.

        vocab_size: of the target, to check the ids against; None: unchecked.
        """
        path = folder / FILE
        try:
            config = read_json(folder / "config.json")
            arrays = load_file(path)
        except (ArtifactError, OSError, ValueError, SafetensorError, TypeError, AttributeError) as error:
            # TypeError, AttributeError: a dtype that NumPy does not have
            raise ArtifactError(
                f"{folder} is not a readable datastore ({shorten(error, 300)}); wanted config.json and {path.name}; "
                f"{REMEDY}"
            ) from None
        kind = config.get("kind") if isinstance(config, dict) else config
        if kind != KIND:
            raise ArtifactError(f"{folder / 'config.json'} describes a {quote(kind)}, wanted kind {KIND!r}; {REMEDY}")
        if arrays.keys() - {"order"} != {"text"}:  # older versions also stored `order`
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
            raise ArtifactError(f"{path}: text is not a list of token sequences with separators around them; {REMEDY}")
        if text.max() >= (vocab_size or MOST_IDS):
            limit = f"the target has {vocab_size} ids" if vocab_size else f"no vocabulary has {MOST_IDS} ids"
            raise ArtifactError(f"{path} holds the token id {text.max()}, but {limit}; {REMEDY}")
        store = Datastore(text.astype(np.int32))
        if config != store._config():
            raise ArtifactError(f"{folder / 'config.json'} says {shorten(config)}, wanted {store._config()}; {REMEDY}")
        return store


class AnswerSource(Protocol):
    """Answers to look up beside the context."""

    @property
    def stored(self) -> Datastore | None:
        """Answers that do not change."""

    def remembered(self, context: Sequence[int], spec: RetrievalSpec, depth: int) -> Continuations:
        """Continuations of the context's suffix by answers that are not stored, as `Datastore.continuations`."""


@dataclass(frozen=True)
class Retrieval(Drafter):
    """A drafter that looks up the context and, optionally, a datastore of answers."""

    kind = KIND

    spec: RetrievalSpec = field(default_factory=RetrievalSpec)
    datastore: AnswerSource | None = None
    min_probability: float = 0.06  # of a candidate, to be verified
    min_expected: float = 0.3  # expected number of accepted nodes of a tree, to be verified


def suffix_order(text: np.ndarray) -> np.ndarray:
    """Positions with a token on both sides, [M] int32, sorted by the tokens before them, nearest first.

    Prefix doubling: ranks by the last h tokens give ranks by the last 2h. Each separator has its own rank.
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
    """Positions with a token on both sides, ascending."""
    separators = text == SEPARATOR
    return np.flatnonzero(~separators[1:] & ~separators[:-1]) + 1


def evidence_of(context: ContextIndex, source: AnswerSource | None, depth: int) -> Evidence:
    """The `depth` tokens after each earlier occurrence of the context's suffix, as evidence for drafting."""
    spec, kernels = context.spec, retrieval_kernels()
    store = None if source is None else source.stored
    if kernels is None:
        evidence = Evidence.of(weighted_occurrences(context, store, depth), spec.doubt, spec.length_weight)
    else:
        occurrences = kernels.look_up(context.tokens, None if store is None else store.suffixes, spec, depth)
        evidence = Evidence(*occurrences, spec.doubt, spec.length_weight)
    further = [] if source is None else source.remembered(context.tokens, spec, depth)
    return evidence.joined(_weighted(further, spec)) if further else evidence


def weighted_occurrences(
    context: ContextIndex, datastore: Datastore | None, depth: int
) -> list[tuple[float, list[int]]]:
    """Weight of each occurrence and the `depth` tokens after it, without native.c.

    A separator marks the end of a sequence.
    """
    spec, text = context.spec, context.tokens.tolist()
    occurrences: list[tuple[float, list[int]]] = []
    for length, positions in context.occurrences():
        weight = spec.length_weight ** (length - 1)
        for position in positions:
            ahead = text[position : position + depth]
            while len(ahead) < depth:  # the occurrence overlaps the suffix: continue the repetition
                ahead += ahead[: depth - len(ahead)]
            occurrences.append((weight, ahead))
            weight *= spec.recency
    return occurrences + ([] if datastore is None else _weighted(datastore.continuations(text, spec, depth), spec))


def _weighted(continuations: Continuations, spec: RetrievalSpec) -> list[tuple[float, list[int]]]:
    """Weight of each continuation by an answer, and its tokens."""
    return [
        (spec.datastore_weight * spec.length_weight ** (length - 1), ahead)
        for length, parts in continuations
        for ahead in parts
    ]
