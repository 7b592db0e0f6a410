"""What keeps the screen's data coming: a poller, and two followers that have what changed read at once. No Textual.

While events or nodes can't be followed, the poller reads all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import structlog

from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.told_node import KnownNodes
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.reader import SnapshotReader
from fleetctl.tui.snapshot import Part, Snapshot, Wanted
from fleetctl.wire.timeline import TimelineEntry

log = structlog.get_logger()

EVENTS_AT_START = 1000
EVENTS_GAP_S = 0.3  # a storm of events is read in parts


class Feed:
    """Three loops over one reader. Threading: belongs to one event loop."""

    def __init__(
        self, wanted: Callable[[], Wanted], now: Callable[[], float], every_s: float, *, is_past: bool = False
    ) -> None:
        """`wanted`: what the screen needs now. `every_s`: between two readings. `is_past`: of a recording, where each
        reading may be of another moment, and nothing of the one before is kept."""
        self._wanted = wanted
        self._now = now
        self._every_s = every_s
        self._is_past = is_past
        self._wake = asyncio.Event()
        self._is_waking = False
        self._reader: SnapshotReader | None = None

    def wake(self) -> None:
        """Read what is due, and what the screen has come to need, at once."""
        self._wake.set()

    def look_again(self) -> None:
        """Read everything at once."""
        if self._reader is not None:
            self._reader.forget()
        self._wake.set()

    def loops(
        self, controller: CockpitClient, told: Callable[[Snapshot], object]
    ) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Each loop with its name, to be run until the end; `told` gets each snapshot."""
        self._reader = reader = SnapshotReader(controller, self._now)
        yield "poller", self._poll(reader, told)
        yield "follower", self._follow_events(controller, reader)
        yield "nodes", self._follow_nodes(controller, reader)

    async def _poll(self, reader: SnapshotReader, told: Callable[[Snapshot], object]) -> None:
        while True:
            self._wake.clear()
            if self._is_past:
                reader.forget()
            told(await reader.read(self._wanted()))
            try:
                await asyncio.wait_for(self._wake.wait(), self._every_s)
            except TimeoutError:
                continue

    async def _follow_events(self, controller: CockpitClient, reader: SnapshotReader) -> None:
        after: int | None = None
        while True:
            try:
                if after is None:
                    after = self._heard(reader, await controller.newest_events(EVENTS_AT_START), 0)
                async for entry in controller.follow_events(after):
                    after = self._heard(reader, [entry], after)
            except FleetctlError as error:
                log.debug("events.unread", error=error.message)
            await asyncio.sleep(self._every_s)

    async def _follow_nodes(self, controller: CockpitClient, reader: SnapshotReader) -> None:
        """While a screen shows them."""
        known = KnownNodes()
        while True:
            if self._needs_nodes():
                try:
                    async with aclosing(controller.follow_nodes(known)) as told:
                        async for _ in told:
                            reader.heard_nodes(known)
                            self._wake_soon()
                            if not self._needs_nodes():
                                break
                except BadInputError:  # a recording, or an older controller: they tell lists alone
                    return
                except FleetctlError as error:
                    log.debug("nodes.unread", error=error.message)
                finally:
                    reader.lost_nodes()
            await asyncio.sleep(self._every_s)

    def _needs_nodes(self) -> bool:
        return Part.NODES in self._wanted().parts

    def _heard(self, reader: SnapshotReader, entries: Sequence[TimelineEntry], after: int) -> int:
        """The number of the last one."""
        if entries:
            reader.heard(entries)
            self._wake_soon()
        return max((entry.seq for entry in entries), default=after)

    def _wake_soon(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_later(EVENTS_GAP_S, self._wake_up)

    def _wake_up(self) -> None:
        self._is_waking = False
        self._wake.set()
