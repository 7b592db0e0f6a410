"""Every error answer."""

from __future__ import annotations

from fleetctl.wire.base import Wire


class Problem(Wire):
    """Every error answer of the controller."""

    error: str
    remedy: str | None = None
    exit_code: int = 1
