"""The deadline that a caller gives by header."""

from __future__ import annotations

import math

from starlette.requests import Request

from engine.api.errors import ApiError
from engine.api.schema import MAX_DEADLINE_S

DEADLINE_HEADER = "X-Fleet-Deadline-S"


def deadline_of(request: Request) -> float | None:
    """Seconds that the client gives us by header. Raises ApiError."""
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return None
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = math.nan
    if not 0 < deadline_s <= MAX_DEADLINE_S:
        message = f"{DEADLINE_HEADER}: must be seconds, above 0 and at most {MAX_DEADLINE_S}"
        raise ApiError(400, message, param=DEADLINE_HEADER, code="invalid_value")
    return deadline_s
