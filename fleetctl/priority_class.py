"""Priority classes of tenants: who waits and who is turned away when the fleet can't serve all."""

from __future__ import annotations

from enum import StrEnum


class PriorityClass(StrEnum):
    """How much a tenant's requests matter; members in order of importance."""

    CRITICAL = "critical"  # served first, shed last
    STANDARD = "standard"  # what a tenant is when nothing is said
    BATCH = "batch"  # can wait: served last, shed first

    @property
    def rank(self) -> int:
        """0 for the most important."""
        return _RANKS[self.value]

    @property
    def lower_classes(self) -> tuple[PriorityClass, ...]:
        """The classes that matter less."""
        return tuple(PriorityClass)[self.rank + 1 :]


_RANKS = {one.value: rank for rank, one in enumerate(PriorityClass)}
