"""Series by steps: what an expression gives at many moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alerts.arrays import Bools, Floats, Index
from alerts.errors import QueryError
from alerts.labels import LabelSet
from alerts.promql.values import SAME_LABELS, Vector
from alerts.series.label_column import LabelColumn


@dataclass(frozen=True, slots=True)
class Grid:
    """Shapes: `values` and `present` (series, steps). A value counts only where it is present."""

    labels: list[LabelSet]
    values: Floats
    present: Bools

    def at(self, step: int, at_ms: int) -> Vector:
        """The vector at one step."""
        index = np.flatnonzero(self.present[:, step])
        labels = LabelColumn([self.labels[i] for i in index.tolist()])
        return Vector(labels, self.values[index, step], np.full(len(index), at_ms))

    def renamed(self, values: Floats) -> Grid:
        """New values under labels without the metric's name. Raises QueryError when two series become one."""
        return merge_rows([labels.without_name() for labels in self.labels], values, self.present)

    def trimmed(self) -> Grid:
        """Without series that are never there."""
        keep = self.present.any(axis=1)
        return self if keep.all() else self.take(np.flatnonzero(keep))

    def take(self, index: Index | Sequence[int]) -> Grid:
        """Those series, in that order."""
        picked = np.asarray(index, dtype=np.intp)
        return Grid([self.labels[i] for i in picked], self.values[picked], self.present[picked])


def empty_grid(num_steps: int, labels: list[LabelSet] | None = None) -> Grid:
    """Series of which nothing is present yet."""
    rows = labels or []
    return Grid(rows, np.zeros((len(rows), num_steps)), np.zeros((len(rows), num_steps), dtype=np.bool_))


def concat_grids(parts: Sequence[Grid], num_steps: int) -> Grid:
    """All series of all parts. Raises QueryError when two of one label set are there at once."""
    kept = [part for part in parts if part.labels]
    if not kept:
        return empty_grid(num_steps)
    if len(kept) == 1:
        return merge_rows(kept[0].labels, kept[0].values, kept[0].present).trimmed()
    labels = [entry for part in kept for entry in part.labels]
    return merge_rows(
        labels, np.concatenate([part.values for part in kept]), np.concatenate([part.present for part in kept])
    ).trimmed()


def merge_rows(labels: list[LabelSet], values: Floats, present: Bools) -> Grid:
    """One row a label set: series that follow each other in time become one."""
    rows: dict[LabelSet, int] = {}
    for entry in labels:
        rows.setdefault(entry, len(rows))
    if len(rows) == len(labels):
        return Grid(labels, values, present)
    result = empty_grid(values.shape[1], list(rows))
    for index, entry in enumerate(labels):
        row = rows[entry]
        here = present[index]
        if (result.present[row] & here).any():
            raise QueryError(SAME_LABELS)
        result.values[row] = np.where(here, values[index], result.values[row])
        result.present[row] |= here
    return result
