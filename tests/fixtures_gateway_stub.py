"""A gateway's status route over HTTP, for tests that decide which table it routes by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


class GatewayStub:
    def __init__(self) -> None:
        self.url = ""
        self.table_version = 0
        self.asked = 0

    async def status(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response({"table_version": self.table_version, "nodes": {}})


@asynccontextmanager
async def gateway_stub() -> AsyncIterator[GatewayStub]:
    gateway = GatewayStub()
    app = web.Application()
    app.router.add_get("/gateway/status", gateway.status)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    gateway.url = f"http://{host}:{port}"
    try:
        yield gateway
    finally:
        await runner.cleanup()
