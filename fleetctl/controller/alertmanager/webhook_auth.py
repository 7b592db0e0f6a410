"""Who may send alerts: a bearer token or a user with a password, of the webhook's own or the controller's token."""

from __future__ import annotations

import base64
import binascii
import hmac
from http import HTTPStatus

import structlog
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from fleetctl.kit.errors import BadInputError
from fleetctl.settings.remote import Credentials
from fleetctl.wire.base import Problem

log = structlog.get_logger()


class WebhookAuth:
    """Who may notify: whoever has the webhook's own credentials, else the controller's token."""

    def __init__(self, credentials: Credentials, controller_token: str) -> None:
        self._credentials = credentials
        self._controller_token = controller_token

    def refusal(self, scope: Scope) -> Response | None:
        """None when the sender may, else the answer that says why not."""
        header = next((bytes(value) for name, value in scope["headers"] if name == b"authorization"), b"")
        try:
            if self._accepts(header):
                return None
        except BadInputError as error:
            # Ours to mend, so it is worth a retry.
            log.error("webhook.credentials_unreadable", error=error.message)
            problem = Problem(error="the webhook's credentials can't be read; the controller's log says why")
            return JSONResponse(problem.model_dump(), HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "30"})
        problem = Problem(
            error="wrong credentials" if header else "credentials are needed to send alerts",
            remedy="set http_config.authorization (bearer) or http_config.basic_auth in Alertmanager's webhook_config",
            exit_code=2,
        )
        scheme = 'Basic realm="fleetctl"' if self._credentials.username is not None else "Bearer"
        log.warning("webhook.refused", why=problem.error, sender=(scope.get("client") or ("unknown",))[0])
        return JSONResponse(problem.model_dump(), HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": scheme})

    def _accepts(self, header: bytes) -> bool:
        scheme, _, given = header.partition(b" ")
        scheme, given = scheme.lower(), given.strip()
        if not self._credentials.is_set:
            return scheme == b"bearer" and _same(given, self._controller_token)
        if (token := self._credentials.token()) is not None:
            return scheme == b"bearer" and bool(token) and _same(given, token)
        basic = self._credentials.basic()
        if scheme != b"basic" or basic is None or not basic[1]:
            return False
        try:
            sent = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            return False
        return _same(sent, f"{basic[0]}:{basic[1]}")


def _same(given: bytes, wanted: str) -> bool:
    return hmac.compare_digest(given, wanted.encode())
