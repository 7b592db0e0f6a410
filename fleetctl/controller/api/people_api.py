"""People over HTTP: who asks and may, who is told or not, and what is on record of it."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from fleetctl.controller.access.gate import identity_of
from fleetctl.controller.api.answer import answer
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import float_param, note, read_body
from fleetctl.controller.http_pages import PageAsked, listed
from fleetctl.controller.receipts.receipts import MAX_RECEIPTS
from fleetctl.wire.identity import CallerInfo, TokenRequest
from fleetctl.wire.notification import ReceiverTest
from fleetctl.wire.silence import SilenceRequest

MAX_AUDIT_ROWS = 5000  # in one answer


class PeopleApi:
    """Routes of tokens, the audit, receipts, silences and notifications."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def identity(self, request: Request) -> Response:
        who = identity_of(request)
        return answer(CallerInfo(name=who.name, role=who.role, via=who.via))

    async def tokens(self, request: Request) -> Response:
        return listed(request, self._c.tokens.listing())

    async def create_token(self, request: Request) -> Response:
        body = await read_body(request, TokenRequest)
        who = note(request, target=body.name, why=body.role.value)
        return answer(await self._c.tokens.create(body, who), 201)

    async def revoke_token(self, request: Request) -> Response:
        name = request.path_params["name"]
        who = note(request, target=name)
        return answer(await self._c.tokens.revoke(name, who))

    async def audit(self, request: Request) -> Response:
        wanted, asked = request.query_params, PageAsked.of(request, (int,), default=200, most=MAX_AUDIT_ROWS)
        rows = await self._c.audit.read(
            since=float_param(request, "since"),
            who=wanted.get("who"),
            target=wanted.get("target"),
            limit=asked.limit + 1,
            before=asked.after,
        )
        return asked.page(rows, lambda row: (row.seq,), oldest_first=True)

    async def verify_audit(self, _: Request) -> Response:
        return answer(await self._c.audit.verify())

    async def receipts(self, request: Request) -> Response:
        asked = PageAsked.of(request, (str,), default=200, most=MAX_RECEIPTS)
        rows = await self._c.receipts.listing(asked.limit + 1, None if asked.after is None else str(asked.after[0]))
        return asked.page(rows, lambda row: (row.id,))

    async def receipt_key(self, _: Request) -> Response:
        return PlainTextResponse(self._c.receipts.public_key)

    async def receipt(self, request: Request) -> Response:
        """The document as it was signed: every field of it is under the signature."""
        found = await self._c.receipts.document(request.path_params["id"])
        if found is None:
            raise HTTPException(404, f"there is no receipt {request.path_params['id'][:100]}")
        return JSONResponse(found)

    async def silences(self, request: Request) -> Response:
        return listed(request, await self._c.alertmanager.silences.current())

    async def add_silence(self, request: Request) -> Response:
        body = await read_body(request, SilenceRequest)
        who = note(request, claim=body.created_by)
        silence = await self._c.alertmanager.silences.add(body.model_copy(update={"created_by": who}))
        note(request, claim=body.created_by, target=silence.id, why=body.comment)
        return answer(silence, 201)

    async def expire_silence(self, request: Request) -> Response:
        note(request, target=request.path_params["id"])
        return answer(await self._c.alertmanager.silences.expire(request.path_params["id"]))

    async def notifications(self, request: Request) -> Response:
        incident_id, asked = request.query_params.get("incident_id"), PageAsked.of(request, (str,), default=200)
        before = None if asked.after is None else str(asked.after[0])
        rows = await self._c.notifications.listing(incident_id, asked.limit + 1, before)
        return asked.page(rows, lambda row: (row.id,), oldest_first=True)

    async def notification(self, request: Request) -> Response:
        found = await self._c.notifications.one(request.path_params["id"])
        if found is None:
            raise HTTPException(404, f"there is no notification {request.path_params['id'][:100]}")
        return answer(found)

    async def receivers(self, request: Request) -> Response:
        return listed(request, self._c.notifications.receivers())

    async def test_receiver(self, request: Request) -> Response:
        body = await read_body(request, ReceiverTest)
        name = request.path_params["name"]
        who = note(request, claim=body.by, target=name)
        return answer(await self._c.notifications.test(name, who))

    async def webhook(self, request: Request) -> Response:
        return await self._c.alertmanager.webhook.receive(request)
