"""A fleet beside any other, whose nodes take faults: what the demo and the first night break."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.tls import NO_TLS
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings, read_token
from fleetctl.stack import Stack

NODE_OPTIONS: Mapping[str, Any] = {"max_num_seqs": 16, "max_model_len": 4096, "num_kv_blocks": 1024, "num_threads": 1}
MANY = 100_000  # drills act more often than an operator may
FAULT_TIMEOUT_S = 10.0


def settings_for_drill_fleet(
    base: Settings, state_dir: Path, *, policy: str, nodes: int, node_options: Mapping[str, Any] = NODE_OPTIONS
) -> Settings:
    """A state folder of its own, free ports, and faults allowed. Raises BadInputError for what can't be set."""
    port = reserve_port()
    return with_flags(
        base,
        state_dir=state_dir,
        controller={"host": "127.0.0.1", "port": port, "url": f"http://127.0.0.1:{port}", "policy": policy},
        actions={"per_hour": {"per_node": MANY, "per_pool": MANY, "per_zone": MANY, "per_fleet": MANY}},
        gateway={"host": "127.0.0.1", "port": reserve_port()},
        fleet={"nodes": nodes, "enable_faults": True, "node_options": dict(node_options)},
    )


async def change_faults(stack: Stack, node: str, faults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The node's faults that are on, after these were turned on, or off with None.

    Raises FleetctlError when the node refuses, UnreachableError when it does not answer.
    """
    url = f"{stack.table.observe(node).url}/admin/faults"
    headers = {"Authorization": f"Bearer {read_token(stack.settings.node_token_file)}"}
    try:
        async with httpx.AsyncClient(timeout=FAULT_TIMEOUT_S, trust_env=False, verify=NO_TLS, headers=headers) as http:
            answer = await (http.get(url) if faults is None else http.post(url, json=faults))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{node} does not take the fault: {type(error).__name__}") from error
    if answer.status_code != 200:
        raise FleetctlError(f"{node} refused the fault: {answer.status_code} {answer.text[:200]}")
    on: dict[str, Any] = answer.json()
    return on
