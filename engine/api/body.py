"""Request bodies up to a limit, and who may use the guarded routes."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request

from engine.api.errors import ApiError
from engine.node import Node


async def read_body(request: Request) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be too large."""
    node: Node = request.app.state.node
    limit = node.config.max_body_bytes
    too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    stated = request.headers.get("Content-Length", "")
    if stated.isdigit() and int(stated) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large
            parts.append(part)
    except ClientDisconnect as exc:
        raise ApiError(400, "the client hung up before the body was whole", code="client_gone") from exc
    return b"".join(parts)


def check_token(request: Request) -> None:
    """Raises ApiError unless the request carries the admin token."""
    node: Node = request.app.state.node
    token = node.config.admin_token
    if token is None:
        raise ApiError(401, "no admin token is set: start the node with --admin-token-file", code="no_admin_token")
    if not _carries(request, (token,)):
        raise ApiError(
            401,
            "this route needs `Authorization: Bearer <admin token>`",
            code="bad_admin_token",
            headers={"WWW-Authenticate": "Bearer"},
        )


def check_api_key(request: Request) -> None:
    """Raises ApiError unless the request carries one of the clients' keys, or none are set."""
    node: Node = request.app.state.node
    keys = node.config.api_keys
    if keys and not _carries(request, keys):
        raise ApiError(
            401,
            "Incorrect API key provided: this node needs `Authorization: Bearer <api key>`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _carries(request: Request, secrets: Sequence[str]) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # All are compared, each in constant time: how long it takes tells nothing of them.
    matches = [hmac.compare_digest(given.strip().encode(), secret.encode()) for secret in secrets]
    return scheme.lower() == "bearer" and any(matches)
