"""Engine nodes as processes of this machine: the embedded default behind `fleetctl up`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from fleetctl.providers.process import ProcessTable, ProcessView
from fleetctl.providers.spec import NodeSpec


class LocalProvider:
    """Starts, finds and stops nodes. Every method is idempotent, quick and safe to call again after a crash."""

    def __init__(self, root: Path, *, node_token_file: Path, engine_command: Sequence[str] | None = None) -> None:
        """`root` is the run folder of all processes; `engine_command` replaces `fleetctl-node` in tests."""
        self._table = ProcessTable(root)
        self._token_file = node_token_file
        self._command = tuple(engine_command or (sys.executable, "-m", "fleetctl.node"))

    def ensure_started(self, spec: NodeSpec) -> None:
        """Start the node unless it runs."""
        if self._table.observe(spec.name).running:
            return
        port = free_port()
        argv = [
            *self._command, "serve",
            "--model", spec.model_dir,
            "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", spec.model,
            "--node-name", spec.name, "--pool", spec.pool, "--zone", spec.zone, "--revision", spec.revision,
            "--admin-token-file", str(self._token_file),
            *spec.extra_args,
        ]  # fmt: skip
        # One thread a node unless told otherwise: several nodes share this machine's cores, and OpenMP threads that
        # spin against each other make every step slower.
        env = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        self._table.start(
            spec.name,
            argv,
            url=f"http://127.0.0.1:{port}",
            env=env,
            facts={"kind": "node", "node": spec.to_json()},
        )

    def stop(self, name: str, grace_s: float) -> None:
        self._table.stop(name, grace_s)

    def observe(self, name: str) -> ProcessView:
        return self._table.observe(name)

    def log_tail(self, name: str, lines: int = 20) -> list[str]:
        return self._table.log_tail(name, lines)


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now. Another process may take it before we do: the start then says so."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
