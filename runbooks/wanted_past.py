"""How many nodes were wanted in the last hour: what a floor is a share of, so that it does not sink with each stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from runbooks.ports import WantedChange

WINDOW_S = 3600.0
SUSTAINED_S = 600.0
"""A size counts once it held for so long: while a node is replaced, both are wanted for a few minutes."""


@dataclass(frozen=True, slots=True)
class WantedPast:
    """The changes of what was wanted, in any order. Empty: the past is not known."""

    changes: tuple[WantedChange, ...] = ()

    def peak(self, belongs: Callable[[WantedChange], bool], *, without: Collection[str] = ()) -> int:
        """The largest number of nodes that were wanted for `SUSTAINED_S` without a break, within the last `WINDOW_S`.

        Of those that `belongs` accepts, `without` these names. What was first known counts as if it had always been
        so. 0 where nothing is known.
        """
        levels = _levels(change for change in self.changes if belongs(change) and change.name not in without)
        return max((count for _, count in levels if _was_sustained(levels, count)), default=0)


def _levels(changes: Iterable[WantedChange]) -> list[tuple[float, int]]:
    """Since when (seconds ago) how many were wanted, oldest first. Changes of one moment are one."""
    steps: list[tuple[float, int]] = []
    wanted: set[str] = set()
    for age_s, group in groupby(sorted(changes, key=lambda one: -one.age_s), key=lambda one: one.age_s):
        for change in group:
            (wanted.add if change.wanted else wanted.discard)(change.name)
        steps.append((age_s, len(wanted)))
    return steps


def _was_sustained(levels: list[tuple[float, int]], count: int) -> bool:
    """Whether at least `count` were wanted for long enough, in a span that reaches into the window."""
    since_s: float | None = None
    ends = [*(age_s for age_s, _ in levels[1:]), 0.0]
    for index, ((begin_s, num), end_s) in enumerate(zip(levels, ends, strict=True)):
        if num < count:
            since_s = None
            continue
        if since_s is None:
            since_s = begin_s if index else math.inf
        if since_s - end_s >= SUSTAINED_S and end_s < WINDOW_S:
            return True
    return False
