"""A node's switch for drills, over HTTP: what is on, turned on, or off with None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from fleetctl.kit.errors import FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.tls import NO_TLS

FAULT_TIMEOUT_S = 10.0


async def change_faults_at(name: str, url: str, token: str, faults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The node's faults that are on, after these were turned on, or off with None.

    Raises RefusedError where the node was started without them, FleetctlError when it refuses these, UnreachableError
    when it does not answer.
    """
    place, headers = f"{url}/admin/faults", {"Authorization": f"Bearer {token}"}
    try:
        async with httpx.AsyncClient(timeout=FAULT_TIMEOUT_S, trust_env=False, verify=NO_TLS, headers=headers) as http:
            answer = await (http.get(place) if faults is None else http.post(place, json=faults))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{name} does not take the fault: {type(error).__name__}") from error
    if answer.status_code == 404:
        raise RefusedError(
            f"{name} takes no faults: it was not started for drills", remedy="fleetctl up --enable-faults"
        )
    if answer.status_code != 200:
        raise FleetctlError(f"{name} refused the fault: {answer.status_code} {answer.text[:200]}")
    on: dict[str, Any] = answer.json()
    return on
