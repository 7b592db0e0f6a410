"""One question to a process that is not the controller, a gateway or a node, and its answer as JSON."""

from __future__ import annotations

from typing import Any

import httpx

from fleetctl.kit.errors import FleetctlError, UnreachableError


def ask_json(url: str, body: dict[str, Any] | None = None, *, limit_s: float = 30.0) -> dict[str, Any]:
    """What a GET, or a POST of `body`, answers. Raises UnreachableError; FleetctlError for another status than 200."""
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, url, json=body, timeout=limit_s, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{url}: {str(error) or type(error).__name__}", remedy="fleetctl status") from error
    try:
        value = answer.json()
    except ValueError as error:
        raise UnreachableError(f"{url}: answered {answer.status_code} without JSON") from error
    if answer.status_code != 200:
        said = value.get("error") if isinstance(value, dict) else None
        message = said.get("message") if isinstance(said, dict) else None
        raise FleetctlError(f"{url}: answered {answer.status_code}" + (f": {message}" if message else ""))
    if not isinstance(value, dict):
        raise UnreachableError(f"{url}: answered JSON that is no object")
    return value
