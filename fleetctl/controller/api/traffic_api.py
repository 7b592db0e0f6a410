"""What gateways are ordered over HTTP, and what people froze: the table, its signals, traffic rules, freezes."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from fleetctl.controller.api.answer import answer, claim_of, until_stopping
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import int_param, note, read_body, wait_param
from fleetctl.controller.http_pages import listed, page_of
from fleetctl.controller.incidents.views import freeze_view
from fleetctl.controller.signals.route_signals import route_signals
from fleetctl.kit.errors import BadInputError
from fleetctl.traffic_rule import TrafficRuleRequest
from fleetctl.wire.freeze import FreezeRequest


class TrafficApi:
    """Routes of the routing table, traffic rules and freezes."""

    def __init__(self, controller: Controller, stopping: asyncio.Event) -> None:
        self._c = controller
        self._stopping = stopping

    async def routing(self, request: Request) -> Response:
        wait_s = wait_param(request)
        after = int_param(request, "after") if "after" in request.query_params else None
        table = self._c.routing.table
        if after is not None:
            waited = await until_stopping(self._stopping, self._c.routing.wait(after, wait_s))
            if waited is None:
                return Response(status_code=204)
            table = waited
        if table.version == 0:
            return Response(status_code=204)  # nothing was routed yet: "no table" must not look like "no nodes"
        return answer(table)

    async def routing_signals(self, request: Request) -> Response:
        nodes = [route.node for route in self._c.routing.table.routes]
        return listed(request, route_signals(self._c.store, nodes, self._c.clock.now()))

    async def traffic_rules(self, request: Request) -> Response:
        return listed(request, await self._c.traffic_rules.current())

    async def make_traffic_rule(self, request: Request) -> Response:
        body = await read_body(request, TrafficRuleRequest)
        who = note(request, claim=body.made_by)
        rule, _ = await self._c.traffic_rules.make(body.model_copy(update={"made_by": who}))
        note(request, claim=body.made_by, target=f"route/{rule.id}", why=f"{rule.spec.words}: {rule.reason}")
        return answer(rule, 201)

    async def remove_traffic_rule(self, request: Request) -> Response:
        by = note(request, claim=claim_of(request), target=f"route/{request.path_params['id']}")
        return answer(await self._c.traffic_rules.remove(request.path_params["id"], by))

    async def freezes(self, request: Request) -> Response:
        return listed(request, [freeze_view(freeze) for freeze in self._c.freezes.in_force])

    async def make_freeze(self, request: Request) -> Response:
        body = await read_body(request, FreezeRequest)
        pools = {state.row.spec.pool for state in self._c.fleet.nodes.values()}
        if body.pool is not None and body.pool not in pools:
            raise BadInputError(f"there is no pool {body.pool}; pools: {', '.join(sorted(pools)) or 'none'}")
        target = "fleet" if body.pool is None else f"pool/{body.pool}"
        who = note(request, claim=body.made_by, target=target, why=body.reason)
        made = await self._c.freezes.make(body.model_copy(update={"made_by": who}))
        note(request, claim=body.made_by, target=target, why=f"{made.id}: {made.reason}")
        return answer(freeze_view(made), 201)

    async def end_freezes(self, request: Request) -> Response:
        by = note(request, claim=claim_of(request))
        ended = await self._c.freezes.end(request.path_params.get("id"), by)
        note(request, claim=claim_of(request), target=", ".join(freeze.id for freeze in ended))
        return page_of([freeze_view(freeze) for freeze in ended])
