"""What one Alertmanager has yet to be told: newest state per alert, bounded, sent by a task of its own.

A peer that is slow or dead holds up nobody else. Nothing is lost by that which the next resend would not say again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

import structlog

from alerts.evaluation.alert import RESOLVED_KEPT_S
from diagnostics.value_format import format_seconds
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.outgoing_alert import OutgoingAlert
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.wire.alertmanager import AlertmanagerState

log = structlog.get_logger()

BATCH = 64
MAX_QUEUED = 10_000
TOLD_FAILURES = 2  # in a row: one is a restart of a second
# A page of meanwhile waits no longer once the peer is back: longer than its own group_wait is late.
MAX_BACKOFF_S = 10.0


class PeerQueue:
    """Threading: belongs to one event loop."""

    def __init__(
        self,
        client: AlertmanagerClient,
        clock: Clock,
        metrics: ControllerMetrics,
        *,
        max_queued: int = MAX_QUEUED,
        tell: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        """`tell`: of the timeline, a kind and a text."""
        self._tell = tell
        self.client = client
        self._clock = clock
        self._metrics = metrics
        self._max_queued = max_queued
        self._waiting: OrderedDict[str, OutgoingAlert] = OrderedDict()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._state = AlertmanagerState(url=client.url)

    def offer(self, alerts: Iterable[OutgoingAlert]) -> None:
        """Have these sent, in place of what waits for the same alerts. Beyond the bound the oldest are dropped."""
        for alert in alerts:
            self._waiting.pop(alert.fingerprint, None)
            self._waiting[alert.fingerprint] = alert
        while len(self._waiting) > self._max_queued:
            self._waiting.popitem(last=False)
            self._dropped(1, "the queue is full")
        if not self._waiting:
            return
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"alertmanager-{self.client.url}")

    def state(self) -> AlertmanagerState:
        """What became of the alerts given to this peer."""
        return self._state.model_copy(update={"queued": len(self._waiting)})

    async def stop(self) -> None:
        """Forget what waits: the next controller sends it again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                pause_s = await self._send(batch)
                if pause_s:
                    await self._clock.sleep(pause_s)

    def _next_batch(self) -> list[OutgoingAlert]:
        """The oldest that still mean something."""
        now = self._clock.now()
        batch: list[OutgoingAlert] = []
        while self._waiting and len(batch) < BATCH:
            _, alert = self._waiting.popitem(last=False)
            if now - alert.ends_at > (RESOLVED_KEPT_S if alert.is_resolved else 0.0):
                self._dropped(1, "it waited for too long")
            else:
                batch.append(alert)
        return batch

    async def _send(self, batch: list[OutgoingAlert]) -> float:
        """Returns how many seconds to wait before the next one."""
        try:
            await self.client.post_alerts([alert.to_json() for alert in batch])
        except BadInputError as error:
            self._failed(len(batch), error)  # it keeps the valid ones, and has no use for the others
            return 0.0
        except FleetctlError as error:
            self._failed(len(batch), error)
            for alert in reversed(batch):
                if alert.fingerprint not in self._waiting:  # what came since is newer
                    self._waiting[alert.fingerprint] = alert
                    self._waiting.move_to_end(alert.fingerprint, last=False)
            self._failures += 1
            if self._failures == TOLD_FAILURES:
                text = f"takes no alerts ({error.message}): {len(self._waiting)} wait, and it calls nobody meanwhile"
                self._tell("alertmanager.unreachable", f"Alertmanager {self.client.url} {text}")
            return min(2.0 ** (self._failures - 1), MAX_BACKOFF_S)
        if self._failures:
            log.info("alertmanager.reached_again", alertmanager=self.client.url, after_failures=self._failures)
        if self._failures >= TOLD_FAILURES:
            away = format_seconds(self._clock.now() - self._failing_since)
            text = f"Alertmanager {self.client.url} takes alerts again, after {away}: what waited goes there now"
            self._tell("alertmanager.reached_again", text)
        self._failures = 0
        self._state.sent += len(batch)
        self._state.last_success_at = self._clock.now()
        self._state.last_error = ""
        self._metrics.alertmanager_sent.labels(alertmanager=self.client.url).inc(len(batch))
        self._metrics.alertmanager_last_success.labels(alertmanager=self.client.url).set(self._clock.now())
        return 0.0

    def _failed(self, count: int, error: FleetctlError) -> None:
        self._state.failed += count
        self._state.last_error = error.message
        self._metrics.alertmanager_failed.labels(alertmanager=self.client.url).inc(count)
        if self._failures == 0:
            self._failing_since = self._clock.now()
            log.error("alertmanager.send_failed", alertmanager=self.client.url, alerts=count, error=error.message)

    def _dropped(self, count: int, why: str) -> None:
        self._state.dropped += count
        self._metrics.alertmanager_dropped.labels(alertmanager=self.client.url).inc(count)
        log.warning("alertmanager.alert_dropped", alertmanager=self.client.url, why=why)
