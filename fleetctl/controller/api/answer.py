"""What routes do beside their own work: answer with a model, ask who is claimed, wait without holding up an end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fleetctl.wire.identity import NO_CLAIM

T = TypeVar("T")


def answer(model: BaseModel, status: int = 200) -> Response:
    """The model as JSON."""
    return Response(model.model_dump_json(), status, media_type="application/json")


def claim_of(request: Request) -> str:
    """Who the caller says to be, of a change without a body."""
    return request.query_params.get("by", NO_CLAIM)


async def until_stopping(stopping: asyncio.Event, waiting: Coroutine[Any, Any, T]) -> T | None:
    """The result, or None when the controller stops first: no long poll may hold up its end."""
    task = asyncio.ensure_future(waiting)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stop.cancel()
