"""Keeps the routing table current by long-polling the controller. Without a controller the last good table stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import structlog
from pydantic import ValidationError

from fleetctl.gateway.nodes.controller_urls import ControllerUrls
from fleetctl.gateway.nodes.table import FILE_NAME, Routing, Table, load_table, store_table
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.routing import RoutingTable

log = structlog.get_logger()

WAIT_S = 20.0
SHARED_WAIT_S, SHARED_MARGIN_S = 4.0, 2.0  # where another controller may lead
ANSWER_MARGIN_S = 10.0  # the controller answers within its wait; this long after it, it is gone
BACKOFF_FIRST_S = 0.2
BACKOFF_LAST_S = 5.0
NO_TABLE_PAUSE_S = 0.25
MAX_TABLE_BYTES = 16 * 1024 * 1024


class TableUnavailableError(Exception):
    """The controller gave no usable table."""


class TableSync:
    """The loop that owns `routing`. `on_table` is called with each new table.

    A table that can't be stored is in force all the same, and stored with the next answer: `on_not_stored` each time.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        routing: Routing,
        *,
        controller_url: str,
        controller_token: str | None,
        run_dir: Path,
        on_table: Callable[[Table], None],
        on_not_stored: Callable[[], None] = lambda: None,
        wait_s: float = WAIT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`controller_url`: one, or several with spaces between them, of controllers on one database."""
        self._session = session
        self._routing = routing
        self._urls = ControllerUrls(controller_url, "/v1/routing")
        self._headers = {"Authorization": f"Bearer {controller_token}"} if controller_token else {}
        self._path = run_dir / FILE_NAME
        self._on_table = on_table
        self._on_not_stored = on_not_stored
        self._is_stored = True
        # One of several that falls silent is replaced within seconds: it must not be waited for longer.
        self._wait_s = min(wait_s, SHARED_WAIT_S) if self._urls.are_several else wait_s
        self._now = now

    def load_last_good(self) -> None:
        """Start from the stored table, if there is a readable one."""
        try:
            stored = load_table(self._path)
        except BadInputError as error:
            log.warning("table.unreadable", error=error.message, remedy=error.remedy)
            return
        if stored is None:
            return
        table, stored_at = stored
        self._routing.replace(table, stored_at)
        self._on_table(table)
        log.info("table.loaded", version=table.version, nodes=len(table.endpoints))

    async def run_forever(self) -> None:
        """Poll until cancelled."""
        backoff_s = BACKOFF_FIRST_S
        is_first = True  # ask for whatever the controller has, even if its versions went back
        while True:
            try:
                table = await self._poll(is_first)
            except (aiohttp.ClientError, TimeoutError, OSError, TableUnavailableError, ValidationError) as error:
                if self._routing.controller_is_reachable or is_first:
                    log.warning("controller.lost", url=self._urls.current, error=_explain(error))
                self._urls.pass_on()
                self._routing.controller_is_reachable = False
                is_first = True
                await asyncio.sleep(backoff_s * random.uniform(0.7, 1.3))
                backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
                continue
            if not self._routing.controller_is_reachable:
                log.info("controller.reached", url=self._urls.current)
            self._routing.controller_is_reachable = True
            backoff_s = BACKOFF_FIRST_S
            if is_first and table is None:
                # It has no table at all, which says nothing of ours. Its first one may have a lower version than ours,
                # so go on asking for whatever it has.
                await asyncio.sleep(NO_TABLE_PAUSE_S)
                continue
            is_first = False
            await self._adopt(table)

    async def _poll(self, is_first: bool) -> Table | None:
        """The controller's table. None: ours still holds, or to the first question: it has none yet."""
        current = self._routing.table
        params = {} if is_first or current is None else {"after": str(current.version), "wait_s": f"{self._wait_s:g}"}
        margin_s = SHARED_MARGIN_S if self._urls.are_several else ANSWER_MARGIN_S
        timeout = aiohttp.ClientTimeout(total=self._wait_s + margin_s, sock_connect=2)
        async with self._session.get(
            self._urls.current, params=params, headers=self._headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status == 204:
                return None
            if response.status != 200:
                raise TableUnavailableError(f"the controller answered {response.status}")
            body = await response.content.read(MAX_TABLE_BYTES)
            if not response.content.at_eof():
                body += await _rest(response, MAX_TABLE_BYTES - len(body))
        table = Table.from_wire(RoutingTable.model_validate_json(body))
        if current is not None and table.state_id == current.state_id and table.epoch < current.epoch:
            raise TableUnavailableError(f"the controller of epoch {table.epoch} leads no more: {current.epoch} does")
        return table

    async def _adopt(self, table: Table | None) -> None:
        now = self._now()
        current = self._routing.table
        if table is None or table == current:
            if current is not None:
                self._routing.confirm(now)
                if not self._is_stored:
                    await self._store(current, now)
            return
        if table.rejected:
            log.warning("table.routes_rejected", nodes=list(table.rejected))
        if current is not None and table.version < current.version:
            log.warning("table.went_back", version=table.version, previous=current.version)
        self._routing.replace(table, now)
        self._on_table(table)
        states = {e.node: e.state.value for e in table.endpoints}
        log.info("table.replaced", version=table.version, nodes=states)
        await self._store(table, now)

    async def _store(self, table: Table, now: float) -> None:
        try:
            await asyncio.to_thread(store_table, self._path, table, now)
        except OSError as error:
            self._is_stored = False
            self._on_not_stored()
            log.error("table.not_stored", path=str(self._path), error=str(error))
        else:
            self._is_stored = True


async def _rest(response: aiohttp.ClientResponse, room: int) -> bytes:
    parts: list[bytes] = []
    while data := await response.content.readany():
        parts.append(data)
        room -= len(data)
        if room < 0:
            raise TableUnavailableError(f"the table is longer than {MAX_TABLE_BYTES} bytes")
    return b"".join(parts)


def _explain(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        return f"not a routing table: {error.error_count()} errors"
    return str(error) or type(error).__name__
