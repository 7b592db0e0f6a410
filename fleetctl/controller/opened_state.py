"""The state of a controller: its database opened, claimed for it, and who leads where several share it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from fleetctl.controller.audit import Audit, append_run
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.database import Database
from fleetctl.controller.leadership import Leadership, Lease, Takeover
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.records import Records
from fleetctl.controller.signals.rules_in_force import RulesInForce
from fleetctl.controller.state_lock import hold_state_lock
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock, SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.stall import StallMonitor
from fleetctl.wire.status import LeadershipState
from runbooks.errors import RunbookError
from runbooks.journal import Journal

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LedState:
    """What a controller on a shared database leads with: the state, claimed for it, and series that it kept warm."""

    database: Database
    journal: Journal
    leadership: Leadership
    takeover: Takeover
    rules: RulesInForce


class LeadershipView:
    """Who leads, as the leader tells it."""

    def __init__(self, config: ControllerConfig, led: LedState | None, since: float) -> None:
        self._led = led
        self._since = since
        self._wanted = config.settings.controller.other_controllers

    def state(self) -> LeadershipState:
        """As the API tells it."""
        if self._led is None:
            return LeadershipState()
        there = {peer.url.rstrip("/") for peer in self._led.leadership.peers}
        return LeadershipState(
            shared=True,
            url=self._led.leadership.me.url,
            is_certain=self._led.leadership.lease.is_valid,
            since=self._since,
            takeover=self._led.takeover.words,
            standbys=sorted(there),
            missing=[url for url in self._wanted if url not in there],
        )


def open_journal(database: Database) -> Journal:
    """The journal in the controller's database. Raises BadInputError when a newer fleetctl wrote it."""
    try:
        return Journal(database.engine, on_audit=append_run)
    except RunbookError as error:
        raise BadInputError(error.message, remedy=error.remedy) from error


async def open_state(
    config: ControllerConfig, clock: Clock, stack: AsyncExitStack, led: LedState | None
) -> tuple[Records, Journal]:
    """The database, claimed for this controller, and what is kept in it."""
    if led is not None:
        database, journal, lease = led.database, led.journal, led.leadership.lease
    else:
        stack.enter_context(hold_state_lock(config.settings.state_dir))
        database = Database(config.settings.database_url)
        stack.callback(database.close)
        journal, lease = open_journal(database), Lease()
        database.lead(journal.claim_epoch())
    # Its own clock, where that is the machine's: a wall clock that jumps ahead is time in which nobody looked, too.
    stalls = StallMonitor(clock.now) if isinstance(clock, SystemClock) else StallMonitor()
    stalls.start()
    stack.callback(stalls.stop)
    timeline, metrics = await Timeline.opened(database, clock), ControllerMetrics()
    audit = Audit(database, timeline, metrics, clock, config.settings.audit, config.settings.audit_dir)
    metrics.leader.set_function(lambda: float(lease.is_valid))
    metrics.epoch.set(database.epoch)
    if led is not None:
        metrics.standbys.set_function(lambda: float(len(led.leadership.peers)))
        metrics.peers_wanted.set(len(config.settings.controller.other_controllers))
    return Records(clock, database, timeline, metrics, stalls, audit, lease), journal


async def tell_takeover(led: LedState, records: Records) -> None:
    takeover, url = led.takeover, led.leadership.me.url
    if takeover.silent_s is not None:
        records.metrics.takeovers.inc()
        records.metrics.last_takeover.set(records.clock.now())
    log.info("controller.leads", url=url, epoch=takeover.epoch, because=takeover.words)
    text = f"{url} leads with epoch {takeover.epoch}: {takeover.words}"
    kind = "controller.took_over" if takeover.silent_s is not None else "controller.leads"
    await records.timeline.append(kind, text, data={"url": url, "epoch": takeover.epoch, "former": takeover.former_url})
