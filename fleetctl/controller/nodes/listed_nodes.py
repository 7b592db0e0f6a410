"""Nodes that others make and take away, as rows of the fleet: they come, change, go and are forgotten as a list says.

What discovery finds is such a list, the pods of a cluster are another. What both have in common is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import sqlalchemy as sa

from fleetctl.controller.nodes.engine_probes import told
from fleetctl.controller.nodes.node_row import NodeRow, delete_stopped, place_listed, remove_listed
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.discovery.probe import EngineFacts
from fleetctl.providers.found import SOURCE, URL
from fleetctl.providers.spec import NodeSpec

FORGET_AFTER_S = 600.0
"""A node that is gone is kept so long: names of pods never come back, and thousands a day would fill every list. Until
then its alerts are known to be of a node that was taken out, and it can be started again by its name."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list says now of the nodes of one provider."""

    provider: str
    specs: Mapping[str, NodeSpec]
    kept: Collection[str]  # nodes whose end, or whose return, is not this list's to say: they stay as they are


class ListWords(Protocol):
    """What the timeline says of them."""

    def found(self, spec: NodeSpec) -> str:
        """Where it was found."""

    def gone(self, row: NodeRow) -> str:
        """Why it is no node any more."""


class ListedNodes:
    """Compares what a list says with the fleet's rows, and stores what differs in one transaction."""

    def __init__(
        self,
        records: Records,
        routing: Routing,
        learn: Callable[[NodeSpec], object],
        forget: Callable[[str], None],
        forget_signals: Callable[[str], None],
    ) -> None:
        """`learn`, `forget`: its provider's, called in a thread, before a node is looked at and once it is gone."""
        self._database = records.database
        self._timeline = records.timeline
        self._routing = routing
        self._learn, self._forget = learn, forget
        self._forget_signals = forget_signals

    async def follow(self, listing: Listing, rows: Sequence[NodeRow], words: ListWords, now: float) -> None:
        """Bring the rows to what is listed. `rows`: of all nodes."""
        placed, gone, old = differences(listing, rows, now)
        if not (placed or gone or old):
            return
        await asyncio.to_thread(lambda: [self._learn(spec) for spec in placed])

        def change(connection: sa.Connection) -> None:
            for spec in placed:
                place_listed(connection, spec, now)
            for row in gone:
                remove_listed(connection, row.name, now)
            for name in old:
                delete_stopped(connection, name)

        if placed or gone:
            await self._routing.publish_change(change)
        else:
            await self._database.write(change)
        for row in gone:
            self._forget_signals(row.name)
        for name in old:
            await asyncio.to_thread(self._forget, name)
        self._tell(placed, gone, {row.name: row for row in rows}, words)

    def _tell(
        self, placed: Sequence[NodeSpec], gone: Sequence[NodeRow], rows: Mapping[str, NodeRow], words: ListWords
    ) -> None:
        for spec in placed:
            before = rows.get(spec.name)
            data = {"pool": spec.pool, "engine": spec.engine, "source": spec.facts.get(SOURCE, spec.provider)}
            if before is None or not before.wanted:
                text = f"{spec.name}: {words.found(spec)}"
                self._timeline.append_soon("node.found", text, node=spec.name, data=data)
            else:
                text = f"{spec.name}: {changed_words(before.spec, spec)}"
                self._timeline.append_soon("node.changed", text, node=spec.name, data=data)
        for row in gone:
            if row.wanted:  # else somebody stopped it, and said so
                self._timeline.append_soon("node.gone", f"{row.name}: {words.gone(row)}", node=row.name)


def differences(
    listing: Listing, rows: Sequence[NodeRow], now: float
) -> tuple[list[NodeSpec], list[NodeRow], list[str]]:
    """What to place, what is gone, and what has been gone for so long that it is forgotten."""
    own = {row.name: row for row in rows if row.spec.provider == listing.provider}
    others = {row.name for row in rows if row.spec.provider != listing.provider and row.wanted}
    placed = [
        known_as_before(spec, own.get(name))
        for name, spec in listing.specs.items()
        if name not in others and not _stands(own.get(name), spec, listing)
    ]
    missing = [row for name, row in own.items() if name not in listing.specs and name not in listing.kept]
    gone = [row for row in missing if row.wanted or row.started]
    old = [row.name for row in missing if not row.wanted and not row.started and now - row.updated_at > FORGET_AFTER_S]
    return placed, gone, old


def known_as_before(spec: NodeSpec, row: NodeRow | None) -> NodeSpec:
    """A node that did not say yet what it is, after our own restart, is what it was."""
    if row is None or row.spec.facts.get(URL) != spec.facts.get(URL):
        return spec
    before = row.spec
    return told(spec, EngineFacts(before.engine, before.facts.get("version", ""), before.model))


def changed_words(before: NodeSpec, after: NodeSpec) -> str:
    """What is another one now, for people."""
    words = [
        f"{key} {getattr(after, key) or '-'} (was {getattr(before, key) or '-'})"
        for key in ("pool", "model", "engine", "zone", "revision")
        if getattr(after, key) != getattr(before, key)
    ]
    words += [
        f"{key} {after.facts.get(key, '-')} (was {before.facts.get(key, '-')})"
        for key in sorted(after.facts.keys() | before.facts.keys())
        if after.facts.get(key) != before.facts.get(key)
    ]
    words += [
        f"{key} {after.options.get(key, '-')} (was {before.options.get(key, '-')})"
        for key in sorted(after.options.keys() | before.options.keys())
        if after.options.get(key) != before.options.get(key)
    ]
    return ", ".join(words)


def _stands(row: NodeRow | None, spec: NodeSpec, listing: Listing) -> bool:
    if row is not None and not row.wanted:
        return row.name in listing.kept
    return row is not None and row.spec == known_as_before(spec, row)
