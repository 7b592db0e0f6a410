"""What is told of each node, and in which version each part of it last changed: what changed after any version.

Whoever is told keeps the number of the last version, and nothing is kept here for anybody: one who comes back after an
hour gets what differs, the newest only, however often it changed. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.told_node import Path, nested, values_of
from fleetctl.wire.node import Node, NodeChanges

AGES_TO_S = 6.0  # an age is told to that: it is told anew with each scrape, and else when it is off by more
MAX_GONE = 10_000  # names of nodes that are there no more: who knows of more begins anew


@dataclass(slots=True)
class _Told:
    born: int  # the version in which the node came
    newest: int  # and in which something of it last changed
    values: dict[Path, tuple[Any, int]]  # what is told, and since which version. None: it was, and is not known now


class NodeBoard:
    """Rows of nodes with the versions of their parts."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[str, _Told] = {}
        self._gone: dict[str, int] = {}  # name to the version in which the node went, the oldest first
        self._first_known = 0  # nothing is known of what went before this version
        self._is_other = False  # something changed in the look that goes on

    def look(self, nodes: Iterable[Node], now: float) -> None:
        """These are all nodes, as they were at `now`."""
        nodes = list(nodes)
        version = self.version + 1
        self.see(nodes, now, version)
        self.finish({node.name for node in nodes}, version)

    def see(self, nodes: Iterable[Node], now: float, version: int) -> None:
        """Some of the nodes of a look, which `finish` ends: of many, somebody else has a turn between."""
        for node in nodes:
            found = dict(values_of(node, now))
            told = self._rows.get(node.name)
            if told is None:
                self._gone.pop(node.name, None)
                values = {path: (value, version) for path, value in found.items()}
                self._rows[node.name] = _Told(version, version, values)
                self._is_other = True
            elif _note(told.values, found, version):
                told.newest = version
                self._is_other = True

    def finish(self, names: set[str], version: int) -> None:
        """These are the names of all nodes of the look. What changed has this version from now on."""
        for name in self._rows.keys() - names:
            del self._rows[name]
            self._gone[name] = version
            self._is_other = True
        while len(self._gone) > MAX_GONE:
            self._first_known = self._gone.pop(next(iter(self._gone)))
        if self._is_other:
            self.version, self._is_other = version, False

    def knows(self, version: int) -> bool:
        """Whether what changed after this version can be told."""
        return self._first_known <= version <= self.version

    def changed(self, since: int) -> list[str]:
        """Names of nodes that are not as they were in this version."""
        return [name for name, told in self._rows.items() if told.newest > since]

    def gone(self, since: int) -> list[str]:
        """Names of nodes that went after this version."""
        return [name for name, at in self._gone.items() if at > since]

    def tell(self, names: Sequence[str], since: int, now: float) -> NodeChanges:
        """What changed after this version of those nodes that are still there."""
        changes = NodeChanges(now=now)
        for name in names:
            told = self._rows.get(name)
            if told is None:
                continue
            is_new = told.born > since
            values = ((path, value) for path, (value, at) in told.values.items() if at > since)
            if is_new:
                changes.new[name] = nested((path, value) for path, value in values if value is not None)
            else:
                changes.changed[name] = nested(values)
        return changes


def _note(known: dict[Path, tuple[Any, int]], found: dict[Path, Any], version: int) -> bool:
    """What is found into what is known. Whether anything is worth telling."""
    changed = [path for path, value in found.items() if path[0] != "at" and known.get(path, _NEVER)[0] != value]
    lost = [path for path, (value, _) in known.items() if value is not None and path not in found]
    if not changed and not lost and not _is_age_off(known, found):
        return False
    for path in (*changed, *(path for path in _AT if path in found and known.get(path, _NEVER)[0] != found[path])):
        known[path] = (found[path], version)
    for path in lost:
        known[path] = (None, version)
    return True


def _is_age_off(known: dict[Path, tuple[Any, int]], found: dict[Path, Any]) -> bool:
    """Whether it was scraped, or an age that is told is off by more than it may be."""
    for path in _AT:
        new, (old, _) = found.get(path), known.get(path, _NEVER)
        if new != old and (path == _SCRAPED or new is None or old is None or abs(new - old) > AGES_TO_S):
            return True
    return False


_NEVER: tuple[Any, int] = (None, 0)
_SCRAPED = ("at", "scraped")
_AT = (_SCRAPED, ("at", "signals"), ("at", "probed"), ("at", "checked"))
