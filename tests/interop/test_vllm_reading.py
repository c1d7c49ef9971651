"""Rows of cycles that draft nothing are read later, together, and without those that were rejected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drafterforge.interop.vllm.reading import DeferredRows, Rows


class Batch:
    """What vLLM's metadata for attention in a batch is made of."""

    def __init__(self, block_table_tensor: Tensor, **parts: Any) -> None:
        self.block_table_tensor, self.parts = block_table_tensor, parts


def rows_of(*spans: range) -> Rows:
    """Rows of requests at these positions; token and features of a row are told by its position."""
    positions = torch.tensor([position for span in spans for position in span])
    features = positions[:, None].float().repeat(1, 2)
    return Rows(positions + 1, positions, features, torch.tensor([len(span) for span in spans]))


def positions_of(rows: Rows) -> list[list[int]]:
    """Positions by request."""
    assert torch.equal(rows.tokens, rows.positions + 1)
    assert torch.equal(rows.features[:, 1], rows.positions.float())
    return [part.tolist() for part in rows.positions.split(rows.counts.tolist())]


def test_rejected_rows_are_left_out():
    rows = rows_of(range(10, 14), range(5, 9), range(20, 21))
    assert rows.starts.tolist() == [0, 4, 8] and rows.ends.tolist() == [3, 7, 8]
    committed = rows.until(torch.tensor([1, 7, 8]))
    assert positions_of(committed) == [[10, 11], [5, 6, 7, 8], [20]]
    assert rows.until(rows.ends) is rows


def test_metadata_says_where_rows_stand_in_the_cache():
    batch = Batch(torch.tensor([[7, 3], [2, 9]]))
    rows = rows_of(range(3, 6), range(6, 7))
    parts = rows.metadata(batch, 4).parts
    assert parts["slot_mapping"].tolist() == [7 * 4 + 3, 3 * 4, 3 * 4 + 1, 9 * 4 + 2]
    assert parts["query_start_loc"].tolist() == parts["query_start_loc_cpu"].tolist() == [0, 3, 4]
    assert parts["seq_lens"].tolist() == parts["seq_lens_cpu_upper_bound"].tolist() == [6, 7]
    sizes = {name: parts[name] for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len")}
    assert sizes == {"num_reqs": 2, "num_actual_tokens": 4, "max_query_len": 3, "max_seq_len": 7}


def test_deferred_rows_come_back_by_request():
    deferred = DeferredRows(8, 100)
    slots = torch.tensor([5, 2])
    deferred.defer(slots, rows_of(range(10, 11), range(30, 33)))
    deferred.defer(slots.flip(0), rows_of(range(33, 34), range(11, 13)))
    deferred.defer(torch.tensor([7]), rows_of(range(4, 6)))
    rows = deferred.take(torch.tensor([1, 5, 2]), torch.tensor([50, 13, 34]))
    assert positions_of(rows) == [[], [10, 11, 12], [30, 31, 32, 33]]
    assert not deferred.take(slots, torch.tensor([13, 34]))
    assert positions_of(deferred.take(torch.tensor([7]), torch.tensor([6]))) == [[4, 5]]
    assert deferred.num_rows == 0 and deferred.take(slots, torch.tensor([13, 34])) is None


def test_rows_that_vllm_reads_again_are_dropped():
    deferred = DeferredRows(2, 100)
    slots = torch.tensor([0, 1])
    for start in (0, 12):  # an interrupted request goes on from its start, or after cached blocks
        deferred.defer(slots, rows_of(range(10, 15), range(3, 5)))
        assert positions_of(deferred.take(slots, torch.tensor([start, 5]))) == [list(range(10, start)), [3, 4]]


def test_rows_before_a_skipped_cycle_are_read():
    deferred, slot = DeferredRows(1, 100), torch.tensor([0])
    deferred.defer(slot, rows_of(range(10, 12)))
    deferred.defer(slot, rows_of(range(13, 15)))
    assert positions_of(deferred.take(slot, torch.tensor([15]))) == [[10, 11, 13, 14]]


def test_rows_of_requests_that_end_are_dropped():
    deferred = DeferredRows(4, 100)
    deferred.defer(torch.tensor([0, 3]), rows_of(range(2), range(5)))
    deferred.forget(torch.tensor([3]))
    assert deferred.num_rows == 2
    deferred.forget(torch.tensor([0]))
    assert deferred.num_rows == 0 and deferred.take(torch.tensor([0]), torch.tensor([2])) is None


def test_no_more_rows_are_deferred_than_there_is_room_for():
    deferred = DeferredRows(1, 5)
    assert deferred.has_room(rows_of(range(5))) and not deferred.has_room(rows_of(range(6)))
    deferred.defer(torch.tensor([0]), rows_of(range(3)))
    assert deferred.has_room(rows_of(range(2))) and not deferred.has_room(rows_of(range(3)))


def test_deferred_rows_outlive_vllm_buffers():
    deferred, rows = DeferredRows(1, 5), rows_of(range(3))
    deferred.defer(torch.tensor([0]), rows)
    rows.positions.fill_(0)
    assert positions_of(deferred.take(torch.tensor([0]), torch.tensor([3]))) == [[0, 1, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_requests_read_every_row_once_in_order(seed: int):
    """Requests of random lengths come and go in batches; whenever one is read, no row is missing."""
    draw = torch.Generator().manual_seed(seed)
    deferred, read, reached = DeferredRows(4, 1000), [[] for _ in range(4)], [0] * 4
    for _ in range(60):
        size = int(torch.randint(1, 5, (1,), generator=draw))
        slots = torch.randperm(4, generator=draw)[:size]
        counts = torch.randint(1, 4, (size,), generator=draw).tolist()
        spans = [range(reached[slot], reached[slot] + n) for slot, n in zip(slots.tolist(), counts, strict=True)]
        if torch.rand(1, generator=draw) < 0.7:
            deferred.defer(slots, rows_of(*spans))
        else:
            if late := deferred.take(slots, torch.tensor([span.start for span in spans])):
                for slot, positions in zip(slots.tolist(), positions_of(late), strict=True):
                    read[slot] += positions
            for slot, span in zip(slots.tolist(), spans, strict=True):
                read[slot] += span
                assert read[slot] == list(range(span.stop))
        for slot, span in zip(slots.tolist(), spans, strict=True):
            reached[slot] = span.stop


def test_the_newest_rows_of_each_request():
    rows = rows_of(range(600), range(100, 103), range(50, 60))
    assert positions_of(rows.newest(4)) == [list(range(596, 600)), [100, 101, 102], [56, 57, 58, 59]]
