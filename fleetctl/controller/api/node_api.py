"""Nodes and gateways over HTTP: lists, one in full, logs, groups, failures, and a stream of what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from fleetctl.controller.api.answer import answer, until_stopping
from fleetctl.controller.api.told_now import gateways_now, nodes_now
from fleetctl.controller.controller import Controller
from fleetctl.controller.event_feed import MEDIA_TYPE
from fleetctl.controller.http_edge import bool_param, float_param, int_param
from fleetctl.controller.http_pages import listed
from fleetctl.controller.nodes.abilities import abilities_of
from fleetctl.controller.nodes.node_feed import NodeFeed
from fleetctl.controller.nodes.node_logs import NodeLogs
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.providers.provider import ProviderAct, capacity_of
from fleetctl.wire.failure import FailuresBy
from fleetctl.wire.group import GroupBy
from fleetctl.wire.node import NodeAbility

DEFAULT_LOG_LINES = 50
MAX_LOG_LINES = 10_000
LOG_POLL_S = 0.5
LOOK_BACK_S = 30 * 86_400.0  # at failures, when nobody says how far


class NodeApi:
    """Routes of nodes, their groups and failures, and gateways."""

    def __init__(self, controller: Controller, stopping: asyncio.Event) -> None:
        self._c = controller
        self._stopping = stopping
        self._node_feed = NodeFeed(partial(nodes_now, controller), controller.clock)
        controller.timeline.listen(self._hear)

    def _hear(self, _kind: str, _at: float, node: str | None, _data: Mapping[str, Any]) -> None:
        if node is not None:
            self._node_feed.hurry()

    async def nodes(self, request: Request) -> Response:
        return listed(request, nodes_now(self._c))

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        (found,) = nodes_now(self._c, [name])
        told = abilities_of(self._c.fleet.nodes[name].row.spec, self._c.provider)
        abilities = [NodeAbility(ability=one.ability.value, can=one.can, how=one.how) for one in told]
        room = capacity_of(self._c.provider, self._c.fleet.nodes[name].row.spec)
        return answer(found.model_copy(update={"abilities": abilities, "more": room.more, "more_why": room.why}))

    async def node_requests(self, request: Request) -> Response:
        """What the node holds; why that is not known where it is not."""
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        return answer(await self._c.effects.engine.requests_view(name))

    async def node_kv(self, request: Request) -> Response:
        """What its KV cache is used for; why that is not known where it is not."""
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        return answer(await self._c.effects.engine.kv_blocks(name))

    async def node_stream(self, request: Request) -> Response:
        """Every node, then what changes; what changed since, where `Last-Event-ID` or `after` has an id of ours."""
        last = request.headers.get("Last-Event-ID", request.query_params.get("after", ""))
        told = self._node_feed.events(self._node_feed.version_of(last), partial(until_stopping, self._stopping))
        return StreamingResponse(told, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    async def node_logs(self, request: Request) -> Response:
        """Lines as plain text; with `follow`, those to come too, until the client or the controller ends it."""
        name = request.path_params["name"]
        row = await self._c.database.read(lambda c: get_node(c, name))
        if row is None:
            raise self._no_such_node(name)
        if why_not := self._c.provider.why_not(ProviderAct.LOGS, row.spec):
            raise RefusedError(f"{name}: {why_not}", remedy=f"fleetctl describe node {name}")
        lines = min(int_param(request, "lines", DEFAULT_LOG_LINES), MAX_LOG_LINES)
        logs = NodeLogs(self._c.provider, name)
        found = await logs.last_lines(lines)
        if not bool_param(request, "follow"):
            return PlainTextResponse(found)
        return StreamingResponse(self._followed(logs, found), media_type="text/plain")

    async def _followed(self, logs: NodeLogs, found: str) -> AsyncIterator[str]:
        yield found
        while not self._stopping.is_set():
            more = await logs.next_lines()
            if more:
                yield more
            else:
                await until_stopping(self._stopping, self._c.clock.sleep(LOG_POLL_S))

    async def groups(self, request: Request) -> Response:
        by = request.query_params.get("by", GroupBy.POOL)
        if by not in list(GroupBy):
            raise BadInputError(f"by: expected one of {', '.join(GroupBy)}, not {by[:40]!r}")
        return listed(request, self._c.groups.groups(GroupBy(by)))

    async def gpus(self, request: Request) -> Response:
        return listed(request, self._c.groups.gpus())

    async def failures(self, request: Request) -> Response:
        return listed(request, await self._c.failures.failures(self._failures_since(request)))

    async def failure_groups(self, request: Request) -> Response:
        by = request.query_params.get("by", FailuresBy.HOST)
        if by not in list(FailuresBy):
            raise BadInputError(f"by: expected one of {', '.join(FailuresBy)}, not {by[:40]!r}")
        return listed(request, await self._c.failures.groups(FailuresBy(by), self._failures_since(request)))

    async def gateways(self, request: Request) -> Response:
        return listed(request, gateways_now(self._c))

    async def gateway(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = next((gateway for gateway in gateways_now(self._c) if gateway.name == name), None)
        if found is None:
            known = ", ".join(gateway.name for gateway in gateways_now(self._c)) or "none"
            raise HTTPException(404, f"there is no gateway named {name[:100]}; gateways: {known}")
        return answer(found)

    async def tenants(self, request: Request) -> Response:
        """Use summed over the gateways that answer; none of them answering is no empty list."""
        return listed(request, await self._c.gateways.tenants())

    def _no_such_node(self, name: str) -> HTTPException:
        known = ", ".join(sorted(self._c.fleet.nodes)) or "none"
        return HTTPException(404, f"there is no node named {name[:100]}; nodes: {known}")

    def _failures_since(self, request: Request) -> float:
        since = float_param(request, "since")
        return self._c.clock.now() - LOOK_BACK_S if since is None else since
