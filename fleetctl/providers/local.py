"""Nodes as processes of this machine: our engine, the embedded default behind `fleetctl up`, or any command.

The one place that knows our engine's command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fleetctl.kit.reserved_port import reserve_port
from fleetctl.providers.engine_settings import EngineSettings
from fleetctl.providers.process import ProcessTable, children_of
from fleetctl.providers.provider import LogChunk, NodeSetting, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec, OptionValue, words_from_options

COMMAND, ENVIRONMENT, API_KEY = "command", "env", "api_key"
"""Options of a node that is any command: its words, variables as `NAME=value`, and the name of the key it wants."""
NODE_KIND = "node"  # in the record of a process: controller and gateway are in the same table


class LocalProvider:
    """Implements `NodeProvider` over a table of processes. An instance's identity is that of its process record."""

    def __init__(self, root: Path, *, node_token_file: Path, engine_command: Sequence[str] | None = None) -> None:
        """`root` is the run folder of all processes; `engine_command` replaces `fleetctl-node` in tests."""
        self._table = ProcessTable(root)
        self._token_file = node_token_file
        self._cache = root.parent / "cache"
        self._command = tuple(engine_command or (sys.executable, "-m", "fleetctl.node"))
        self._engine_settings = EngineSettings(self._command)

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """Processes of this machine can be started and stopped, and their logs are here."""
        return "nobody places nodes on this machine but you" if act is ProviderAct.CORDON_HOST else ""

    def settings_of(self, spec: NodeSpec) -> Mapping[str, NodeSetting] | None:
        """As our engine says; a node that is any command has three."""
        if COMMAND in spec.options:
            return {name.replace("_", "-"): NodeSetting() for name in (COMMAND, ENVIRONMENT, API_KEY)}
        return self._engine_settings.known()

    def list_instances(self) -> Sequence[ObservedInstance]:
        """Every node process that runs under the root."""
        names = [name for name in self._table.running() if self._table.spec(name).get("kind") == NODE_KIND]
        return [found for name in names if (found := self.observe(name)).running]

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """The node's process as it is: its lock and record are all that is needed to look after it."""
        found = self.observe(spec.name)
        return found if found.running else None

    def ensure_started(self, spec: NodeSpec) -> None:
        """Start the node's process unless it runs."""
        if self._table.observe(spec.name).running:
            return
        port = reserve_port()
        url = f"http://127.0.0.1:{port}"
        facts = {"kind": NODE_KIND, "node": spec.to_json()}
        if COMMAND in spec.options:
            env = dict(word.split("=", 1) for word in _words(spec, ENVIRONMENT))
            self._table.start(spec.name, command_of(spec, port), url=url, env=env, facts=facts)
            return
        ours: dict[str, OptionValue] = {
            "host": "127.0.0.1",
            "port": port,
            "served_model_name": spec.model,
            "node_name": spec.name,
            "pool": spec.pool,
            "zone": spec.zone,
            "revision": spec.revision,
            "admin_token_file": str(self._token_file),
        }
        # One thread a node unless told otherwise: several nodes share this machine's cores, and OpenMP threads that
        # spin against each other make every step slower.
        env = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **self._cache_settings()}
        self._table.start(
            spec.name,
            [*self._command, "serve", *words_from_options({**ours, **spec.options})],
            url=url,
            env=env,
            facts=facts,
        )

    def _cache_settings(self) -> dict[str, str]:
        """Where compiled kernels are kept for a user without a home: else each start compiles for minutes."""
        if any(os.environ.get(name) for name in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME")):
            return {}
        with suppress(RuntimeError):  # a user that the system does not know has no home
            cache = Path.home() / ".cache"
            place = next(one for one in (cache, *cache.parents) if one.exists())
            if place.is_dir() and os.access(place, os.W_OK):
                return {}
        return {"CACHE_DIRECTORY": str(self._cache)}

    def stop(self, name: str, grace_s: float) -> None:
        """SIGTERM to the process group, SIGKILL after `grace_s`."""
        self._table.stop(name, grace_s)

    def forget(self, name: str) -> None:
        """Removes its run folder."""
        self._table.forget(name)

    def observe(self, name: str) -> ObservedInstance:
        """Whether the process runs is the kernel's answer, not a file's."""
        view = self._table.observe(name)
        has_ended = not view.running and view.started_at is not None
        comes_back = False if has_ended else None  # nobody starts it unasked
        return ObservedInstance(name, view.running, view.instance, view.url, view.exit_status, comes_back=comes_back)

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """From the file that the process's stdout and stderr go to."""
        return LogChunk(*self._table.read_log(name, lines, after))

    def process_ids(self, name: str) -> list[int]:
        """As the kernel tells of children: the node's own process first."""
        pid = self._table.observe(name).pid
        return [] if pid is None else [pid, *_descendants(pid)]


def command_of(spec: NodeSpec, port: int) -> list[str]:
    """The words of a node's own command, `{port}`, `{host}`, `{node}`, `{model}` and `{pool}` filled in."""
    values = {
        "{port}": str(port),
        "{host}": "127.0.0.1",
        "{node}": spec.name,
        "{model}": spec.model,
        "{pool}": spec.pool,
    }
    words = _words(spec, COMMAND)
    for place, value in values.items():
        words = [word.replace(place, value) for word in words]
    return words


def _words(spec: NodeSpec, key: str) -> list[str]:
    value = spec.options.get(key)
    return [str(word) for word in value] if isinstance(value, list) else [str(value)] if value else []


def _descendants(pid: int) -> list[int]:
    return [one for child in children_of(pid) for one in (child, *_descendants(child))]
