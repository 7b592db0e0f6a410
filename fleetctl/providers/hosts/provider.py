"""Nodes as units of hosts, run by commands: by default `ssh HOST systemctl ...`."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.providers.found import URL
from fleetctl.providers.hosts.commands import Commands
from fleetctl.providers.hosts.journal import Entry, read_entries
from fleetctl.providers.hosts.options import HostsOptions, Place
from fleetctl.providers.hosts.run import Done, run
from fleetctl.providers.hosts.unit_state import UnitState, UnreadableStateError, read_states, seen_of
from fleetctl.providers.provider import Capacity, LogChunk, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec

HOSTS = "hosts"
KILL_WAIT_S = 10.0
MAX_POLL_S = 1.0


@dataclass(slots=True)
class _Host:
    """One host: its places, and what the last look told. `lock`: held by the look that is under way."""

    name: str
    places: list[Place] = field(default_factory=list)
    states: dict[str, UnitState] = field(default_factory=dict)
    looked_at: float | None = None  # monotonic; None: never
    tried_at: float | None = None
    error: str = ""  # of the last look, if it failed
    lock: threading.Lock = field(default_factory=threading.Lock)


class HostsProvider:
    """Implements `NodeProvider`. What runs is the hosts' own word; nothing is remembered but the last look.

    Who asks gets the last look, and a new one begins in the background once that is old: a host that does not answer
    holds nobody up. When no look has succeeded for `stale_after_s`, every question raises UnreachableError.
    """

    def __init__(self, options: HostsOptions, run_command: Callable[[Sequence[str], float], Done] = run) -> None:
        self.commands = Commands(options)
        self._options = options
        self._run = run_command
        self.places = {place.name: place for place in options.nodes}
        self._hosts: dict[str, _Host] = {}
        for place in options.nodes:
            self._hosts.setdefault(place.host, _Host(place.host)).places.append(place)

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """What is done to a unit is done by command; nobody places units on hosts but the settings."""
        return "which node is on which host is what the settings say" if act is ProviderAct.CORDON_HOST else ""

    def spec_of(self, place: Place) -> NodeSpec:
        """The node that a place is, as the settings describe it."""
        facts = {URL: place.url, "host": place.host, **({"sku": place.sku} if place.sku else {})}
        return NodeSpec(
            name=place.name,
            pool=place.pool,
            model=place.model,
            engine=place.engine,
            zone=place.zone,
            revision="",
            provider=HOSTS,
            facts=facts,
        )

    def capacity(self, spec: NodeSpec) -> Capacity:
        """Its pool's spare places. Where some host can't be looked at, there may be more than are seen."""
        spare, silent = self._spare(spec)
        own = f"pool {spec.pool}, model {spec.model}"
        if not spare and silent:
            return Capacity(None, f"no spare place of {own} is seen, and {', '.join(silent)} can't be looked at")
        why = f"spare places of {own} in providers.hosts.nodes: {', '.join(spare) or 'none'}"
        return Capacity(len(spare), why, tuple(spare)) if not silent else Capacity(None, why)

    def specs(self) -> tuple[list[NodeSpec], set[str]]:
        """Every node that runs, and the names of those that nobody could look at."""
        running, unknown = [], set()
        for name, place in self.places.items():
            try:
                if self.observe(name).running:
                    running.append(self.spec_of(place))
            except UnreachableError:
                unknown.add(name)
        return running, unknown

    def list_instances(self) -> Sequence[ObservedInstance]:
        """Every place whose unit runs, on hosts that can be looked at. Raises UnreachableError when none can."""
        found, errors = [], []
        for host in self._hosts.values():
            try:
                states = self._states(host)
            except UnreachableError as error:
                errors.append(error)
                continue
            found += [one for place in host.places if (one := seen_of(place, states[place.unit])).running]
        if errors and len(errors) == len(self._hosts):
            raise errors[0]
        return found

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """The unit as it is: the settings say all that is needed to look after it."""
        if spec.name not in self.places:
            return None
        found = self.observe(spec.name)
        return found if found.running else None

    def ensure_started(self, spec: NodeSpec) -> None:
        """Start its unit, and wait until the host says that it began. Raises RefusedError for a name that is no place,
        or one of another pool or model."""
        place = self._place_for(spec)
        host = self._hosts[place.host]
        before = self._look(host)[place.unit]
        if seen_of(place, before).running:
            return
        self._do(place, self.commands.start(place, spec))
        self._wait(place, self._options.timeout_s, lambda state: _has_begun(place, before, state))

    def stop(self, name: str, grace_s: float) -> None:
        """Its host's own way first, then by force."""
        place = self.places.get(name)
        if place is None or not self._seen_now(place).running:
            return
        self._do(place, self.commands.stop(place))
        if self._wait(place, grace_s, lambda state: not seen_of(place, state).running):
            return
        self._do(place, self.commands.kill(place))
        if not self._wait(place, KILL_WAIT_S, lambda state: not seen_of(place, state).running):
            raise FleetctlError(f"{name}: unit {place.unit} on {place.host} does not end, even by force")

    def forget(self, name: str) -> None:
        """Nothing is kept of a node here; its log is its host's."""

    def observe(self, name: str) -> ObservedInstance:
        """As its host told at the last look."""
        place = self.places.get(name)
        if place is None:
            return ObservedInstance(name, running=False)
        return seen_of(place, self._states(self._hosts[place.host])[place.unit])

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """From its host's journal."""
        place = self.places.get(name)
        if place is None:
            return LogChunk((), "")
        if after:
            done = self._run(self.commands.logs_after(place, after), self._options.timeout_s)
            if done.status == 0:  # else the journal does not know the cursor any more
                return _chunk(list(read_entries(done.output))[:lines], after)
        done = self._run(self.commands.logs(place, lines), self._options.timeout_s)
        if done.status != 0:
            raise UnreachableError(f"{name}: its log on {place.host} can't be read: {done.last_words}")
        return _chunk(list(read_entries(done.output))[-lines:], "")

    def _place_for(self, spec: NodeSpec) -> Place:
        place = self.places.get(spec.name)
        if place is None:
            spare = ", ".join(self._spare(spec)[0]) or "none"
            raise RefusedError(
                f"{spec.name} is no node of providers.hosts.nodes: where it would run is not known; spare ones of pool"
                f" {spec.pool}: {spare}"
            )
        if (place.pool, place.model) != (spec.pool, spec.model):
            raise RefusedError(
                f"{spec.name} serves {place.model} in pool {place.pool}, by providers.hosts.nodes, and not"
                f" {spec.model} in pool {spec.pool}"
            )
        return place

    def _spare(self, spec: NodeSpec) -> tuple[list[str], list[str]]:
        """Places like this node that do not run, and hosts of such places that can't be looked at."""
        found, silent = [], set()
        for place in self.places.values():
            if (place.pool, place.model) == (spec.pool, spec.model):
                host = self._hosts[place.host]
                if self._is_known(host, time.monotonic()):
                    found += [] if seen_of(place, host.states[place.unit]).running else [place.name]
                else:
                    silent.add(place.host)
        return found, sorted(silent)

    def _do(self, place: Place, words: Sequence[str]) -> None:
        done = self._run(words, self._options.timeout_s)
        if done.status != 0:
            raise FleetctlError(f"{place.name}: {place.host}: {done.last_words}")

    def _seen_now(self, place: Place) -> ObservedInstance:
        return seen_of(place, self._look(self._hosts[place.host])[place.unit])

    def _wait(self, place: Place, within_s: float, is_so: Callable[[UnitState], bool]) -> bool:
        """Look again and again until it is so; False when it was not within the time."""
        deadline = time.monotonic() + within_s
        while True:
            if is_so(self._look(self._hosts[place.host])[place.unit]):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(MAX_POLL_S, self._options.look_every_s))

    def _states(self, host: _Host) -> dict[str, UnitState]:
        """What the host told last. Waits only for the first look."""
        if host.tried_at is None:
            return self._look(host)
        now = time.monotonic()
        if now - host.tried_at >= self._options.look_every_s and not host.lock.locked():
            threading.Thread(target=self._look_quietly, args=(host,), name=f"look-{host.name}", daemon=True).start()
        if not self._is_known(host, now):
            raise UnreachableError(
                f"{host.name} could not be looked at{_for_s(host, now)}: {host.error or 'no answer yet'}",
                remedy=f"try it by hand: {self._words(host)}",
            )
        return host.states

    def _is_known(self, host: _Host, now: float) -> bool:
        return host.looked_at is not None and now - host.looked_at <= self._options.stale_after_s

    def _look_quietly(self, host: _Host) -> None:
        try:
            self._look(host, is_needed=False)
        except FleetctlError:
            return  # told to whoever asks, once it has lasted

    def _look(self, host: _Host, *, is_needed: bool = True) -> dict[str, UnitState]:
        """Ask the host now. Raises UnreachableError when it does not tell."""
        with host.lock:
            if not is_needed and time.monotonic() - (host.tried_at or 0.0) < self._options.look_every_s:
                return host.states  # another one looked meanwhile
            units = [place.unit for place in host.places]
            try:
                done = self._run(self.commands.observe(host.name, units), self._options.timeout_s)
                if done.status != 0:
                    raise UnreachableError(done.last_words)
                host.states = read_states(done.output, units)
            except (UnreachableError, UnreadableStateError, BadInputError) as error:
                host.error = str(error)
                raise UnreachableError(f"{host.name} could not be looked at: {host.error}") from error
            else:
                host.error, host.looked_at = "", time.monotonic()
                return host.states
            finally:
                host.tried_at = time.monotonic()

    def _words(self, host: _Host) -> str:
        return shlex.join(self.commands.observe(host.name, [place.unit for place in host.places]))


def _for_s(host: _Host, now: float) -> str:
    return "" if host.looked_at is None else f" for {now - host.looked_at:.0f} s"


def _has_begun(place: Place, before: UnitState, state: UnitState) -> bool:
    """It runs, or ran and has ended already: then it was another run than before."""
    return seen_of(place, state).running or state.get("InvocationID") != before.get("InvocationID")


def _chunk(entries: Sequence[Entry], cursor: str) -> LogChunk:
    return LogChunk(tuple(one.text for one in entries), entries[-1].cursor if entries else cursor)
