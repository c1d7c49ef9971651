"""Retrieval with retrieval.h: looking up a text's last tokens, and the likeliest tree of what followed them.

Both happen in every cycle, and Python takes several times as long.
Axes: N occurrences, D levels, P candidates of a drafter, T tree nodes without the root.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_double
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from drafterforge.kernels import native

NO_STORE = (0, 0, 0, 0, 0)


class LookUpSpec(Protocol):
    """What is looked up, and what it weighs; see `RetrievalSpec`."""

    max_ngram: int
    min_ngram: int
    max_matches: int
    length_weight: float
    recency: float
    datastore_weight: float


@dataclass(frozen=True, eq=False)
class SuffixArray:
    """Sequences of tokens, searchable by the tokens before a place.  All int32."""

    text: np.ndarray  # tokens, with separators before, between and after the sequences
    order: np.ndarray  # places in `text`, sorted by the tokens before them
    starts: np.ndarray  # index in `order` of the first place after each token, and the number of places

    def __post_init__(self) -> None:
        for part in (self.text, self.order, self.starts):
            if part.dtype != np.int32 or part.ndim != 1 or not part.flags.c_contiguous:
                raise ValueError(f"wanted contiguous int32 of one axis, got {part.dtype} {list(part.shape)}")

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """What C reads: tokens and their number, order, starts and their number."""
        tokens, order, starts = (part.__array_interface__["data"][0] for part in (self.text, self.order, self.starts))
        return tokens, len(self.text), order, starts, len(self.starts)


def look_up(text: array[int], store: SuffixArray | None, spec: LookUpSpec, depth: int) -> tuple[Tensor, Tensor]:
    """Weights [N] float64 of earlier occurrences of the text's last tokens, and the tokens after each, [N, D] int32.

    text: an array of type "i".  Occurrences in the text come first, then those in the store, of each at most
    spec.max_matches.
    """
    if text.typecode != "i" or text.itemsize != 4:
        raise ValueError(f"wanted an array of type 'i' with 4 bytes, got {text.typecode!r} with {text.itemsize}")
    if spec.min_ngram < 1 or spec.max_ngram < 1:
        raise ValueError(f"wanted min_ngram and max_ngram of at least 1, got {spec.min_ngram} and {spec.max_ngram}")
    matches = min(spec.max_matches, len(text) + (0 if store is None else len(store.order)))
    weights, ahead = torch.empty(2 * matches, dtype=torch.double), torch.empty(2 * matches, depth, dtype=torch.int32)
    num_found = native.library().df_look_up(
        *text.buffer_info(),
        *(NO_STORE if store is None else store.addresses),
        min(spec.max_ngram, max(len(text), 1)),
        spec.min_ngram,
        matches,
        spec.length_weight,
        spec.recency,
        spec.datastore_weight,
        depth,
        weights.data_ptr(),
        ahead.data_ptr(),
    )
    if num_found < 0:
        raise MemoryError("no memory to look up a text")
    return weights[:num_found], ahead[:num_found]


def likeliest(
    weights: Tensor,
    ahead: Tensor,
    doubt: float,
    length_weight: float,
    num_tokens: int,
    top_k: int,
    min_probability: float,
    candidates: tuple[Tensor, Tensor, Tensor] | None,
    trust: float,
    prices: Sequence[float],
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Tokens, parents, levels and probabilities of the nodes of `merge.likeliest`, [T] each.

    weights: [N] float64.  ahead: [N, D] int32.  candidates: tokens, scores and parents of a drafter, [P]; None: without
    a drafter.
    """
    (num, depth), most, count = ahead.shape, max(num_tokens, 1), 0
    native.require(weights, (num,), torch.double)
    native.require(ahead, (num, depth), torch.int32)
    drafted = 0, 0, 0
    if candidates is not None:
        count = len(candidates[0])
        for part, dtype in zip(candidates, (torch.long, torch.float32, torch.long), strict=True):
            native.require(part, (count,), dtype)
        drafted = tuple(part.data_ptr() for part in candidates)
    numbers, likely = torch.empty(3, most, dtype=torch.long), torch.empty(most, dtype=torch.double)
    num_nodes = native.library().df_likeliest(
        weights.data_ptr(),
        ahead.data_ptr(),
        num,
        depth,
        doubt,
        length_weight,
        most,
        max(top_k, 1),
        min_probability,
        *drafted,
        count,
        trust,
        (c_double * len(prices))(*prices) if prices else 0,
        len(prices),
        *(numbers.data_ptr() + row * most * numbers.element_size() for row in range(3)),
        likely.data_ptr(),
    )
    if num_nodes < 0:
        raise MemoryError("no memory for a tree")
    tokens, parents, levels = numbers[:, :num_nodes].tolist()
    return tokens, parents, levels, likely[:num_nodes].tolist()
