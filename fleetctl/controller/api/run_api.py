"""Pages and runs over HTTP: what there is, what is asked for, and who answered."""

from __future__ import annotations

import difflib
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fleetctl.controller.api.answer import answer
from fleetctl.controller.api.told_now import incident_stored, run_told
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import RunRefusedError, note, read_body
from fleetctl.controller.http_pages import MAX_PAGE, PageAsked, listed
from fleetctl.controller.incidents.new_node_names import given_names, new_nodes, with_new_nodes
from fleetctl.controller.incidents.views import run_view, runbook_view
from fleetctl.wire.run import ActionRequest, ApprovalRequest, CancelRequest, RunOrder, RunRequest
from fleetctl.wire.run import Run as WireRun
from fleetctl.wire.runbook import VerbInfo
from runbooks.executor import OrderKind
from runbooks.run import Run, RunStatus
from runbooks.verbs import VERBS


class RunApi:
    """Routes of runbooks, verbs and runs."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def runbooks(self, request: Request) -> Response:
        return listed(request, [runbook_view(page, with_page=False) for page in self._c.content.pages.values()])

    async def runbook(self, request: Request) -> Response:
        name = request.path_params["name"]
        page = self._c.content.pages.get(name)
        if page is None:
            known = sorted(self._c.content.pages)
            near = difflib.get_close_matches(name, known, n=1)
            told = f"did you mean {near[0]}?" if near else f"runbooks: {', '.join(known)}"
            raise HTTPException(404, f"there is no runbook named {name}; {told}")
        return answer(runbook_view(page, with_page=True))

    async def verbs(self, request: Request) -> Response:
        return listed(request, [VerbInfo.model_validate(verb.to_dict()) for verb in VERBS.values()])

    async def runs(self, request: Request) -> Response:
        incident_id = request.query_params.get("incident_id")
        asked = PageAsked.of(request, (float, str), default=MAX_PAGE)
        found = await self._c.database.call(
            lambda: self._c.journal.list(incident_id=incident_id, limit=asked.limit + 1, before=asked.after)
        )
        return asked.page([await run_told(self._c, run) for run in found], lambda row: (row.created_at, row.id))

    async def run(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        return answer(await run_told(self._c, await self._c.database.call(lambda: self._c.journal.get(run_id))))

    async def start_run(self, request: Request) -> Response:
        body = await read_body(request, RunRequest)
        who = note(request, claim=body.requested_by, target=body.runbook, why=body.reason)
        if body.incident_id is not None:
            await incident_stored(self._c, body.incident_id)  # 404 where there is none
        inputs = await self._with_new_nodes(body)
        run = await self._c.executor.propose(
            body.runbook,
            inputs,
            reason=body.reason,
            incident_id=body.incident_id,
            requested_by=who,
            idempotency_key=body.idempotency_key,
            approve=body.approve,
            override=body.override,
            dry_run=body.dry_run,
        )
        return answer(await self._new_run_view(_unless_refused(run)), 201)

    async def act(self, request: Request) -> Response:
        body = await read_body(request, ActionRequest)
        who = note(request, claim=body.requested_by, target=body.command, why=body.reason)
        run = await self._c.executor.act(
            body.command,
            reason=body.reason,
            requested_by=who,
            idempotency_key=body.idempotency_key,
            override=body.override,
            dry_run=body.dry_run,
        )
        return answer(await self._new_run_view(_unless_refused(run)), 201)

    async def decide(self, request: Request) -> Response:
        body = await read_body(request, ApprovalRequest)
        run_id = request.path_params["id"]
        why = f"{body.decision}: {body.comment}" if body.comment else body.decision
        who = note(request, claim=body.by, target=run_id, why=why)
        run = await self._c.executor.decide(run_id, body.decision, who, body.comment, body.override)
        return answer(run_view(_unless_refused(run)))

    async def cancel(self, request: Request) -> Response:
        body = await read_body(request, CancelRequest)
        who = note(request, claim=body.by, target=request.path_params["id"])
        return answer(run_view(await self._c.executor.cancel(request.path_params["id"], who)))

    async def order_run(self, request: Request) -> Response:
        body = await read_body(request, RunOrder)
        run_id, what = request.path_params["id"], request.url.path.rpartition("/")[2]
        who = note(request, claim=body.by, target=run_id, why=body.comment)
        run = await self._c.executor.order(run_id, cast(OrderKind, what), who, body.comment)
        return answer(run_view(run))

    async def _with_new_nodes(self, body: RunRequest) -> dict[str, str]:
        """The inputs with names for new nodes: fresh ones, or those of the same request before."""
        page = self._c.content.pages.get(body.runbook)
        if page is None:
            return body.inputs
        key = body.idempotency_key
        known = await self._c.database.call(lambda: self._c.journal.find(key)) if key else None
        if known is not None and known.runbook == body.runbook:
            return {**new_nodes(page, known.inputs), **body.inputs}
        nodes = await self._c.lookup.nodes()
        return with_new_nodes(page, body.inputs, {node.name for node in nodes}, given_names(nodes))

    async def _new_run_view(self, run: Run) -> WireRun:
        """A run that was just asked for. Only a dry run waits for what is predicted of it."""
        if not run.dry_run:
            self._c.forecasts.note_started(run)
            return run_view(run, prediction=self._c.forecasts.known_words(run.id))
        return run_view(run, prediction=await self._c.forecasts.words_of(run))


def _unless_refused(run: Run) -> Run:
    if run.status is RunStatus.REFUSED and not run.dry_run:
        raise RunRefusedError(run.error or "a guard refused it", remedy=f"fleetctl describe run {run.id}")
    return run
