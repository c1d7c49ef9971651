"""Trees of all widths drafted at once: their best branch is the most probable branch of every single tree."""

from __future__ import annotations

import pytest
import torch

from drafterforge.tree.coverage import first_branch
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import TreeShape
from drafterforge.tree.union import MISSING, expand_widths

WIDTHS, DEPTH, VOCAB, ROWS = (1, 2, 4), 4, 9, 12


def scorer(table: torch.Tensor):
    """A step that scores children by a hash of the node's path, which picks a row of the table."""
    paths = torch.arange(ROWS)[:, None]

    def step(level, tokens, origin, reads):
        nonlocal paths
        paths = (31 * paths.gather(1, origin) + 17 * tokens + 7) % len(table)
        return table[paths]

    return step


@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_the_best_branch_is_the_first_branch_of_every_tree(spread):
    table, root = spread * torch.randn(211, VOCAB), torch.zeros(ROWS, dtype=torch.long)
    truth = torch.full((ROWS, DEPTH), -1)
    drafts = expand_widths(table[:ROWS], WIDTHS, DEPTH, truth, scorer(table), branch=True)
    left = 0
    for index, top_k in enumerate(WIDTHS):
        for depth in range(1, DEPTH + 1):
            for num_tokens in (2, 4, 9, 40):
                tree = expand(root, table[:ROWS], TreeShape(num_tokens, depth, top_k), scorer(table))
                _, children = first_branch(tree, DEPTH)
                in_tree = drafts.branch.ranks[:, index, depth - 1] < num_tokens
                for row in range(ROWS):
                    branch = [tree.tokens[row][below].tolist() for below in children[row]]
                    expected = drafts.branch.tokens[row]
                    assert branch == [expected[level][in_tree[row, level]].tolist() for level in range(DEPTH)]
                    left += not branch[depth - 1] and int(tree.levels[row].max()) == depth
    assert left > 9 or spread > 1  # some branches leave the beam while others continue
    assert (drafts.branch.ranks[:, 0, :, :, 1:] == MISSING).all()
