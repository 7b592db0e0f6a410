"""When a failure begins and ends, and how long each node was watched: told from one look after the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fleetctl.wire.failure import FailureKind

END_AFTER_S = 60.0  # a sign that comes and goes is one failure
EPISODE_GAP_S = 300.0  # what follows so soon on one node is of one cause: a card's XID, then the crash
MAX_GAP_S = 120.0  # a longer time without a look was not watched
MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node is and what it runs. Empty: not known."""

    node: str
    host: str = ""
    sku: str = ""
    zone: str = ""
    pool: str = ""
    model: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """One failure of one node. Failures of one episode count once."""

    id: str
    episode: str
    kind: FailureKind
    at: float
    place: Placement
    reason: str = ""
    instance: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Stint:
    """A time in which a node was watched at one place."""

    id: str
    place: Placement
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One node at one look: where it is, and what is wrong with it."""

    place: Placement
    signs: Mapping[FailureKind, str] = field(default_factory=dict)
    instance: str = ""
    is_at_risk: bool = True  # it runs, or should begin to: its time counts


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be stored after a look; by id, when a failure or a stint ended."""

    begun: tuple[FailureRecord, ...] = ()
    ended: Mapping[str, float] = field(default_factory=dict)
    stints_begun: tuple[Stint, ...] = ()
    stints_ended: Mapping[str, float] = field(default_factory=dict)


class FailureWatch:
    """The failures that stand, and the stints that go on."""

    def __init__(self, new_id: Callable[[], str], standing: Iterable[FailureRecord] = (), now: float = 0.0) -> None:
        """`standing`: failures that were stored and have not ended, from before a restart of the controller."""
        self._new_id = new_id
        self._standing = {(one.place.node, one.kind): one for one in standing}
        self._seen_at = dict.fromkeys(self._standing, now)
        self._episodes: dict[str, tuple[str, float]] = {}  # node: its last episode, and when it was last seen
        for one in self._standing.values():
            self._episodes[one.place.node] = one.episode, now
        self._stints: dict[str, Stint] = {}
        self._looked_at: float | None = None
        self._before = now  # the look before this one

    @property
    def stints(self) -> Mapping[str, Stint]:
        """Those that go on, by node."""
        return self._stints

    def look(self, nodes: Iterable[Seen], now: float, unknown: Collection[str] = ()) -> Changes:
        """One look at all nodes; what it changes. `unknown`: nobody could look at these. Their failures stand as they
        are, their time does not count."""
        if self._looked_at is not None and not 0 <= now - self._looked_at <= MAX_GAP_S:
            self._stints.clear()  # their end is the last look, as it is stored
        self._before = now if self._looked_at is None else self._looked_at
        self._looked_at = now
        seen = {one.place.node: one for one in nodes}
        begun = [record for one in seen.values() for record in self._begun(one, now)]
        ended = dict(self._ended(seen, unknown, now))
        before = dict(self._stints)
        stints_begun = tuple(self._watched(seen, now))
        going_on = {one.id for one in self._stints.values()}
        stints_ended = {one.id: one.until for one in before.values() if one.id not in going_on}
        return Changes(tuple(begun), ended, stints_begun, stints_ended)

    def _begun(self, node: Seen, now: float) -> Iterable[FailureRecord]:
        name = node.place.node
        for kind, reason in node.signs.items():
            self._seen_at[name, kind] = now
            episode, last_at = self._episodes.get(name, ("", 0.0))
            is_new = (name, kind) not in self._standing
            if is_new:
                own = self._new_id()
                episode = episode if episode and now - last_at <= EPISODE_GAP_S else own
                record = FailureRecord(own, episode, kind, now, node.place, reason[:MAX_REASON_CHARS], node.instance)
                self._standing[name, kind] = record
            self._episodes[name] = episode, now
            if is_new:
                yield record

    def _ended(self, seen: Mapping[str, Seen], unknown: Collection[str], now: float) -> Iterable[tuple[str, float]]:
        for key, record in list(self._standing.items()):
            name, _ = key
            if name in unknown:
                self._seen_at[key] += now - self._before
                continue
            last_at = self._seen_at[key]
            if name not in seen or now - last_at > END_AFTER_S:
                del self._standing[key], self._seen_at[key]
                yield record.id, last_at

    def _watched(self, seen: Mapping[str, Seen], now: float) -> Iterable[Stint]:
        for name in self._stints.keys() - {name for name, one in seen.items() if one.is_at_risk}:
            del self._stints[name]
        for name, one in seen.items():
            if not one.is_at_risk:
                continue
            known = self._stints.get(name)
            if known is not None and known.place == one.place:
                self._stints[name] = replace(known, until=now)
                continue
            self._stints[name] = stint = Stint(self._new_id(), one.place, now, now)
            yield stint
