"""Request bodies within limits of size, time and kind, and who may use the guarded routes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from engine.api.errors import ApiError, from_validation
from engine.api.json_weight import BASE_WEIGHT, FREE_BYTES, weight
from engine.config import NodeConfig

B = TypeVar("B", bound=BaseModel)


async def parse_body(request: Request, schema: type[B], *, max_bytes: int | None = None) -> B:
    """The body as `schema`, in JSON's own types: "5" is no number. Raises ApiError 400, 408, 413, 415."""
    body = await read_body(request, max_bytes=max_bytes)
    await _check_weight(body, BASE_WEIGHT + request.app.state.model.max_sequence_tokens)
    return as_schema(body, schema)


def as_schema(body: bytes, schema: type[B]) -> B:
    """Raises ApiError 400."""
    try:
        return schema.model_validate_json(body, strict=True)
    except ValidationError as exc:
        raise from_validation(exc) from exc


async def _check_weight(body: bytes, limit: int) -> None:
    if len(body) > FREE_BYTES and await asyncio.to_thread(weight, body, limit) > limit:
        message = f"the body holds too many JSON values: at most {limit} numbers, or a tenth as many objects"
        raise ApiError(400, message, code="too_many_values")


def parse_query(request: Request, schema: type[B]) -> B:
    """The query's parameters as `schema`. Raises ApiError 400."""
    try:
        return schema.model_validate(dict(request.query_params))
    except ValidationError as exc:
        raise from_validation(exc) from exc


async def read_body(request: Request, *, max_bytes: int | None = None, extra_bytes: int = 0) -> bytes:
    """The whole body, up to the node's limit (and `extra_bytes`) and `max_bytes`.

    Raises ApiError: 413 as soon as it is known to be too large, 408 when it does not come, 415 for one that says it is
    no JSON.
    """
    _check_kind(request)
    config: NodeConfig = request.app.state.config
    limit = min(config.max_body_bytes + extra_bytes, max_bytes or config.max_body_bytes + extra_bytes)
    too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    stated = request.headers.get("Content-Length", "")
    if stated.isdecimal() and int(stated) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
    except TimeoutError as exc:
        message = f"the body did not arrive within {config.body_timeout_s:g} s"
        # What is still on its way must not be read as the next request.
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from exc
    except ClientDisconnect as exc:
        raise ApiError(400, "the client hung up before the body was whole", code="client_gone") from exc
    return b"".join(parts)


def _check_kind(request: Request) -> None:
    """A body without a type is taken for JSON. Any other type is refused: a web page may send a form or plain text to
    a node on its reader's machine without asking the browser, JSON it may not."""
    stated = request.headers.get("Content-Type")
    kind = (stated or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be JSON: send `Content-Type: application/json`", code="not_json")


def check_token(request: Request) -> None:
    """Raises ApiError unless the request carries the admin token."""
    token = request.app.state.config.admin_token
    if token is None:
        raise ApiError(401, "no admin token is set: start the node with --admin-token-file", code="no_admin_token")
    if not _carries(request, (token,)):
        raise ApiError(
            401,
            "this route needs `Authorization: Bearer <admin token>`",
            code="bad_admin_token",
            headers={"WWW-Authenticate": "Bearer"},
        )


def carries_token(request: Request) -> bool:
    """Whether the request may use the guarded routes."""
    token = request.app.state.config.admin_token
    return token is not None and _carries(request, (token,))


def check_api_key(request: Request) -> None:
    """Raises ApiError unless the request carries one of the clients' keys, or none are set."""
    keys = request.app.state.config.api_keys
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
