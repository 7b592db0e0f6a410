"""Which gateways there are, whether they answer, and the local one kept running: a dead one serves nobody.

A gateway that ended by itself is started again from its record, later each time while it does not stay up. One that
runs and does not answer is an incident, and a runbook's work: what it still carries would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import structlog

from fleetctl.controller.nodes.node_answers import GatewayReport, NoAnswerError, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.records import Records
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.kit.restart_backoff import RestartBackoff
from fleetctl.providers.local_gateway import GATEWAY, LocalGateway
from fleetctl.providers.provider import ObservedInstance, exit_words
from fleetctl.wire.gateway import GatewayPhase
from fleetctl.wire.tenant import TenantUse
from runbooks.ports import PermanentError, Receipt, TemporaryError, WayOut

log = structlog.get_logger()

GATEWAY_JOB = "llm-gateway"
PROCESS_UP = "fleet_gateway_process_up"
"""1: the provider sees its process run."""
DEATHS = "fleet_gateway_deaths_total"
"""Ends of its process that nobody asked for; those of its workers it counts itself."""
ASKED_TO_END = frozenset({None, 0, -15})  # `fleetctl down` and SIGTERM: nobody wants it back
STOP_GRACE_S = 5.0
POLL_S = 0.2
SHARES_FOR_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayState:
    """One gateway as it was last seen. `since`: when it entered its phase."""

    name: str
    url: str
    phase: GatewayPhase = GatewayPhase.STARTING
    reason: str = ""
    since: float | None = None
    looked_at: float | None = None
    process_up: bool | None = None  # of the local one; None: not ours to know
    instance: str | None = None
    process_deaths: int = 0  # ends of its process that nobody asked for, since this controller started
    worker_deaths: int = 0  # the same of its workers
    next_start_at: float | None = None
    report: GatewayReport | None = None  # what it said of itself; None: it did not answer

    @property
    def deaths(self) -> int:
        """Ends that nobody asked for, of its process and of its workers."""
        return self.process_deaths + self.worker_deaths


@dataclass(slots=True)
class _LocalProcess:
    process: LocalGateway
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    was_seen_running: bool = False
    is_restarting: bool = False  # by an effect: its end is no death


class Gateways:
    """Looks at each gateway once a turn; `states` by name."""

    def __init__(self, records: Records, client: NodeClient, urls: Sequence[str], process: LocalGateway | None) -> None:
        """`urls`: the local one's first. `process`: how the local one is started; None: it is not ours."""
        self._records = records
        self._client = client
        self._local = _LocalProcess(process) if process is not None else None
        self._has_told_zero = False
        self.states: dict[str, GatewayState] = {}
        for index, url in enumerate(dict.fromkeys(url.rstrip("/") for url in urls)):
            name = GATEWAY if index == 0 and process is not None else address_of(url)
            self.states[name] = GatewayState(name, url)

    @property
    def urls(self) -> list[str]:
        """Where they answer."""
        return [state.url for state in self.states.values()]

    def num_sharing(self, now: float) -> int:
        """How many gateways may serve clients, so that they share tenants' limits.

        One that does not answer us may serve all the same, and counts until it has been so for a while.
        """
        return sum(
            state.looked_at is not None
            and state.phase is not GatewayPhase.DOWN
            and (state.phase is not GatewayPhase.UNREACHABLE or state.since is None or now - state.since < SHARES_FOR_S)
            for state in self.states.values()
        )

    def ways_out(self) -> list[WayOut] | None:
        """Endpoints outside that gateways told of when they were last looked at; None when none told anything."""
        reports = [state.report for state in self.states.values() if state.report is not None]
        told = [report.ways_out for report in reports if report.ways_out is not None]
        return [way for ways in told for way in ways] if told else None

    async def observe_gateways(self) -> None:
        """Look at all of them, and start the local one again if it ended."""
        await asyncio.gather(*(self._look_at(state) for state in list(self.states.values())))

    def values(self) -> Iterator[tuple[str, str, float]]:
        """Name, URL and value of each series about a gateway that only this process knows.

        The first count is zero, also when it died while no controller looked: else nobody sees that it rose.
        """
        for state in self.states.values():
            if state.process_up is not None:
                yield PROCESS_UP, state.url, float(state.process_up)
            if state.name == GATEWAY and self._local is not None:
                yield DEATHS, state.url, float(state.process_deaths if self._has_told_zero else 0)
        self._has_told_zero = True

    async def tenants(self) -> list[TenantUse]:
        """Tenants by name, their use summed over the gateways that answer. Raises UnreachableError when none does."""
        answers = await asyncio.gather(
            *(self._client.gateway_tenants(url) for url in self.urls), return_exceptions=True
        )
        found: dict[str, TenantUse] = {}
        problems = []
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, NoAnswerError | NotAllowedError):
                    raise answer
                problems.append(str(answer))
                continue
            for row in answer:
                known = found.get(row.tenant)
                found[row.tenant] = row if known is None else known.plus(row)
        if len(problems) == len(self.urls):
            raise UnreachableError(f"no gateway told of its tenants: {'; '.join(problems) or 'there is none'}")
        return [found[name] for name in sorted(found)]

    async def shadow_differences(self, rule_id: str) -> tuple[float, float] | None:
        """Answers of a shadow that differ from the users' (in parts), and all that were compared, over the gateways.

        None when none of them tells of the rule.
        """
        answers = await asyncio.gather(
            *(self._client.gateway_shadow(url, rule_id) for url in self.urls), return_exceptions=True
        )
        told = []
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, NoAnswerError | NotAllowedError):
                    raise answer
            elif answer is not None:
                told.append(answer)
        if not told:
            return None
        return sum((1 - agreement) * num for agreement, num in told), float(sum(num for _, num in told))

    async def restart(self, name: str, wait_s: float) -> Receipt:
        """Stop and start the local gateway, and wait until it answers. Raises PermanentError, TemporaryError."""
        local, state = self._local, self.states.get(name)
        if state is None:
            raise PermanentError(f"there is no gateway named {name}; gateways: {', '.join(self.states) or 'none'}")
        if local is None or name != GATEWAY:
            raise PermanentError(f"{name} was not started here: its own supervisor restarts it")
        local.is_restarting = True
        try:
            before = await asyncio.to_thread(local.process.observe)
            stopped = await asyncio.to_thread(local.process.stop, STOP_GRACE_S)
            await asyncio.to_thread(local.process.start)
        except FleetctlError as error:
            raise TemporaryError(error.message) from error
        finally:
            local.is_restarting = False
        await self._records.timeline.append("gateway.restarted", f"{name}: restarted, asked for")
        started = self._records.clock.now()
        while (report := await self._report(state.url))[0] is None:
            if self._records.clock.now() - started > wait_s:
                raise TemporaryError(f"{name} does not answer after {wait_s:.0f} s: {report[1]}")
            await self._records.clock.sleep(POLL_S)
        await self._look_at(self.states[name])
        return {
            "gateway": name,
            "replaced_instance": before.instance if before is not None else None,
            "was_running": stopped,
            "ready_after_s": round(self._records.clock.now() - started, 2),
        }

    async def _look_at(self, state: GatewayState) -> None:
        now = self._records.clock.now()
        seen = await self._observe_process(state, now) if state.name == GATEWAY and self._local is not None else None
        report, problem = await self._report(state.url)
        phase, reason = judge_gateway(report, problem, seen)
        before = self.states[state.name]
        changed = before.phase is not phase or before.looked_at is None
        self.states[state.name] = replace(
            self.states[state.name],
            phase=phase,
            reason=reason,
            since=now if changed else before.since,
            looked_at=now,
            process_up=seen.running if seen is not None else None,
            instance=seen.instance if seen is not None else None,
            next_start_at=self._local.backoff.due_at if self._local is not None and seen is not None else None,
            report=report,
            worker_deaths=before.worker_deaths + _more_worker_deaths(before.report, report),
        )
        if changed and not (before.looked_at is None and phase is not GatewayPhase.READY):
            text = f"{state.name}: {phase.value.replace('_', ' ')}" + (f" ({reason})" if reason else "")
            await self._records.timeline.append(f"gateway.{phase.value}", text, data={"gateway": state.name})

    async def _report(self, url: str) -> tuple[GatewayReport | None, str]:
        try:
            return await self._client.gateway_report(url), ""
        except (NoAnswerError, NotAllowedError) as error:
            return None, str(error)

    async def _observe_process(self, state: GatewayState, now: float) -> ObservedInstance | None:
        """The local process, started again when that is due."""
        local = self._local
        assert local is not None
        try:
            seen = await asyncio.to_thread(local.process.observe)
        except FleetctlError as error:
            log.error("gateway.look_failed", error=error.message)
            return None
        if seen is None or seen.running:
            local.was_seen_running = local.was_seen_running or seen is not None
            return seen
        if local.is_restarting or (not local.was_seen_running and seen.exit_status in ASKED_TO_END):
            return seen
        if local.backoff.due_at is None:
            await self._note_death(state, seen, now)
        assert local.backoff.due_at is not None
        if now < local.backoff.due_at:
            return seen
        return await self._start_again(seen, now)

    async def _note_death(self, state: GatewayState, seen: ObservedInstance, now: float) -> None:
        assert self._local is not None
        backoff = self._local.backoff
        backoff.note_ended(now)
        self.states[state.name] = replace(state, process_deaths=state.process_deaths + 1)
        self._records.metrics.gateway_deaths.inc()
        how = exit_words(seen.exit_status) or "nobody knows how"
        assert backoff.due_at is not None
        wait = f"; started again in {backoff.due_at - now:.0f} s" if backoff.due_at > now else ""
        loop = f", {backoff.ends_in_row} times in a row" if backoff.is_looping else ""
        log.error("gateway.ended", exit_status=seen.exit_status, in_row=backoff.ends_in_row)
        await self._records.timeline.append("gateway.ended", f"{state.name}: its process ended, {how}{loop}{wait}")

    async def _start_again(self, seen: ObservedInstance, now: float) -> ObservedInstance:
        assert self._local is not None
        try:
            await asyncio.to_thread(self._local.process.start)
        except FleetctlError as error:
            log.error("gateway.start_failed", error=error.message)
            self._local.backoff.note_ended(now)
            return seen
        self._local.backoff.note_started(now)
        self._local.was_seen_running = True
        await self._records.timeline.append("gateway.started", f"{GATEWAY}: started again by the controller")
        return seen


def _more_worker_deaths(before: GatewayReport | None, now: GatewayReport | None) -> int:
    """Workers that ended since the gateway was last looked at; its supervisor counts from its own start."""
    if now is None or now.worker_deaths is None or before is None or before.worker_deaths is None:
        return 0
    return max(0, now.worker_deaths - before.worker_deaths)


def judge_gateway(
    report: GatewayReport | None, problem: str, seen: ObservedInstance | None
) -> tuple[GatewayPhase, str]:
    """A gateway's phase and the reason for it, from its own word and its process."""
    if report is None:
        if seen is not None and not seen.running:
            how = exit_words(seen.exit_status)
            return GatewayPhase.DOWN, f"its process ended: {how}" if how else "its process ended"
        return GatewayPhase.UNREACHABLE, problem
    if report.table_version is None:
        return GatewayPhase.NOT_READY, "no routing table yet"
    reasons = [report.workers.problem] if report.workers is not None else []
    if report.failing_open:
        reasons.append(f"the controller sees no node of {', '.join(report.failing_open)} well; all are tried")
    return GatewayPhase.READY, "; ".join(filter(None, reasons))


def address_of(url: str) -> str:
    """`host:port` of a URL: how a gateway is named in metrics."""
    return url.partition("://")[2].rstrip("/")
