"""Where in their buckets lengths lie, told from the sums of intervals."""

from __future__ import annotations

import numpy as np
import pytest

from fleetctl.controller.autoscaler.bucket_means import fit_bucket_means

BOUNDS = (100.0, 200.0, 2000.0, 5000.0, float("inf"))


def intervals(lengths: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Bucket counts and sums of each interval's lengths."""
    edges = [0.0, *BOUNDS]
    counts = [
        [sum(low < one <= high for one in row) for low, high in zip(edges, BOUNDS, strict=False)] for row in lengths
    ]
    return np.array(counts, dtype=float), np.array([sum(row) for row in lengths])


def test_two_kinds_of_prompts_are_found_where_they_are_not_somewhere_in_their_buckets() -> None:
    counts, sums = intervals([[190.0] * (5 + at % 4) + [4900.0] * (at % 3) for at in range(40)])
    found = fit_bucket_means(BOUNDS, counts, sums)
    assert found is not None
    assert found.means[1] == pytest.approx(190, abs=10)
    assert found.means[3] == pytest.approx(4900, rel=0.02)
    assert found.spread < 0.2


def test_lengths_all_over_their_bucket_keep_its_middle_and_its_width() -> None:
    rng = np.random.default_rng(4)
    counts, sums = intervals([list(rng.uniform(2000, 5000, size=3)) for _ in range(200)])
    found = fit_bucket_means(BOUNDS, counts, sums)
    assert found is not None
    assert found.means[3] == pytest.approx(3500, rel=0.05)
    assert found.spread == pytest.approx(1.0, abs=0.15)


def test_one_interval_tells_little_and_no_mean_leaves_its_bucket() -> None:
    counts, sums = intervals([[150.0, 4900.0, 9000.0]])
    found = fit_bucket_means(BOUNDS, counts, sums * 3)
    assert found is not None
    assert all(
        low <= mean <= high for low, mean, high in zip((0.0, *BOUNDS), found.means, (*BOUNDS[:-1], 1e5), strict=False)
    )
    assert fit_bucket_means(BOUNDS, np.zeros((3, 5)), np.zeros(3)) is None
