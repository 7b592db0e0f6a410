"""The dead-man's switch: a word to somebody outside, again and again, so that its absence calls a person.

It is only sent while the controller does what it is there for: it leads, and its scrapes and rules are in time. One
that hangs, or lost its lease, falls silent as one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import httpx
import structlog
from pydantic import SecretStr

from fleetctl.controller.records import Records

log = structlog.get_logger()

TIMEOUT_S = 10.0
VITAL_LOOPS = frozenset({"fleet", "scrape", "alerts"})
ALERT = "LLMControllerAlive"
LABELS = {"alertname": ALERT, "severity": "none"}
ANNOTATIONS = {
    "summary": "The controller is there, and evaluates its rules",
    "description": "Always firing. Route it to what calls somebody when it ends; page nobody with it.",
}


class Vitals:
    """Whether the controller may say that it is alive."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.late_loops: Callable[[float], Collection[str]] = lambda now: ()
        """The loops that are late; set once they are there."""

    @property
    def why_not(self) -> str:
        """Why nothing is to be sent; "" while it is alive."""
        if not self._records.lease.is_valid:
            return "it does not lead"
        late = VITAL_LOOPS & set(self.late_loops(self._records.clock.now()))
        return f"late: {', '.join(sorted(late))}" if late else ""


class Heartbeat:
    """Asks the URL in each turn. It is a secret: no log, metric or error has it."""

    def __init__(self, url: SecretStr, http: httpx.AsyncClient, vitals: Vitals, records: Records) -> None:
        self._url = url
        self._http = http
        self._vitals = vitals
        self._clock = records.clock
        self._metrics = records.metrics
        self._last_success_at = records.clock.now()  # it had no chance before
        self._error = ""
        records.metrics.heartbeat_age.set_function(lambda: max(0.0, self._clock.now() - self._last_success_at))

    async def send(self) -> None:
        """One turn of a loop."""
        error = self._vitals.why_not or await self._ask()
        if error:
            self._metrics.heartbeats.labels(result="failed").inc()
            if not self._error:
                log.error("heartbeat.failed", why=error, remedy="controller.heartbeat_url names what is asked")
        else:
            self._metrics.heartbeats.labels(result="ok").inc()
            self._last_success_at = self._clock.now()
            if self._error:
                log.info("heartbeat.sent_again", was=self._error)
        self._error = error

    async def _ask(self) -> str:
        """Why it did not arrive; "" when it did."""
        try:
            answer = await self._http.get(self._url.get_secret_value(), timeout=TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return type(error).__name__
        return "" if answer.is_success else f"answered {answer.status_code}"
