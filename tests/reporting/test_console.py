"""Legends of printed tables."""

from __future__ import annotations

from drafterforge.reporting.console import legend_of


def test_the_legend_explains_the_names_of_methods_that_the_table_has():
    plain = legend_of([{"method": "autoregressive"}])
    assert "MAT: mean tokens" in plain and "invariant" not in plain and "draft tree" not in plain
    trees = legend_of([{"method": "autoregressive, invariant"}, {"method": "eagle3 tree 6/3/2"}])
    assert "autoregressive, invariant: decoding without a drafter" in trees and "6/3/2: a draft tree" in trees
