"""Two drafters in one tree: probabilities follow the formula, and the tree keeps the likeliest nodes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafterforge.tree.evidence import Evidence
from drafterforge.tree.merge import (
    DrafterCandidates,
    Nodes,
    RetrievalEvidence,
    as_tree,
    join_trees,
    likeliest,
    likeliest_in_python,
    merge_trees,
)

ROOT = 7
OCCURRENCES = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 4.0]), st.lists(st.integers(0, 2), min_size=4, max_size=4)), max_size=6
)


def drafted_by(tokens: list[int], scores: list[float], parents: list[int]) -> DrafterCandidates:
    return DrafterCandidates(torch.tensor(tokens), torch.tensor(scores), torch.tensor(parents))


def draw_drafted(seed: int, size: int) -> DrafterCandidates:
    """A random tree over three tokens, so that retrieval proposes some of its paths; parents precede children."""
    generator = torch.Generator().manual_seed(seed)
    nodes: list[tuple[int, float, int]] = []
    for _ in range(size):
        parent = int(torch.randint(-1, len(nodes), (), generator=generator))
        token = int(torch.randint(0, 3, (), generator=generator))
        if any(token == sibling and parent == above for sibling, _, above in nodes):
            continue
        score = nodes[parent][1] if parent >= 0 else 0.0
        nodes.append((token, score + math.log(0.1 + 0.2 * float(torch.rand((), generator=generator))), parent))
    return drafted_by(*(list(part) for part in zip(*nodes, strict=True)))


def slow_probabilities(
    evidence: Evidence, drafted: DrafterCandidates | None, trust: float, depth: int
) -> dict[tuple[int, ...], float]:
    """The probability of every path that drafter or retrieval proposes, by its tokens from the root on."""
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    paths: list[tuple[int, ...]] = []
    for token, score, parent in zip(*(part.tolist() for part in drafted or ()), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
        scores[paths[-1]] = score
    probabilities: dict[tuple[int, ...], float] = {(): 1.0}
    for level in range(depth):
        for path in [path for path in probabilities if len(path) == level]:
            drawn = any(drafted_path[:-1] == path for drafted_path in scores if drafted_path)
            doubt = evidence.doubt / evidence.length_weight**level * (trust if drawn else 1.0)
            occurrences = [occurrence for occurrence in evidence.occurrences if level < len(occurrence[1])]
            here = [(weight, ahead[level]) for weight, ahead in occurrences if tuple(ahead[:level]) == path]
            total = sum(weight for weight, _ in here) + doubt
            for token in range(3):
                weight = sum(part for part, following in here if following == token)
                guess = math.exp(scores[*path, token] - scores[path]) if (*path, token) in scores else 0.0
                if weight or guess:
                    probabilities[*path, token] = probabilities[path] * ((weight + doubt * guess) / total)
    return {path: likely for path, likely in probabilities.items() if path}


def paths_of(nodes: Nodes) -> list[tuple[int, ...]]:
    """The tokens from the root to every node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(nodes.tokens, nodes.parents, strict=True):
        paths.append((*(paths[parent - 1] if parent else ()), token))
    return paths


@settings(max_examples=150, deadline=None)
@given(
    occurrences=OCCURRENCES,
    seed=st.integers(0, 10**6),
    size=st.integers(0, 12),
    budget=st.integers(1, 30),
    least=st.sampled_from([0.0, 0.02, 0.2]),
    trust=st.sampled_from([0.5, 8.0]),
)
def test_the_merged_tree_keeps_the_likeliest_paths_of_both_drafters_once(occurrences, seed, size, budget, least, trust):
    evidence = Evidence.of(occurrences, doubt=3.0, length_weight=2.0)
    drafted = draw_drafted(seed, size) if size else None
    nodes = likeliest(evidence, budget, 3, least, drafted, trust)
    expected = slow_probabilities(evidence, drafted, trust, depth=4 + size)
    paths = paths_of(nodes)
    assert len(set(paths)) == len(paths) == min(budget - 1, sum(likely >= least for likely in expected.values()))
    assert nodes.probabilities == pytest.approx([expected[path] for path in paths])
    assert [len(path) for path in paths] == nodes.levels == sorted(nodes.levels)
    left = [likely for path, likely in expected.items() if path not in paths and likely >= least]
    assert not left or not paths or min(nodes.probabilities) >= max(left) - 1e-12


@settings(max_examples=300, deadline=None)
@given(
    occurrences=st.lists(
        st.tuples(st.sampled_from([0.1, 0.3, 1.0, 4.0]), st.lists(st.integers(-1, 3), max_size=5)), max_size=12
    ),
    seed=st.integers(0, 10**6),
    size=st.integers(0, 12),
    budget=st.integers(1, 30),
    top_k=st.integers(1, 4),
    least=st.sampled_from([0.0, 0.02, 0.2]),
    prices=st.lists(st.floats(0.0, 2.0), max_size=8),
)
def test_native_c_and_python_find_the_same_trees(occurrences, seed, size, budget, top_k, least, prices):
    evidence = Evidence.of(occurrences, doubt=3.0, length_weight=1.7)
    drafted = draw_drafted(seed, size) if size else None
    arguments = evidence, budget, top_k, least, drafted, 0.7, prices
    assert likeliest(*arguments) == likeliest_in_python(*arguments)  # probabilities to the last bit


def test_without_occurrences_the_drafter_s_probabilities_decide():
    drafted = drafted_by([4, 5, 6], [math.log(0.5), math.log(0.3), math.log(0.1)], [-1, -1, 0])
    nodes = likeliest(Evidence.of([], 4.0, 2.0), 9, 2, 0.0, drafted, 8.0)
    assert (nodes.tokens, nodes.parents) == ([4, 5, 6], [0, 0, 1])
    assert nodes.probabilities == pytest.approx([0.5, 0.3, 0.1])


def test_frequent_occurrences_outweigh_the_drafter():
    drafted = drafted_by([4], [math.log(0.9)], [-1])
    seldom, often = (Evidence.of([(weight, [5])], 4.0, 2.0) for weight in (1.0, 1000.0))
    assert likeliest(seldom, 2, 2, 0.0, drafted, 8.0).tokens == [4]
    assert likeliest(often, 2, 2, 0.0, drafted, 8.0).tokens == [5]
    assert seldom.ignorance(8.0) == pytest.approx(32 / 33) and often.ignorance(8.0) == pytest.approx(32 / 1032)


def test_retrieval_alone_proposes_its_best_tokens_below_each_node():
    evidence = Evidence.of([(3.0, [1, 1]), (2.0, [2, 1]), (1.0, [0, 1])], 4.0, 2.0)
    nodes = likeliest(evidence, 9, 2)
    assert (nodes.tokens, nodes.parents, nodes.levels) == ([1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 2])
    assert nodes.probabilities == pytest.approx([0.3, 0.2, 0.3 * 0.6, 0.2 * 0.5])


def test_rows_have_their_own_evidence_and_the_smaller_trees_are_padded():
    tokens, scores, parents = torch.tensor([[1], [1]]), torch.tensor([[-0.1], [-0.1]]), torch.tensor([[-1], [-1]])
    retrieval = RetrievalEvidence([Evidence.of([], 4.0, 2.0), Evidence.of([(90.0, [1, 5, 6])], 4.0, 2.0)], 8.0, 0.0, 2)
    tree = merge_trees(torch.tensor([ROOT, ROOT]), tokens, scores, parents, 9, retrieval)
    assert tree.tokens.tolist() == [[ROOT, 1, 0, 0], [ROOT, 1, 5, 6]]
    assert tree.parents.tolist() == [[0, 0, 2, 3], [0, 0, 1, 2]]  # a padding node is its own parent
    assert tree.levels.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    alone = merge_trees(torch.tensor([ROOT]), tokens[1:], scores[1:], parents[1:], 9, retrieval.of([1]))
    assert alone.tokens.tolist() == [[ROOT, 1, 5, 6]]


def test_candidates_of_a_row_that_ended_early_are_not_kept():
    ended = torch.tensor([[1, 2]]), torch.tensor([[-0.1, -math.inf]]), torch.tensor([[-1, 0]])
    retrieval = RetrievalEvidence([Evidence.of([], 4.0, 2.0)], 8.0, 0.0, 2)
    assert merge_trees(torch.tensor([ROOT]), *ended, 9, retrieval).tokens.tolist() == [[ROOT, 1]]


def test_a_budget_of_one_keeps_only_the_root():
    nodes = likeliest(Evidence.of([(9.0, [1, 2])], 1.0, 2.0), 1, 2, 0.0, drafted_by([1], [-0.1], [-1]))
    assert as_tree(torch.tensor([ROOT]), [nodes]).tokens.tolist() == [[ROOT]]


def test_joined_trees_keep_their_rows():
    single, two = (as_tree(torch.tensor([root]), [nodes]) for root, nodes in ((3, Nodes([], [], [], [])), (4, CHAIN)))
    tree = join_trees([([1], single), ([0], two)], 2)
    assert tree.tokens.tolist() == [[4, 8, 9], [3, 0, 0]]
    assert tree.parents.tolist() == [[0, 0, 1], [0, 1, 2]]


CHAIN = Nodes([8, 9], [0, 1], [1, 2], [0.5, 0.4])
