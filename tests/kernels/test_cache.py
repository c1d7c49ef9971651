"""The key-value cache: its memory, and what growth keeps."""

from __future__ import annotations

import contextlib
import gc
import threading

import numpy as np
import pytest
import torch

from drafterforge.kernels import cache as module
from drafterforge.kernels import native
from drafterforge.kernels.cache import BLOCK, KeyValueCache, SpareMemory

LIKE = torch.zeros(0, dtype=torch.float32)


def new_cache() -> KeyValueCache:
    return KeyValueCache(2, 0, 3, 4, torch.float32, "cpu")


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> SpareMemory:
    spare = SpareMemory()
    monkeypatch.setattr(module, "SPARE", spare)
    return spare


def test_memory_is_used_again_and_is_zero(spare: SpareMemory) -> None:
    first = module.zeros((1000, 10), LIKE)
    address = first.data_ptr()
    first += 7.0
    view = first[10:]
    del first
    gc.collect()
    assert not spare.buffers, "a view still reads it"
    assert view[0, 0] == 7.0
    del view
    gc.collect()
    second = module.zeros((900, 10), LIKE)
    assert second.data_ptr() == address
    assert second.abs().max() == 0.0
    third = module.zeros((900, 10), LIKE)
    assert third.data_ptr() != address


@pytest.mark.parametrize("fresh", [False, True])
def test_a_row_that_opens_beside_others_waits_for_no_memory_to_be_cleared(spare: SpareMemory, fresh: bool) -> None:
    cache = new_cache()
    spare.buffers = [np.full(200_000, 255, dtype=np.uint8)]
    cache.open_row(4, fresh)
    assert bool(spare.buffers) == fresh
    assert cache.data.abs().max() == 0.0


@pytest.mark.parametrize("size", [100, 5000])
def test_memory_of_another_size_is_not_used(spare: SpareMemory, size: int) -> None:
    spare.give(np.full(size, 255, dtype=np.uint8))
    memory = module.zeros((250,), LIKE)
    assert memory.abs().max() == 0.0
    assert [len(buffer) for buffer in spare.buffers] == [size]


def test_spare_memory_is_bounded(spare: SpareMemory) -> None:
    for size in (300, 100, 200, 400):
        spare.give(np.zeros(size, dtype=np.uint8))
    assert [len(buffer) for buffer in spare.buffers] == [400, 300]  # at most 800 in all


def test_no_spare_memory_stands_beside_large_caches(spare: SpareMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPARE_BYTES", 1000)
    for size in (600, 1001, 500, 300):
        spare.give(np.zeros(size, dtype=np.uint8))
    assert [len(buffer) for buffer in spare.buffers] == [600, 300]


def test_no_two_threads_get_the_same_memory(spare: SpareMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    spare.give(np.zeros(1000, dtype=np.uint8))
    barrier, memories = threading.Barrier(2), []

    class Held(list):
        """Spare buffers whose reader waits for the other thread, which can read them too only without a lock."""

        def __iter__(self):
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(0.2)
            return super().__iter__()

    spare.buffers = Held(spare.buffers)
    threads = [threading.Thread(target=lambda: memories.append(spare.take(900))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not np.shares_memory(*memories)


def test_growth_keeps_what_was_written() -> None:
    cache = new_cache()
    written = []
    for row in range(3):
        cache.open_row(5 + row)
        part = cache.rows(row, row + 1)
        part.set_slots(0, 5 + row)
        keys = torch.randn(2, 2, 3, 5 + row, 4)
        part.data[:, :, 0, :, : 5 + row] = keys
        written.append(keys)
        cache.admit_row(row)
    cache.set_slots(3 * BLOCK, 1)  # grows
    tail = torch.randn(2, 2, 3, 3, 4)
    cache.data[:, :, :, :, 3 * BLOCK] = tail
    cache.set_ragged_slots(torch.zeros(3, 1, dtype=torch.long), 6 * BLOCK)  # grows again
    for row, keys in enumerate(written):
        assert torch.equal(cache.data[:, :, row, :, : keys.shape[3]], keys)
    assert torch.equal(cache.data[:, :, :, :, 3 * BLOCK], tail)


def test_expected_rows_share_the_first_memory() -> None:
    cache = new_cache()
    cache.expect_rows(3)
    cache.open_row(5)
    address = cache.data.data_ptr()
    cache.open_row(5)
    cache.open_row(5)
    assert cache.data.data_ptr() == address
    cache.open_row(5)  # one more than expected
    assert cache.data.shape[2] == 4


def test_slots_move_as_if_gathered_first() -> None:
    cache = KeyValueCache(2, 3, 2, 4, torch.float32, "cpu")
    cache.set_slots(0, 9)
    cache.data.copy_(torch.randn_like(cache.data))
    before = cache.data.clone()
    rows, sources, destinations = [0, 0, 2, 2, 2], [5, 7, 2, 4, 6], [5, 6, 2, 3, 4]
    cache.move_rows(rows, sources, destinations)
    before[:, :, rows, :, destinations] = before[:, :, rows, :, sources]
    assert torch.equal(cache.data, before)


@pytest.mark.parametrize(("row", "source", "destination"), [(3, 0, 0), (-1, 0, 0), (0, 9999, 0), (0, 1, -1)])
def test_slots_outside_the_cache_are_not_moved(row, source, destination) -> None:
    if native.library() is None:
        pytest.skip("native.c is not compiled")
    cache = KeyValueCache(2, 3, 2, 4, torch.float32, "cpu")
    cache.set_slots(0, 9)
    cache.data.copy_(torch.randn_like(cache.data))
    before = cache.data.clone()
    with pytest.raises(IndexError, match="none of the cache's 3"):
        cache.move_rows([0, row], [5, source], [4, destination])
    assert torch.equal(cache.data, before)
