"""The nodes' signals out of a Prometheus that is there already, instead of our own scrapes.

Its raw points go into our store under their own times, and the same rules run on them: see docs/decisions/0008.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from alerts.errors import AlertsError, BadExpressionError
from alerts.evaluation.rules import RuleGroup
from alerts.history.backtest import widened
from alerts.history.mirror import Mirror, relabelling
from alerts.history.prometheus_source import PrometheusServer, RangeSeries, metric_selectors, read_range, selector_of
from alerts.promql import parse
from alerts.sample import to_ms
from alerts.series.store import SeriesStore
from fleetctl.controller.content.content import Content
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.signals.scrape import Signals
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.stall import StallMonitor
from fleetctl.settings.signals import PrometheusSettings

log = structlog.get_logger()

SCRAPES_PER_WINDOW = 4  # a rate over fewer is luck
FIRST_READ_S = 600.0  # of history, so that windows are full from the start
MISSED_READS = 3  # in a row, until what is known is too old to judge by


class _Reading(NamedTuple):
    until: float
    up: list[RangeSeries]
    others: list[RangeSeries]


class PrometheusSignals:
    """Reads in a thread, a few series at a time; only one read at once, however long it takes."""

    def __init__(
        self,
        settings: PrometheusSettings,
        groups: Sequence[RuleGroup],
        store: SeriesStore,
        clock: Clock,
        metrics: ControllerMetrics,
        gateway: Signals,
        stalls: StallMonitor | None = None,
    ) -> None:
        """`gateway` scrapes what is ours alone. Raises BadInputError when the settings can't work."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._gateway = gateway
        self._stalls = stalls or StallMonitor()
        self._stalled_before_s = 0.0  # long stalls until the last read was taken up
        self._selectors = _selectors(groups, settings.match)
        self._server()  # files that can't be read are told at the start
        self._mirror = Mirror(store, relabelling(settings.labels))
        self._reading: asyncio.Task[_Reading] | None = None
        self._next_read_at = 0.0
        self._began_at = clock.now()
        self._until: float | None = None
        self._problem = ""
        self.last_success_at: dict[str, float] = {}
        self.problems: dict[str, str] = {}  # of single nodes: the server that is read tells none

    def read_for(self, groups: Sequence[RuleGroup]) -> None:
        """From the next read on, reads what these rules need."""
        self._selectors = _selectors(groups, self._settings.match)

    async def collect(self) -> None:
        """Scrapes the gateway, begins a read when one is due, and takes up one that has ended."""
        await self._gateway.collect()
        now = self._clock.now()
        if self._reading is None and now >= self._next_read_at:
            self._next_read_at = now + self._settings.interval_s
            since = (
                now - FIRST_READ_S if self._until is None else max(self._until - self._overlap_s, now - FIRST_READ_S)
            )
            self._reading = asyncio.create_task(asyncio.to_thread(self._read, since, now), name="read-prometheus")
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=self._settings.timeout_s)
            if self._reading.done():
                self._take_up(self._reading)
                self._reading = None

    def known_until(self, now: float) -> float | None:
        """When the last read was asked for; None after `MISSED_READS` intervals without one."""
        longest_s = MISSED_READS * self._settings.interval_s + self._settings.timeout_s
        blind_s = self._stalls.long_s - self._stalled_before_s
        return self._until if self._until is not None and now - self._until - blind_s <= longest_s else None

    async def stop(self) -> None:
        """Give up the read in progress."""
        if self._reading is not None:
            self._reading.cancel()

    @property
    def problem(self) -> str:
        """Why the last read failed; "" when it did not."""
        return self._problem

    @property
    def _overlap_s(self) -> float:
        """A scrape is told with the time at which it began, and may take as long as the interval."""
        return 2 * self._settings.scrape_interval_s

    def _server(self) -> PrometheusServer:
        settings = self._settings
        token = settings.token()
        verify: bool | str = not settings.insecure_skip_verify
        if verify and settings.ca_file is not None:
            verify = str(_readable(settings.ca_file, "ca_file"))
        cert: tuple[str, str] | str | None = None
        if settings.cert_file is not None:
            cert = str(_readable(settings.cert_file, "cert_file"))
            if settings.key_file is not None:
                cert = (cert, str(_readable(settings.key_file, "key_file")))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return PrometheusServer(settings.url, headers, settings.basic(), verify, cert, settings.timeout_s)

    def _read(self, since: float, until: float) -> _Reading:
        """Raises AlertsError or BadInputError. `up` comes first: see Mirror."""
        server = self._server()  # anew each time, so that a secret can be changed while we run
        up = read_range(server, [selector_of("up", only=self._settings.match)], since, until)
        return _Reading(until, up, read_range(server, self._selectors, since, until))

    def _take_up(self, done: asyncio.Task[_Reading]) -> None:
        try:
            reading = done.result()
        except (AlertsError, BadInputError) as error:
            if str(error) != self._problem:
                log.warning("prometheus.read_failed", url=self._settings.url, error=str(error))
            self._problem = str(error)
            self._metrics.scrapes.labels(result="failed").inc()
            return
        if self._problem:
            log.info("prometheus.read_again", url=self._settings.url)
        self._problem = ""
        self._metrics.scrapes.labels(result="ok").inc()
        self._mirror.add_scrapes(reading.up, reading.others, to_ms(reading.until))
        relabel = relabelling(self._settings.labels)
        for row in reading.up:
            node = relabel(row.labels).get("node")
            alive = row.times[row.values == 1.0]
            if node and len(alive):
                self.last_success_at[node] = int(alive[-1]) / 1000
        self._until, self._stalled_before_s = reading.until, self._stalls.long_s


def rules_for(settings: PrometheusSettings, content: Content) -> list[RuleGroup]:
    """The rules as they fit this Prometheus: windows long enough for its scrapes; no signals when it records them."""
    return list(content.rules) if settings.recorded else widened(content.groups, window_s(settings))


def window_s(settings: PrometheusSettings) -> float:
    """The shortest window over which a rate is worth something."""
    return SCRAPES_PER_WINDOW * settings.scrape_interval_s


def _selectors(groups: Sequence[RuleGroup], match: str) -> list[str]:
    try:
        selectors = [selector for selector in metric_selectors(groups, only=match) if '"up"' not in selector]
        for selector in selectors:
            parse(selector)
    except BadExpressionError as error:
        raise BadInputError(
            f"signals.prometheus.match: {match!r}: {error}", remedy='label matchers, e.g. job="vllm",env="prod"'
        ) from None
    return selectors


def _readable(path: Path, name: str) -> Path:
    try:
        with path.expanduser().open("rb"):
            return path.expanduser()
    except OSError as error:
        raise BadInputError(
            f"signals.prometheus.{name}: {path}: {error.strerror}", remedy="give an existing file"
        ) from error
