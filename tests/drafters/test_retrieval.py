"""Retrieval: occurrences equal those of a slow search, and trees of them are closed, ordered and within limits."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from drafterforge.drafters.retrieval.model import (
    ContextIndex,
    Datastore,
    RetrievalSpec,
    evidence_of,
    weighted_occurrences,
)
from drafterforge.errors import ArtifactError
from drafterforge.kernels.dispatch import retrieval_kernels
from drafterforge.tree.evidence import SEPARATOR
from drafterforge.tree.merge import Nodes, likeliest

TOKENS = st.lists(st.integers(0, 2), max_size=40)
SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=6)
SPECS = st.builds(
    RetrievalSpec,
    max_ngram=st.integers(1, 5),
    min_ngram=st.integers(1, 3),
    max_matches=st.sampled_from([0, 1, 2, 5, 100]),
)
QUICK = settings(max_examples=100, deadline=None)


def index_of(tokens, spec=RetrievalSpec()) -> ContextIndex:  # noqa: B008
    index = ContextIndex(spec)
    index.append(tokens)
    return index


def grow(context, store, num_tokens, depth, top_k) -> Nodes:
    """The tree below the context's last token."""
    return likeliest(evidence_of(context, store, depth), num_tokens, top_k)


def shared_suffix(left, right, limit) -> int:
    """Length of the longest common suffix, which never crosses a separator."""
    length = 0
    while length < min(len(left), len(right), limit) and left[-1 - length] == right[-1 - length] != SEPARATOR:
        length += 1
    return length


def slow_matches(text, context, spec) -> dict[int, list[int]]:
    """Positions of all tokens of `text` by the length of their match with the context, last positions first."""
    matches: dict[int, list[int]] = {}
    for position in reversed(range(len(text))):
        length = shared_suffix(text[:position], context, spec.max_ngram)
        if text[position] != SEPARATOR and length >= spec.min_ngram:
            matches.setdefault(length, []).append(position)
    return dict(sorted(matches.items(), reverse=True))


@QUICK
@given(TOKENS, SPECS)
def test_occurrences_are_the_best_of_a_slow_search_longest_then_most_recent_first(tokens, spec):
    matches = [
        (length, position) for length, places in slow_matches(tokens, tokens, spec).items() for position in places
    ]
    occurrences = index_of(tokens, spec).occurrences()
    assert [(length, position) for length, places in occurrences for position in places] == matches[: spec.max_matches]
    assert len({length for length, _ in occurrences}) == len(occurrences)


@QUICK
@given(st.lists(TOKENS, max_size=5), SPECS)
def test_appending_in_parts_equals_appending_at_once(parts, spec):
    index = ContextIndex(spec)
    for part in parts:
        index.append(part)
        index.occurrences()  # a lookup changes nothing
    full = index_of([token for part in parts for token in part], spec)
    assert index.tokens == full.tokens
    assert index.occurrences() == full.occurrences()


@QUICK
@given(SEQUENCES, TOKENS, SPECS)
def test_lookup_names_the_longest_matches_of_a_slow_search_and_never_crosses_sequences(sequences, context, spec):
    store = Datastore.build(sequences)
    text = store.text.tolist()
    assert text == [SEPARATOR, *(token for sequence in sequences for token in [*sequence, SEPARATOR])]
    room = spec.max_matches
    matches = dict(store.lookup(context, spec))
    for length, places in slow_matches(text, context, spec).items():
        positions = matches.pop(length, [])
        assert len(set(positions)) == len(positions) == min(room, len(places))
        assert set(positions) <= set(places)
        room -= len(positions)
    assert not matches


@QUICK
@given(TOKENS, st.none() | SEQUENCES, SPECS, st.integers(0, 5))
def test_native_c_and_python_find_the_same_occurrences(tokens, sequences, spec, depth):
    index, store = index_of(tokens, spec), None if sequences is None else Datastore.build(sequences)
    slow = weighted_occurrences(index, store, depth)
    assert evidence_of(index, store, depth).occurrences == [
        (weight, until_separator(ahead, depth)) for weight, ahead in slow
    ]


def until_separator(ahead: list[int], depth: int) -> list[int]:
    """The tokens before the first separator, padded with separators."""
    end = ahead.index(SEPARATOR) if SEPARATOR in ahead else len(ahead)
    return [*ahead[:end], *[SEPARATOR] * (depth - end)]


@pytest.mark.parametrize("lengths", [{"min_ngram": 0}, {"max_ngram": 0}, {"min_ngram": -3}])
def test_suffixes_without_tokens_are_not_looked_up(lengths):
    spec = RetrievalSpec(**lengths)
    if retrieval_kernels() is None:
        assert index_of([1, 2, 1], spec).occurrences() in ([], [(1, [1])])
        return
    with pytest.raises(ValueError, match="of at least 1"):
        evidence_of(index_of([1, 2, 1], spec), None, 2)


def test_a_text_with_a_separator_matches_nothing_before_it():
    store = Datastore.build([[2, 3], [5, 2, 4]])
    spec = RetrievalSpec(max_ngram=4)
    assert [ahead for _, ahead in evidence_of(index_of([9, SEPARATOR, 2], spec), store, 1).occurrences] == [[3], [4]]


@QUICK
@given(SEQUENCES)
def test_the_order_sorts_all_positions_by_their_preceding_tokens(sequences):
    store = Datastore.build(sequences)
    text, order = store.text.tolist(), store.order.tolist()
    before = [text[: text.index(SEPARATOR) + 1] for text in ([*text[position - 1 :: -1]] for position in order)]
    assert before == sorted(before)
    assert sorted(order) == [
        position for position in range(1, len(text)) if SEPARATOR not in text[position - 1 : position + 1]
    ]


def test_a_limit_spreads_matches_over_their_preceding_tokens():
    store = Datastore.build([[before, 99, 50 + before] for before in reversed(range(40))])
    ((length, places),) = store.lookup([98, 99], RetrievalSpec(max_matches=4))
    assert (length, [store.text[position] for position in places]) == (1, [50, 60, 70, 80])
    (_, (_, places)) = store.lookup([0, 99], RetrievalSpec(max_matches=4))  # the first match is 0 99
    assert [store.text[position] for position in places] == [51, 64, 77]


@QUICK
@given(
    TOKENS,
    st.none() | SEQUENCES,
    SPECS,
    st.integers(0, 12),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_trees_are_closed_ordered_distinct_and_within_their_limits(tokens, sequences, spec, num_tokens, depth, top_k):
    store = None if sequences is None else Datastore.build(sequences)
    index = index_of(tokens, spec)
    tree = grow(index, store, num_tokens, depth, top_k)
    assert tree == grow(index_of(tokens, spec), store, num_tokens, depth, top_k)
    size = len(tree.tokens)
    assert size == len(tree.parents) == len(tree.levels) == len(tree.probabilities) <= max(num_tokens - 1, 0)
    assert tree.levels == sorted(tree.levels)
    assert SEPARATOR not in tree.tokens
    siblings: dict[int, list[int]] = {}
    for node, (token, parent, level, likely) in enumerate(zip(*tree, strict=True), start=1):
        assert 0 <= parent < node
        assert level == (1 if parent == 0 else tree.levels[parent - 1] + 1) <= depth
        assert 0 < likely <= (1.0 if parent == 0 else tree.probabilities[parent - 1])
        siblings.setdefault(parent, []).append(token)
    for children in siblings.values():
        assert len(set(children)) == len(children) <= top_k
    for level in range(1, depth + 1):
        likely = [probability for probability, at in zip(tree.probabilities, tree.levels, strict=True) if at == level]
        assert likely == sorted(likely, reverse=True)
    matched = bool(index.occurrences() or (store and store.lookup(tokens, spec)))
    assert bool(size) == (matched and num_tokens > 1 and depth > 0)


@QUICK
@given(TOKENS, SEQUENCES, SPECS, st.integers(2, 12))
def test_a_smaller_tree_holds_the_likeliest_nodes_of_a_larger_one(tokens, sequences, spec, num_tokens):
    store, index = Datastore.build(sequences), index_of(tokens, spec)
    small, large = (grow(index, store, size, 5, 3) for size in (num_tokens, 200))
    assert paths(small) <= paths(large)
    assert sorted(small.probabilities, reverse=True) == sorted(large.probabilities, reverse=True)[: num_tokens - 1]


def paths(tree) -> set[tuple[int, ...]]:
    node_paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        node_paths.append((*(node_paths[parent - 1] if parent else ()), token))
    return set(node_paths)


def test_a_childs_probability_is_its_share_of_the_weight_and_of_doubt():
    spec = RetrievalSpec(length_weight=3.0, recency=0.5, doubt=2.0)
    tree = grow(index_of([1, 2, 5, 9, 2, 6, 8, 2, 7, 1, 2], spec), None, 4, 1, 4)
    # 1 2 precede 5 (weight 3); 2 alone precedes 7 (1) and 6 (1/2)
    assert tree.tokens == [5, 7, 6]
    assert tree.probabilities == pytest.approx([weight / 6.5 for weight in (3, 1, 0.5)])


def test_equal_nodes_come_most_recent_first_and_the_cut_keeps_them():
    index = index_of([2, 6, 5, 2, 7, 5, 2, 8, 5, 2], RetrievalSpec(recency=1.0))
    assert grow(index, None, 4, 1, 4).tokens == [8, 7, 6]
    assert grow(index, None, 3, 1, 4).tokens == grow(index, None, 4, 1, 2).tokens == [8, 7]


def test_a_longer_match_leaves_less_doubt():
    short = grow(index_of([1, 2, 5, 6, 7, 3, 2]), None, 4, 3, 1)
    long = grow(index_of([3, 2, 5, 6, 7, 3, 2]), None, 4, 3, 1)
    assert short.tokens == long.tokens == [5, 6, 7]
    assert all(low < high for low, high in zip(short.probabilities, long.probabilities, strict=True))
    first, second, third = (math.log(likely) for likely in short.probabilities)
    assert first < second - first < third - second  # each confirmed token lengthens the match


def test_a_match_that_overlaps_the_suffix_continues_the_repetition():
    assert grow(index_of([9, 1, 2, 3, 1]), None, 9, 8, 1).tokens == [2, 3, 1, 2, 3, 1, 2, 3]


def test_the_datastore_adds_tokens_that_the_context_lacks_up_to_the_end_of_a_sequence():
    store = Datastore.build([[4, 5, 6], [7, 8]])
    tree = grow(index_of([3, 4]), store, 16, 8, 4)
    assert tree.tokens == [5, 6]
    assert tree.parents == [0, 1]


@pytest.mark.parametrize("sequences", [[], [[]], [[3]]])
def test_a_datastore_without_two_consecutive_tokens_finds_nothing(sequences, tmp_path):
    Datastore.build(sequences).save(tmp_path)
    assert Datastore.open(tmp_path).lookup([3], RetrievalSpec()) == []


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    store = Datastore.build([rng.integers(0, 5, size).tolist() for size in (30, 0, 17, 44)])
    store.save(tmp_path)
    return tmp_path


def refusal(folder) -> str:
    with pytest.raises(ArtifactError) as caught:
        Datastore.open(folder)
    line = str(caught.value)
    assert str(folder) in line and "\n" not in line and "train the retrieval drafter again" in line
    return line


def test_a_loaded_datastore_equals_the_saved_one(saved):
    store, again = Datastore.open(saved), Datastore.open(saved)
    again.save(saved)
    assert {path.name for path in saved.iterdir()} == {"datastore.safetensors", "config.json"}
    assert json.loads((saved / "config.json").read_text()) == {
        "kind": "retrieval",
        "num_sequences": 4,
        "num_tokens": 91,
    }
    for context in ([1, 2, 3], [0], [4, 4], [9]):
        assert Datastore.open(saved).lookup(context, RetrievalSpec()) == store.lookup(context, RetrievalSpec())


@pytest.mark.parametrize("name", ["datastore.safetensors", "config.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"null"])
def test_a_damaged_file_is_refused(saved, name, content):
    (saved / name).unlink() if content is None else (saved / name).write_bytes(content)
    refusal(saved)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kind", "eagle3", "describes a 'eagle3', wanted kind 'retrieval'"),
        ("kind", ..., "describes a None, wanted"),
        ("num_tokens", ..., "wanted {'kind': 'retrieval', 'num_sequences': 4, 'num_tokens': 91}"),
        ("num_sequences", 3, "'num_sequences': 3"),
        ("more", 1, "'more': 1"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(saved, key, value, words):
    path = saved / "config.json"
    config = json.loads(path.read_text()) | {key: value}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    assert words in refusal(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "holds nothing; wanted text"),
        (lambda text: text.astype(np.int64), "text is int64"),
        (lambda text: text[None], "text is uint16 [1, "),
        (lambda text: text[:0], "not a list of token sequences"),
        (lambda text: text[:-1], "not a list of token sequences"),
        (lambda text: np.where(text == 0, -2, text).astype(np.int32), "not a list of token sequences"),
        (lambda text: text.astype(np.int32), "not a list of token sequences"),  # with other separators
        (
            lambda text: np.array([-1, 2**31 - 1, 5, -1], np.int32),
            "the token id 2147483647, but no vocabulary",
        ),
    ],
)
def test_tensors_of_no_datastore_are_refused(saved, change, words):
    path = saved / "datastore.safetensors"
    text = load_file(path)["text"]
    save_file({} if change is None else {"text": np.ascontiguousarray(change(text), None)}, path)
    assert words in refusal(saved)


@pytest.mark.parametrize(("largest", "bytes_each"), [(0xFFFE, 2), (0xFFFF, 4), (200_000, 4)])
def test_a_token_takes_two_bytes_where_that_is_enough(tmp_path, largest, bytes_each):
    store = Datastore.build([[1, 2, largest, 3], [2, largest]])
    store.save(tmp_path)
    assert load_file(tmp_path / "datastore.safetensors")["text"].itemsize == bytes_each
    again = Datastore.open(tmp_path)
    assert again.text.tolist() == store.text.tolist() and again.order.tolist() == store.order.tolist()


def test_a_datastore_with_a_stored_order_opens_too(saved):
    store = Datastore.open(saved)
    arrays = {"text": np.asarray(store.text, np.int32), "order": np.asarray(store.order, np.int32)}
    save_file(arrays, saved / "datastore.safetensors")
    assert Datastore.open(saved).order.tolist() == store.order.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_unknown_to_numpy_are_refused(saved, dtype):
    save_torch_file({"text": torch.zeros(3, dtype=dtype)}, saved / "datastore.safetensors")
    assert "is not a readable datastore" in refusal(saved)
