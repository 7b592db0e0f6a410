"""`POST /webhooks/alertmanager`: stored, then answered.

Alertmanager takes any 2xx as delivered, retries every 5xx, and gives up on every 4xx, 429 among them. So only what no
retry can mend is answered with 4xx; whoever is too fast gets 503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from http import HTTPStatus

import sqlalchemy as sa
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from fleetctl.controller.access.rate_limits import RateLimit
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.webhook_payload import Notification, decode_notification
from fleetctl.controller.audit import Audit
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.settings.alertmanager import WebhookSettings
from fleetctl.wire.alertmanager import WebhookState
from fleetctl.wire.base import Problem

log = structlog.get_logger()

WEBHOOK_PATH = "/webhooks/alertmanager"
MAX_AT_ONCE = 8  # bodies in memory
READ_S = 20.0  # for one body
DISCARD_TIMES = 4  # a body up to so many times the limit is read to its end before it is refused
RETRY_AFTER_S = 5
TELL_TRUNCATED_EVERY_S = 3600.0
MAX_GROUPS_TOLD = 1000


def _unpacked(body: bytes, limit: int) -> bytes | None:
    """What a proxy on the way has packed; None when it is larger than `limit`. Raises BadInputError."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        plain = unpack.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadInputError(f"body: not gzip: {error}") from None
    if len(plain) > limit:
        return None
    if not unpack.eof:
        raise BadInputError("body: gzip that is cut short")
    return plain


class AlertmanagerWebhook:
    """Takes notifications, as many as the settings allow, and says what became of them."""

    def __init__(
        self,
        alerts: ExternalAlerts,
        timeline: Timeline,
        clock: Clock,
        metrics: ControllerMetrics,
        settings: WebhookSettings,
        audit: Audit,
    ) -> None:
        self._alerts = alerts
        self._audit = audit
        self._timeline = timeline
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._limit = RateLimit(settings.max_per_minute / 60, settings.max_per_minute)
        self._reading = 0
        self._told_truncated: dict[str, float] = {}
        self.state = WebhookState()

    async def receive(self, request: Request) -> Response:
        """Take one notification. Every answer but 200 has a Problem as its body."""
        wait_s = self._limit.wait_s(self._clock.now())
        if wait_s > 0 or self._reading >= MAX_AT_ONCE:
            return self._later("too many notifications", "raise webhook.max_per_minute", wait_s)
        self._reading += 1
        try:
            return await self._take(request)
        except BadInputError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, error)
        except UnreachableError as error:
            return self._later(error.message, error.remedy)
        except sa.exc.SQLAlchemyError as error:
            log.error("webhook.not_stored", error=str(error)[:500])
            return self._later("the notification could not be stored; the controller's log says why", None)
        finally:
            self._reading -= 1

    async def _take(self, request: Request) -> Response:
        body = await self._body(request)
        if body is None:
            error = BadInputError(
                f"the body is larger than {self._settings.max_body_bytes} bytes",
                remedy="set max_alerts in Alertmanager's webhook_config, or raise webhook.max_body_bytes",
            )
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        now, max_alerts = self._clock.now(), self._settings.max_alerts
        notification = await asyncio.to_thread(decode_notification, body, now, max_alerts=max_alerts)
        taken = await self._alerts.record_notification(notification)
        self._count("accepted")
        self.state.last_at = now
        for result, count in (
            ("new", taken.new),
            ("repeated", taken.repeated),
            ("rejected", notification.num_rejected),
        ):
            self._metrics.webhook_alerts.labels(result=result).inc(count)
        log.info(
            "webhook.taken",
            group_key=notification.group_key[:200],
            receiver=notification.receiver,
            new=taken.new,
            repeated=taken.repeated,
            rejected=notification.num_rejected,
            truncated=notification.truncated,
        )
        self._tell(notification, now)
        if taken.new:  # a repeat changes nothing
            await self._audit.record(
                "webhook.taken",
                who=f"alertmanager, receiver {notification.receiver}",
                target=notification.group_key[:200],
                outcome=f"{taken.new} new alerts",
            )
        return JSONResponse(
            {
                "new": taken.new,
                "repeated": taken.repeated,
                "truncated": notification.truncated,
                "rejected": notification.num_rejected,
                "reasons": list(notification.rejected),
            }
        )

    async def _body(self, request: Request) -> bytes | None:
        """The whole body; None when it is too large. Raises UnreachableError when it does not arrive in time."""
        limit = self._settings.max_body_bytes
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", "gzip"):
            raise BadInputError(
                f"content-encoding {coding[:40]!r} is not understood", remedy="send gzip, or plain JSON"
            )
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(READ_S):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size <= DISCARD_TIMES * limit:
                        # A sender that is cut off in the middle sees a broken connection, which it would retry.
                        parts.clear()
                    else:
                        return None
        except (TimeoutError, ClientDisconnect):
            raise UnreachableError(f"the body did not arrive within {READ_S:.0f} s") from None
        if size > limit:
            return None
        body = b"".join(parts)
        return await asyncio.to_thread(_unpacked, body, limit) if coding == "gzip" else body

    def _tell(self, notification: Notification, now: float) -> None:
        """What a person should know of the notification itself, not again with each repeat."""
        if notification.num_rejected:
            log.warning("webhook.alerts_rejected", group_key=notification.group_key[:200], why=notification.rejected[0])
        if not notification.truncated:
            return
        self._metrics.webhook_truncated.inc(notification.truncated)
        told_at = self._told_truncated.get(notification.group_key)
        if told_at is not None and now - told_at < TELL_TRUNCATED_EVERY_S:
            return
        if len(self._told_truncated) >= MAX_GROUPS_TOLD:
            self._told_truncated.clear()
        self._told_truncated[notification.group_key] = now
        self._timeline.append_soon(
            "webhook.truncated",
            f"Alertmanager left {notification.truncated} alerts out of group {notification.group_key[:300]}:"
            " set max_alerts: 0 in its webhook_config",
            data={"truncated": notification.truncated, "receiver": notification.receiver},
        )

    def _refuse(self, status: HTTPStatus, error: FleetctlError) -> Response:
        self._count("refused")
        self.state.last_error = error.message
        log.warning("webhook.rejected", status=int(status), error=error.message)
        return JSONResponse(Problem(error=error.message, remedy=error.remedy, exit_code=2).model_dump(), status)

    def _later(self, why: str, remedy: str | None, wait_s: float = RETRY_AFTER_S) -> Response:
        self._count("deferred")
        self.state.last_error = why
        log.warning("webhook.deferred", why=why)
        headers = {"Retry-After": str(max(1, math.ceil(wait_s)))}
        problem = Problem(error=why, remedy=remedy, exit_code=4)
        return JSONResponse(problem.model_dump(), HTTPStatus.SERVICE_UNAVAILABLE, headers)

    def _count(self, result: str) -> None:
        self._metrics.webhook_notifications.labels(result=result).inc()
        setattr(self.state, result, getattr(self.state, result) + 1)
