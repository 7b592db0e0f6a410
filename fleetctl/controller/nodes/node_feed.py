"""The nodes as server-sent events: all of them first, then what changes, resumable by what was told last.

An id names the life of this feed and a version of its board: an id of another controller, or of this one before it was
started anew, means nothing here, and all nodes come again. Only the last event of what belongs together has an id:
who is cut off in the middle is not told that it knows the whole.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fleetctl.controller.event_feed import ALIVE_EVERY_S, RETRY_MS
from fleetctl.controller.nodes.node_board import NodeBoard
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.node import Node

LOOK_EVERY_S = 1.0
LOOKS_SHARE = 0.05  # of a core: of very many nodes looks are rarer, while nothing happens to them
PART_ROWS = 100  # of one event, and of a look before somebody else has a turn
_ID = re.compile(r"([0-9a-f]{16})-(\d{1,18})")


class Held(Protocol):
    """Waits for what is given; None when the controller ends first."""

    async def __call__(self, waiting: Coroutine[Any, Any, News], /) -> News | None: ...


@dataclass(frozen=True, slots=True)
class News:
    """What there is to tell of, between two versions; no names and nothing gone: nothing happened."""

    since: int
    upto: int
    is_whole: bool = False
    names: Sequence[str] = ()
    gone: Sequence[str] = ()


class NodeFeed:
    """One board for everybody who follows. It is looked at the nodes only while somebody does.

    Threading: belongs to one event loop.
    """

    def __init__(self, look: Callable[[], Sequence[Node]], clock: Clock) -> None:
        """`look`: all nodes as they are now."""
        self._look = look
        self._clock = clock
        self._board = NodeBoard()
        self._life = secrets.token_hex(8)
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._pause_s = LOOK_EVERY_S
        self._is_hurried = False

    def hurry(self) -> None:
        """Something happened to a node: the next look is soon, however long looks take."""
        self._is_hurried = True

    def version_of(self, last_id: str) -> int | None:
        """The version that an id names; None where all nodes have to be told. Raises BadInputError for no id of a
        feed."""
        if not last_id:
            return None
        found = _ID.fullmatch(last_id)
        if found is None:
            raise BadInputError(
                f"Last-Event-ID or after: expected the id of an event of this stream, not {last_id[:40]!r}"
            )
        return int(found[2]) if found[1] == self._life else None

    async def events(self, since: int | None, held: Held) -> AsyncIterator[str]:
        """What changed after a version, then what changes, until there is an end. Who reads slowly gets the newest
        only: nothing is kept for anybody but the names of nodes that are being told."""
        yield f"retry: {RETRY_MS}\n\n"
        while (news := await held(self._news(since))) is not None:
            if not (news.is_whole or news.names or news.gone):
                yield ": alive\n\n"
                continue
            for at in range(0, max(1, len(news.names)), PART_ROWS):
                is_last = at + PART_ROWS >= len(news.names)
                told = self._board.tell(news.names[at : at + PART_ROWS], news.since, self._clock.now())
                if at == 0:
                    told = told.model_copy(update={"whole": news.is_whole, "gone": list(news.gone)})
                mark = f"id: {self._life}-{news.upto}\n" if is_last else ""
                yield f"{mark}event: nodes\ndata: {told.model_dump_json(exclude_defaults=True)}\n\n"
            since = news.upto

    async def _news(self, since: int | None) -> News:
        """What there is to tell, waited for no longer than a line may be silent."""
        board, until = self._board, self._clock.now() + ALIVE_EVERY_S
        while True:
            await self._look_if_due()
            if since is None or not board.knows(since):
                return News(0, board.version, is_whole=True, names=board.changed(0))
            if board.version > since:
                return News(since, board.version, names=board.changed(since), gone=board.gone(since))
            now = self._clock.now()
            if now >= until:
                return News(since, since)
            next_at = max(now, self._looked_at) + LOOK_EVERY_S  # whether it is hurried by then
            await self._clock.sleep(min(next_at, until) - now)

    async def _look_if_due(self) -> None:
        async with self._looking:
            now = self._clock.now()
            if now < self._looked_at + (LOOK_EVERY_S if self._is_hurried else self._pause_s):
                return
            self._looked_at, self._is_hurried = now, False
            begun_s = time.thread_time()
            nodes, version = self._look(), self._board.version + 1
            took_s = time.thread_time() - begun_s
            for at in range(0, len(nodes), PART_ROWS):
                begun_s = time.thread_time()
                self._board.see(nodes[at : at + PART_ROWS], now, version)
                took_s += time.thread_time() - begun_s
                await asyncio.sleep(0)
            self._board.finish({node.name for node in nodes}, version)
            self._pause_s = max(LOOK_EVERY_S, took_s / LOOKS_SHARE)
