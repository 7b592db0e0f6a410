from __future__ import annotations

import math

import numpy as np
import pytest

from alerts.sample import MISSING, STALE_NAN
from alerts.series.chunk import PackedChunk, merge_chunks

EDGES = [0.0, -0.0, 1.0, 127.0, 128.0, -128.0, 32767.0, 32768.0, 2.0**52, 2.0**53, 1e308, 0.1, 0.5, 5e-324]
MARKS = [STALE_NAN, MISSING, math.nan, math.inf, -math.inf]


def rows(dice: np.random.Generator, num_rows: int, num_times: int) -> np.ndarray:
    """Counters with steps around the borders of one and two bytes, gauges, constants, and marks in some."""
    kinds = {
        0: lambda: np.cumsum(dice.integers(0, dice.choice([2, 127, 128, 129, 300, 32767, 32769, 70000]), num_times)),
        1: lambda: dice.random(num_times),
        2: lambda: dice.random(num_times).astype(np.float32),
        3: lambda: np.full(num_times, dice.choice(EDGES + MARKS)),
        4: lambda: dice.choice(EDGES, num_times),
        5: lambda: np.cumsum(dice.integers(-128, 129, num_times)) + 2.0**51,
    }
    values = np.array([kinds[int(dice.integers(len(kinds)))]() for _ in range(num_rows)], dtype=np.float64)
    marked = dice.random(values.shape) < dice.choice([0.0, 0.0, 0.1])
    values[marked] = dice.choice(EDGES + MARKS, int(marked.sum()))
    return values


def bits(values: np.ndarray) -> list[list[int]]:
    return np.ascontiguousarray(values).view(np.int64).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_every_value_reads_back_bit_by_bit(seed: int) -> None:
    dice = np.random.default_rng(seed)
    num_rows, num_times = int(dice.integers(1, 40)), int(dice.integers(1, 40))
    values = rows(dice, num_rows, num_times)
    times = np.arange(num_times) * 1000
    chunk = PackedChunk(np.arange(num_rows), times, values)
    assert bits(chunk.read(np.arange(num_rows), 0, num_times)) == bits(values)
    picked = dice.permutation(num_rows)[:5]
    assert bits(chunk.read(picked, num_times // 2, num_times)) == bits(values[picked, num_times // 2 :])


@pytest.mark.parametrize("seed", range(10))
def test_merged_chunks_hold_the_series_of_both(seed: int) -> None:
    dice = np.random.default_rng(seed)
    first_ids, second_ids = np.array([0, 2, 3, 9]), np.array([2, 3, 4])
    first, second = rows(dice, 4, 7), rows(dice, 3, 9)
    whole = merge_chunks(PackedChunk(first_ids, np.arange(7), first), PackedChunk(second_ids, np.arange(7, 16), second))
    assert whole.refs.tolist() == [0, 2, 3, 4, 9]
    wanted = np.full((5, 16), MISSING)
    wanted[[0, 1, 2, 4], :7] = first
    wanted[[1, 2, 3], 7:] = second
    assert bits(whole.read(np.arange(5), 0, 16)) == bits(wanted)


def test_counters_take_about_a_byte_a_point_and_constants_next_to_nothing() -> None:
    counters = np.cumsum(np.random.default_rng(1).integers(0, 100, (100, 128)), axis=1).astype(np.float64)
    times = np.arange(128)
    assert PackedChunk(np.arange(100), times, counters).num_bytes < 100 * 128 * 1.2
    assert PackedChunk(np.arange(100), times, np.full((100, 128), 3.5)).num_bytes < 100 * 10 + times.nbytes
