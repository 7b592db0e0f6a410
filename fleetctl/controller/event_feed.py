"""The timeline as server-sent events: one connection in place of asking again and again, and resumable by number.

Each entry is one event: its sequence number as `id`, its kind as `event`, the `TimelineEntry` as `data`. A client that
comes back with `Last-Event-ID` gets what it missed, in order, and nothing twice. A comment every 15 s says that the
line is alive: a client that heard nothing for longer has lost it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from fleetctl.wire.timeline import TimelineEntry

ALIVE_EVERY_S = 15.0
RETRY_MS = 2000
MEDIA_TYPE = "text/event-stream"

Waiting = Callable[[int, float], Awaitable[Sequence[TimelineEntry] | None]]
"""Entries after a number, waited for so many seconds; None: it ends."""


async def feed(wait: Waiting, after: int) -> AsyncIterator[str]:
    """From the entry after `after` on, until there is an end."""
    yield f"retry: {RETRY_MS}\n\n"
    while (entries := await wait(after, ALIVE_EVERY_S)) is not None:
        if not entries:
            yield ": alive\n\n"
        for entry in entries:
            after = entry.seq
            yield event_of(entry)


def event_of(entry: TimelineEntry) -> str:
    """One event. JSON has no line break in it, and a kind none either."""
    return f"id: {entry.seq}\nevent: {entry.kind}\ndata: {entry.model_dump_json()}\n\n"
