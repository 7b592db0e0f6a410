"""One node's part of a stream, passed on as it comes: without a turn of the event loop between node and client."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleetctl.gateway.http.event_stream import EventStreamReader
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.requests.fates import ProxiedRequest
from fleetctl.gateway.requests.place import Placed
from fleetctl.gateway.requests.text_account import TextAccount


class StreamPart:
    """Whole events go on to the client. `begin` is called before the first one of this node."""

    __slots__ = ("_begin", "_exchange", "_load", "_meter", "_reader", "_text", "_wait")

    def __init__(
        self,
        exchange: Exchange,
        proxied: ProxiedRequest,
        where: Placed,
        reader: EventStreamReader,
        text: TextAccount | None,
        begin: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._meter = proxied.meter
        self._load = where.load
        self._wait = where.wait
        self._reader = reader
        self._text = text
        self._begin = begin

    def pass_on(self, data: bytes) -> bool:
        """Bytes of the node; False when no more shall come for now: it was a hand-off, or the client reads slowly.

        Raises TimeoutError once the wait was ended, before the client gets what another node will be asked for again,
        and EventTooLongError.
        """
        wait, text, reader = self._wait, self._text, self._reader
        if wait.end is not None:
            raise TimeoutError
        wait.note_heard(time.monotonic())
        forward = reader.feed(data)
        if text is not None:
            forward = text.follow(forward)
        has_room = True
        if forward:
            if not wait.has_forwarded:
                wait.has_forwarded = True
                self._load.end_prefill()
                self._begin()
            self._meter.note_stream(forward)
            has_room = self._exchange.send(forward)
            if text is not None:
                wait.is_movable = text.can_continue
        return has_room and reader.handoff is None
