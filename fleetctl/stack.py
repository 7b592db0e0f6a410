"""A whole fleet on this machine: controller, gateway and nodes, started together and stopped without leftovers.

`up` starts what is missing and waits until every part is ready, not merely started; what it started itself it stops
again when it fails or is interrupted. The controller starts the nodes: it owns which should exist.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from fleetctl.client import ControllerClient
from fleetctl.gateway.workers.launch import end_leftovers
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.kit.tls import client_tls
from fleetctl.kit.whole_file import write_whole
from fleetctl.node import INSTALL_ENGINE, missing_library
from fleetctl.providers.found import FOUND
from fleetctl.providers.process import ProcessTable, environment_without_settings, exclusive
from fleetctl.settings.tree import Settings, read_token
from fleetctl.wire.node import Node, NodePhase

Tell = Callable[[str], None]

POLL_S = 0.15
EFFECTIVE = "effective.json"  # the settings of what `up` started, under the state folder
# Stopped in this order: nobody must replace or reroute while the rest goes down.
STOP_FIRST = ("controller", "gateway")
GRACE_S = {"controller": 10.0, "gateway": 5.0}
NODE_GRACE_S = 5.0
UNWELL_AFTER_S = 15.0  # a new controller has looked at each node by then
PUBLISHED_MODELS = ("smollm2",)  # that the engine fetches by name


@dataclass(frozen=True, slots=True)
class StackView:
    """Where the parts are, once they are ready."""

    controller_url: str
    gateway_url: str
    nodes: tuple[Node, ...]
    started: tuple[str, ...]  # what this call started; empty when all ran already


class Stack:
    """The processes under one state folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.table = ProcessTable(settings.run_dir)

    async def up(self, tell: Tell) -> StackView:
        """Start what does not run and wait until all is ready.

        Raises BadInputError (port in use, no such model, unusable folder) before anything is started, FleetctlError
        when a part dies on the way, UnreachableError when it is not ready in time.
        """
        settings = self.settings
        os.umask(0o077)  # logs, records and state are the owner's alone, also those of the processes that are started
        busy = f"{settings.state_dir}: another `fleetctl up` is at work here"
        with exclusive(settings.state_dir / "up.lock", busy):
            missing = [name for name in STOP_FIRST if not self.table.observe(name).running]
            self._check_ports(missing)
            before = set(self.table.running())
            make_tokens(settings)
            try:
                return await self._start(missing, before, tell)
            except BaseException:
                await asyncio.shield(asyncio.to_thread(self._stop_all_but, before))
                raise

    def down(self, tell: Tell) -> list[str]:
        """Stop everything that runs under this state folder. Returns what was stopped."""
        stopped = []
        for name in self._stop_order():
            tell(f"stopping {name}")
            self.table.stop(name, GRACE_S.get(name, NODE_GRACE_S))
            stopped.append(name)
        end_leftovers(self.settings.run_dir / "gateway")
        return stopped

    async def _start(self, missing: Sequence[str], before: set[str], tell: Tell) -> StackView:
        settings = self.settings
        config = settings.state_dir / EFFECTIVE
        write_whole(config, json.dumps(settings.revealed(), indent=1))
        env = environment_without_settings()
        flags = ["--config", str(config)]
        commands = {
            "controller": [sys.executable, "-m", "fleetctl.controller", "--start-nodes", *flags],
            "gateway": [sys.executable, "-m", "fleetctl.cli", *flags, "gateway", "run"],
        }
        addresses = {"controller": settings.controller.base_url, "gateway": settings.gateway.base_url}
        for name in STOP_FIRST:
            if name in missing:
                tell(f"starting {name} at {addresses[name]}")
                self.table.start(name, commands[name], url=addresses[name], env=env)
        controller_url = self.table.spec("controller").get("url", addresses["controller"])
        gateway_url = self.table.spec("gateway").get("url", addresses["gateway"])
        deadline = time.monotonic() + settings.fleet.ready_timeout_s
        async with ControllerClient(controller_url, settings.controller_token()) as client:
            nodes = await self._wait_for_nodes(client, before, deadline, tell)
            await self._wait_for_gateway(gateway_url, client, deadline, tell)
        started = tuple(name for name in self.table.running() if name not in before)
        return StackView(controller_url, gateway_url, tuple(nodes), started)

    async def _wait_for_nodes(
        self, client: ControllerClient, before: Collection[str], deadline: float, tell: Tell
    ) -> list[Node]:
        told: dict[str, str] = {}
        nodes: list[Node] = []
        answered_at: float | None = None
        while time.monotonic() < deadline:
            self._raise_if_dead("controller")
            try:
                state = (await client.status()).discovery
                nodes = [node for node in await client.nodes() if node.phase is not NodePhase.STOPPED]
                answered_at = answered_at or time.monotonic()
                num_found = sum(node.provider == FOUND for node in nodes)
                is_found = state is None or (state.looked and num_found >= state.found)
            except UnreachableError:
                nodes, is_found = [], False
            for node in nodes:
                silent = node.phase is NodePhase.STARTING and node.reason.startswith("no answer")
                news = node.phase.value + (f" ({node.reason})" if node.reason and not silent else "")
                if told.get(node.name) != news:
                    told[node.name] = news
                    tell(f"{node.name}: {news}")
                if node.phase is NodePhase.STARTING and not self.table.observe(node.name).running:
                    self._raise_if_failed(node.name)
            is_whole = is_found and (nodes or not self.settings.fleet.nodes)
            looked_s = time.monotonic() - answered_at if answered_at is not None else 0.0
            if is_whole and not waited_for(nodes, before, looked_s):
                for node in waited_for(nodes, before):
                    tell(f"{node.name}: it ran before and is unwell, not waited for: fleetctl diagnose {node.name}")
                return nodes
            await asyncio.sleep(POLL_S)
        waiting = ", ".join(f"{n.name} is {n.phase.value}" for n in nodes if n.phase is not NodePhase.READY)
        raise UnreachableError(
            f"the fleet was not ready within {self.settings.fleet.ready_timeout_s:g}s: {waiting or 'no answer'}",
            remedy="fleetctl logs NAME",
        )

    async def _wait_for_gateway(self, url: str, client: ControllerClient, deadline: float, tell: Tell) -> None:
        """Until it routes to every node that is ready. Asked anew each time: a run under way may be stopping some."""
        async with httpx.AsyncClient(base_url=url, timeout=2.0, verify=client_tls()) as http:
            while time.monotonic() < deadline:
                self._raise_if_dead("gateway")
                try:
                    routed = set((await http.get("/gateway/status")).json().get("nodes", {}))
                    ready = {node.name for node in await client.nodes() if node.phase is NodePhase.READY}
                except (httpx.HTTPError, UnreachableError, ValueError):
                    routed, ready = set(), {""}
                if ready <= routed:
                    tell(f"gateway: ready, routes to {len(routed)} nodes")
                    return
                await asyncio.sleep(POLL_S)
        raise UnreachableError(f"gateway at {url} was not ready in time", remedy="fleetctl logs gateway")

    def _raise_if_dead(self, name: str) -> None:
        if not self.table.observe(name).running:
            raise FleetctlError(
                f"{name} ended while starting: {self._last_words(name)}", remedy=f"fleetctl logs {name}"
            )

    def _raise_if_failed(self, name: str) -> None:
        """A node that wrote something and is gone has failed; one without a record was not started yet."""
        if self.table.spec(name) and self.table.log_tail(name, 1):
            raise FleetctlError(
                f"{name} ended while starting: {self._last_words(name)}", remedy=f"fleetctl logs {name}"
            )

    def _last_words(self, name: str) -> str:
        tail = self.table.log_tail(name, 30)
        errors = [line for line in tail if line.lower().startswith("error")]
        return (errors or tail or ["it wrote nothing"])[-1][:500]

    def _stop_all_but(self, keep: set[str]) -> None:
        """Stop what an unfinished `up` started."""
        for name in self._stop_order():
            if name not in keep:
                self.table.stop(name, 2.0)

    def _stop_order(self) -> Iterator[str]:
        """What runs, the controller first. The nodes are looked up once it is gone: until then it may start one."""
        yield from (name for name in STOP_FIRST if self.table.observe(name).running)
        yield from self.table.running()

    def _check_ports(self, names: Sequence[str]) -> None:
        settings = self.settings
        wanted = {
            "controller": (settings.controller.host, settings.controller.port),
            "gateway": (settings.gateway.host, settings.gateway.port),
        }
        for name in names:
            host, port = wanted[name]
            if _in_use(host, port):
                raise BadInputError(
                    f"{name}: {host}:{port} is in use by another program",
                    remedy=f"fleetctl up --{name}-port {port + 1}, or stop what listens there",
                )


def keep_gateway_settings(settings: Settings) -> Callable[[], None]:
    """Have the gateway that `up` started find these settings of its own at its next start or reload, but at its old
    address. What is returned puts those before them back: a start must not fail by what a reload could not use.

    Raises BadInputError when what `up` wrote can't be read.
    """
    config = settings.state_dir / EFFECTIVE
    try:
        before = config.read_text()
        tree = json.loads(before)
        address = {key: tree["gateway"][key] for key in ("host", "port")}
    except FileNotFoundError:
        return lambda: None  # nothing was started by `up`
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{config}: can't be read: {reason}", remedy="fleetctl up") from error
    write_whole(config, json.dumps({**tree, "gateway": settings.revealed()["gateway"] | address}, indent=1))
    return lambda: write_whole(config, before)


def prepare_model(settings: Settings, tell: Tell) -> Path:
    """The fleet's model directory: the one configured, or a small one made once under the state folder.

    Raises BadInputError when it is missing, broken, or the engine is not installed.
    """
    if (missing := missing_library()) is not None:
        raise BadInputError(f"the engine is not installed here: {missing} is missing", remedy=INSTALL_ENGINE)
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"{settings.state_dir}: {error.strerror or error}",
            remedy="fleetctl --state-dir FOLDER up, with a folder that this user can write",
        ) from error
    engine = [sys.executable, "-m", "fleetctl.node"]
    directory = settings.fleet.model_dir
    if directory is None and settings.fleet.model in PUBLISHED_MODELS:
        return _fetched_model(engine, settings.fleet.model)
    if directory is None and (meant := difflib.get_close_matches(settings.fleet.model, PUBLISHED_MODELS, n=1)):
        # Else a small model of random weights would be served under a name that looks like a published one's.
        raise BadInputError(
            f"there is no model {settings.fleet.model!r} to fetch", remedy=f"fleetctl up --model {meant[0]}"
        )
    if directory is None:
        directory = settings.state_dir / "models" / "demo"
        tell(f"model: {directory}")
        made = subprocess.run([*engine, "make-model", str(directory)], check=False, stdout=sys.stderr)
        if made.returncode in (130, -signal.SIGINT):
            raise KeyboardInterrupt
        if made.returncode != 0:
            raise FleetctlError(f"{directory}: the small model could not be made (see above)")
        return directory
    if not directory.exists():
        raise BadInputError(
            f"{directory}: no such model directory or GGUF file", remedy=f"fleetctl-node make-model {directory}"
        )
    checked = subprocess.run([*engine, "check", str(directory)], check=False, capture_output=True, text=True)
    if checked.returncode != 0:
        words = (checked.stderr.strip() or checked.stdout.strip()).splitlines()
        raise BadInputError(words[0].removeprefix("error: ") if words else f"{directory}: not a usable model")
    return directory


def _fetched_model(engine: list[str], name: str) -> Path:
    """A published model's directory; its bar and what goes wrong are the engine's, on stderr."""
    fetched = subprocess.run([*engine, "get-model", name], check=False, stdout=subprocess.PIPE, text=True)
    if fetched.returncode in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if fetched.returncode != 0:
        raise FleetctlError(f"{name}: the model could not be fetched (see above)")
    return Path(fetched.stdout.strip())


def make_tokens(settings: Settings) -> None:
    """Make the tokens that guard changes, once, readable by the owner alone."""
    for path in (settings.controller_token_file, settings.node_token_file):
        if read_token(path) is None:
            write_whole(path, secrets.token_urlsafe(32) + "\n")


def _in_use(host: str, port: int) -> bool:
    if port == 0:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def waited_for(nodes: Sequence[Node], before: Collection[str], looked_s: float = 0.0) -> list[Node]:
    """The nodes that a start still waits for. `before`: the processes that ran when it began; `looked_s`: for how long
    the controller has answered.

    How nodes that others run are is no matter of the start: it is what their alerts are for. So are those of ours that
    ran before and are hung, lying or silent: else nobody could start a controller that died while one was.
    """
    settled = {NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINED}  # cordoned by a person: not ours to wait for
    unwell = {NodePhase.NOT_READY, NodePhase.UNREACHABLE} if looked_s >= UNWELL_AFTER_S else set()
    return [
        node
        for node in nodes
        if node.phase not in settled
        and not (node.provider == FOUND and node.probe_age_s is not None)
        and not (node.name in before and node.phase in unwell)
    ]
