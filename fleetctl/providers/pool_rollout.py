"""A pool whose nodes somebody else exchanges: which revisions are kept, how far it is, what can be ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

RolloutWord = Literal["done", "promoting", "paused", "failed"]


@dataclass(frozen=True, slots=True)
class KeptRevision:
    """One template that the workload had. `id` is the revision of its nodes; `number` grows."""

    id: str
    number: int
    images: tuple[str, ...]
    created_at: float
    is_current: bool


@dataclass(frozen=True, slots=True)
class PoolRollout:
    """How the exchange of a pool's nodes stands."""

    pool: str
    workload: str  # as deployment/engine; several with commas between
    revisions: Sequence[KeptRevision] = ()  # oldest first
    state: RolloutWord = "done"
    why: str = ""  # in the workload's own words
    size: int = 0
    new: int = 0  # nodes of the current revision
    new_ready: int = 0
    cannot: Mapping[str, str] = field(default_factory=dict)  # by the word of an order, with the reason

    @property
    def current(self) -> KeptRevision | None:
        """What its new nodes get; None: it is not known."""
        return next((one for one in self.revisions if one.is_current), None)

    @property
    def earlier(self) -> KeptRevision | None:
        """The newest but the current; None: none is kept."""
        return next((one for one in reversed(self.revisions) if not one.is_current), None)


class RollsPools(Protocol):
    """A provider whose workloads exchange nodes. Every order is idempotent. Raises FleetctlError.

    Threading: synchronous, called from worker threads.
    """

    def pool_rollouts(self) -> Mapping[str, PoolRollout]:
        """By pool; looking costs no request."""

    def roll_to(self, pool: str, revision: str) -> None:
        """Give the workload the template of a revision that it keeps."""

    def roll_image(self, pool: str, image: str) -> None:
        """Give the workload its own template with another image of the container that serves."""

    def hold_rollout(self, pool: str, *, held: bool) -> None:
        """Let the workload exchange no more nodes, or go on."""
