"""A fleet beside any other, whose nodes take faults: what the demo and the first night break."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetctl.kit.errors import UnreachableError
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.node_faults import change_faults_at
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings, read_token
from fleetctl.stack import Stack

NODE_OPTIONS: Mapping[str, Any] = {"max_num_seqs": 16, "max_model_len": 4096, "num_kv_blocks": 1024, "num_threads": 1}
MANY = 100_000  # drills act more often than an operator may


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
    """As `change_faults_at`, of a node of this machine."""
    token = read_token(stack.settings.node_token_file) or ""
    url = stack.table.observe(node).url
    if url is None:
        raise UnreachableError(f"{node} does not take the fault: nobody knows where it answers")
    return await change_faults_at(node, url, token, faults)
