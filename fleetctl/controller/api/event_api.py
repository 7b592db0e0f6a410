"""The timeline over HTTP: by page, by long poll, and as a stream."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fleetctl.controller.api.answer import until_stopping
from fleetctl.controller.controller import Controller
from fleetctl.controller.event_feed import MEDIA_TYPE, feed
from fleetctl.controller.http_edge import float_param, int_param, wait_param, whole_number
from fleetctl.controller.http_pages import MAX_PAGE, PageAsked
from fleetctl.wire.timeline import TimelineEntry


class EventApi:
    """Routes of events."""

    def __init__(self, controller: Controller, stopping: asyncio.Event) -> None:
        self._c = controller
        self._stopping = stopping

    async def events(self, request: Request) -> Response:
        after, newest = int_param(request, "after"), int_param(request, "newest")
        incident_id = request.query_params.get("incident_id")
        if newest:
            wanted = {name: request.query_params.get(name) for name in ("kind", "node", "run_id")}
            asked = PageAsked.of(request, (int,), default=MAX_PAGE, size="newest")
            rows = await self._c.timeline.read_newest(
                asked.limit + 1,
                incident_id=incident_id,
                since=float_param(request, "since"),
                before=asked.after,
                **wanted,
            )
            return asked.page(rows, lambda row: (row.seq,), oldest_first=True)
        asked = PageAsked.of(request, (int,), default=MAX_PAGE)
        after = after if asked.after is None else int(asked.after[0])
        waiting = self._c.timeline.wait(after, wait_param(request), incident_id, asked.limit + 1)
        return asked.page(await until_stopping(self._stopping, waiting) or [], lambda row: (row.seq,))

    async def event_stream(self, request: Request) -> Response:
        """Entries as they come: those after `Last-Event-ID` or `after` first; without either, new ones only."""
        last = request.headers.get("Last-Event-ID")
        if last is not None or "after" in request.query_params:
            after = int_param(request, "after") if last is None else whole_number("Last-Event-ID", last)
        else:
            newest = await self._c.timeline.read_newest(1)
            after = newest[-1].seq if newest else 0

        async def wait(seen: int, wait_s: float) -> list[TimelineEntry] | None:
            return await until_stopping(self._stopping, self._c.timeline.wait(seen, wait_s))

        return StreamingResponse(feed(wait, after), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})
