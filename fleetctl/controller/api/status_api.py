"""The controller itself over HTTP: whether it lives and leads, how its parts stand, its content, its series."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from alerts.promql import evaluate
from fleetctl.controller.api.answer import answer
from fleetctl.controller.api.told_now import alerts_now, gateways_now
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import note
from fleetctl.controller.incidents.views import freeze_view
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.version import software_version
from fleetctl.wire.gateway import GatewayPhase
from fleetctl.wire.node import NodePhase
from fleetctl.wire.status import Status

MAX_EXPRESSION_CHARS = 4000
MAX_SAMPLES = 10_000
MAX_POINTS = 1_000_000  # that one may read: a second of the loop on which everything else runs


class StatusApi:
    """Routes of the controller itself."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def leader(self, _: Request) -> Response:
        self._c.lease.require()
        return JSONResponse({"leader": True, "epoch": self._c.database.epoch})

    async def metrics(self, _: Request) -> Response:
        return Response(self._c.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(self, _: Request) -> Response:
        now = self._c.clock.now()
        link, sender = self._c.alertmanager, self._c.alert_sender
        wanted = [state for state in self._c.fleet.nodes.values() if state.row.wanted]
        gateways = gateways_now(self._c)
        return answer(
            Status(
                version=software_version(),
                started_at=self._c.started_at,
                epoch=self._c.database.epoch,
                policy=self._c.config.settings.controller.policy,
                now=now,
                nodes_ready=sum(state.phase is NodePhase.READY for state in wanted),
                nodes_total=len(wanted),
                firing=sum(str(alert.state) == "firing" for alert in alerts_now(self._c)),
                open_incidents=len(self._c.book.open_incidents()),
                gateways_ready=sum(gateway.phase is GatewayPhase.READY for gateway in gateways),
                gateways_total=len(gateways),
                gateways_down=[
                    f"{gateway.name}: {gateway.phase.value}" + (f", {gateway.reason}" if gateway.reason else "")
                    for gateway in gateways
                    if gateway.phase not in (GatewayPhase.READY, GatewayPhase.STARTING)
                ],
                gateways_impaired=[
                    f"{gateway.name}: {gateway.workers.problem}"
                    for gateway in gateways
                    if gateway.workers is not None and gateway.workers.problem
                ],
                loops=self._c.loops.ages(now),
                late_loops=sorted(self._c.loops.late(now)),
                storage_error=self._c.database.storage_error,
                leadership=self._c.leadership.state(),
                alertmanagers=sender.states() if sender is not None else [],
                silences=link.silences.state(),
                webhook=link.webhook.state,
                content=self._c.content.state(),
                traffic_rules=[rule for rule in self._c.routing.table.rules if rule.is_in_force(now)],
                discovery=self._c.found_fleet.state(),
                audit_error=check.why if (check := self._c.audit.last_check) is not None else "",
                breaker=self._c.remediation.breaker.words,
                freezes=[freeze_view(freeze) for freeze in self._c.freezes.in_force],
            )
        )

    async def content(self, _: Request) -> Response:
        return answer(self._c.content.listing())

    async def reload_content(self, request: Request) -> Response:
        note(request, target=", ".join(self._c.content.state().folders))
        await self._c.content.reload("asked for over HTTP")
        return answer(self._c.content.listing())

    async def query(self, request: Request) -> Response:
        expression = request.query_params.get("expr", "")
        if not expression or len(expression) > MAX_EXPRESSION_CHARS:
            raise BadInputError(f"expr: expected a PromQL expression of 1 to {MAX_EXPRESSION_CHARS} characters")
        now = self._c.clock.now()
        samples = evaluate(expression, self._c.store, now, points=MAX_POINTS)
        if len(samples) > MAX_SAMPLES:
            raise BadInputError(f"expr: gives {len(samples)} series, more than {MAX_SAMPLES}; narrow it down")
        return JSONResponse(
            {"at": now, "samples": [{"labels": one.labels, "value": _json_number(one.value)} for one in samples]}
        )


def _json_number(value: float) -> float | str:
    """JSON has no NaN or infinity: those are the strings Prometheus uses."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
