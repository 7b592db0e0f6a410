"""Reads what the controller's scraper saw of nodes, every few seconds. Without it nothing is known, and all goes on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import aiohttp
import structlog
from pydantic import TypeAdapter, ValidationError

from fleetctl.gateway.nodes.controller_urls import ControllerUrls
from fleetctl.gateway.nodes.node_views import NodeViews
from fleetctl.wire.routing import RouteSignals

log = structlog.get_logger()

EVERY_S = 5.0
LIMIT_S = 5.0
_SIGNALS = TypeAdapter(list[RouteSignals])


class SignalsSync:
    """The loop that owns the views. `on_change` is called after each reading."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        views: NodeViews,
        *,
        controller_url: str,
        controller_token: str | None,
        on_change: Callable[[], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._session = session
        self._views = views
        self._urls = ControllerUrls(controller_url, "/v1/routing/signals")
        self._headers = {"Authorization": f"Bearer {controller_token}"} if controller_token else {}
        self._on_change = on_change
        self._every_s = every_s

    async def run_forever(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self.read_once()
            except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
                log.debug("signals.not_read", url=self._urls.current, error=type(error).__name__)
                self._urls.pass_on()  # of several controllers another one may lead
            await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))

    async def read_once(self) -> None:
        """One reading. Raises what reading raises."""
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        async with self._session.get(
            self._urls.current, headers=self._headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                self._urls.pass_on()
                return  # a standby, or an older controller that has none
            signals = _SIGNALS.validate_json(await response.read())
        self._views.replace_all(signals, time.monotonic())
        self._on_change()
