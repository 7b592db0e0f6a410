"""Alertmanager's silences: read every few seconds, asked by everything that acts by itself, made and expired there.
Without an Alertmanager, and where a silence is to hold here alone, they are kept here (`local_silences.py`).

An alert that a silence covers opens no incident and starts nothing. When silences can't be read, an alert's incident
opens all the same (hiding it would call the unknown quiet) and is diagnosed, but nothing is done unasked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from alerts.errors import AlertsError
from alerts.matcher import Matcher
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.local_silences import PREFIX, LocalSilences
from fleetctl.controller.alertmanager.outgoing_alert import rfc3339
from fleetctl.controller.alertmanager.silence import (
    KnownSilence,
    Silenced,
    Silencing,
    covering,
    decode_silence,
    encode_matcher,
)
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.wire.silence import Silence, SilenceRequest, SilencesState

log = structlog.get_logger()

READ_WITHIN_S = 5.0
STALE_AFTER_S = 60.0
MAX_SILENCES = 20_000
T = TypeVar("T")


class Silences:
    """Threading: belongs to one event loop."""

    def __init__(self, clients: Sequence[AlertmanagerClient], clock: Clock, local: LocalSilences | None = None) -> None:
        """`local`: None where none are kept here, as in tools without a state."""
        self._clients = clients
        self._local = local
        self._clock = clock
        self._known: dict[str, KnownSilence] = {}
        self._read_at: float | None = None
        self._unjudged = 0  # in force, and not understood: may cover anything
        self._last_error = ""
        self._has_tried = not clients

    async def read_silences(self) -> None:
        """Read them again; a failure makes them unknown after a minute."""
        await self._read_all()

    async def _read_all(self) -> bool:
        """Read them from all peers. One answer is enough, because peers tell each other; false without any."""
        answers = await asyncio.gather(*(self._read(client) for client in self._clients))
        found = [answer for answer in answers if isinstance(answer, list)]
        errors = [answer for answer in answers if isinstance(answer, str)]
        self._has_tried = True
        if errors and errors[0] != self._last_error:
            log.warning("silences.unreadable", error=errors[0], peers=len(errors), of=len(answers))
        self._last_error = errors[0] if errors else ""
        if found:
            self._take([one for answer in found for one in answer])
        return bool(found)

    def silencing_of(self, labels: Mapping[str, str]) -> Silencing:
        """Whether an alert with these labels (those it has in Alertmanager) is silenced now."""
        now = self._clock.now()
        if by := covering(self._own, labels, now):
            return Silencing(Silenced.YES, by)
        if not self._clients:
            return Silencing(Silenced.NO)
        if not self._is_fresh(now):
            return Silencing(Silenced.UNKNOWN)
        if by := covering(self._known.values(), labels, now):
            return Silencing(Silenced.YES, by)
        return Silencing(Silenced.UNKNOWN if self._unjudged else Silenced.NO)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether no incident may open for such an alert: it is silenced, or nobody has even tried to look yet."""
        return not self._has_tried or self.silencing_of(labels).silenced is Silenced.YES

    def state(self) -> SilencesState:
        """How much is known of them."""
        now = self._clock.now()
        return SilencesState(
            known=not self._clients or (self._is_fresh(now) and not self._unjudged),
            active=sum(one.is_in_force(now) for one in (*self._known.values(), *self._own)),
            read_at=self._read_at,
            last_error=self._last_error,
        )

    async def current(self) -> list[Silence]:
        """As Alertmanager has them now, and those that are kept here; those in force first. Raises UnreachableError."""
        self._require()
        if self._clients and not await self._read_all():
            raise UnreachableError(self._last_error, remedy="fleetctl status")
        order = {"active": 0, "pending": 1, "expired": 2}
        found = [*self._known.values(), *self._own]
        return [one.to_wire() for one in sorted(found, key=lambda s: (order[s.state], s.ends_at, s.id))]

    async def add(self, request: SilenceRequest) -> Silence:
        """Make it at the first peer that answers; peers tell each other. Returns it as Alertmanager has it. Without an
        Alertmanager, and when it is to hold here alone, it is kept here.

        Raises BadInputError (a matcher that is refused) and UnreachableError.
        """
        self._require()
        for matcher in request.matchers:
            try:
                Matcher(matcher.name, matcher.op, matcher.value)
            except AlertsError as error:
                raise BadInputError(f"matchers: {matcher.name}: {error}") from None
        if all(matcher.op in ("=", "=~") and matcher.value == "" for matcher in request.matchers):
            raise BadInputError("matchers: at least one must name a value", remedy="e.g. alertname=LLMNodeDown")
        if self._local is not None and (request.local or not self._clients):
            return await self._local.add(request)
        now = self._clock.now()
        body: dict[str, Any] = {
            "matchers": [encode_matcher(one) for one in request.matchers],
            "startsAt": rfc3339(now),
            "endsAt": rfc3339(now + request.duration_s),
            "createdBy": request.created_by,
            "comment": request.comment,
        }

        async def make(client: AlertmanagerClient) -> Silence:
            silence_id = await client.add_silence(body)
            made = await client.silence(silence_id)
            if made is None:
                raise UnreachableError(f"{client.url}: silence {silence_id} was made and can't be read")
            known = decode_silence(made)
            self._known[known.id] = known  # honoured at once
            log.info("silence.added", silence_id=known.id, by=request.created_by, ends_at=known.ends_at)
            return known.to_wire()

        return await self._at_first(make)

    async def expire(self, silence_id: str) -> Silence:
        """End it now. Raises BadInputError when there is none of this id, or it is over."""
        self._require()
        if self._local is not None and (silence_id.startswith(PREFIX) or not self._clients):
            return await self._local.expire(silence_id)

        async def end(client: AlertmanagerClient) -> Silence:
            found = await client.silence(silence_id)
            if found is None:
                raise BadInputError(f"there is no silence {silence_id[:100]}", remedy="fleetctl silence list")
            if decode_silence(found).state == "expired":
                raise BadInputError(f"silence {silence_id[:100]} is over already")
            await client.expire(silence_id)
            after = decode_silence(await client.silence(silence_id) or {**found, "status": {"state": "expired"}})
            self._known[after.id] = after
            log.info("silence.expired", silence_id=after.id)
            return after.to_wire()

        return await self._at_first(end)

    async def _at_first(self, work: Callable[[AlertmanagerClient], Awaitable[T]]) -> T:
        """The work at the first peer that answers."""
        last: FleetctlError | None = None
        for client in self._clients:
            try:
                async with asyncio.timeout(READ_WITHIN_S):
                    return await work(client)
            except UnreachableError as error:
                last = error
            except TimeoutError:
                last = UnreachableError(f"{client.url}: no answer within {READ_WITHIN_S:.0f} s")
            except ValueError as error:
                last = UnreachableError(f"{client.url}: an answer that can't be read: {error}")
        assert last is not None
        raise last

    async def _read(self, client: AlertmanagerClient) -> list[dict[str, Any]] | str:
        """The peer's silences, or why not."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await client.silences()
        except TimeoutError:
            return f"{client.url}: no answer within {READ_WITHIN_S:.0f} s"
        except FleetctlError as error:
            return error.message

    def _take(self, trees: list[dict[str, Any]]) -> None:
        known: dict[str, KnownSilence] = {}
        unjudged = 0
        for tree in trees[:MAX_SILENCES]:
            try:
                one = decode_silence(tree)
            except ValueError as error:
                status = tree.get("status")
                if not (isinstance(status, dict) and status.get("state") == "expired"):
                    unjudged += 1
                    log.warning("silence.not_understood", silence_id=str(tree.get("id"))[:100], why=str(error))
                continue
            # Peers may differ for a moment: what ended anywhere has ended.
            before = known.get(one.id)
            if before is None or one.state == "expired":
                known[one.id] = one
        self._known, self._unjudged = known, unjudged + max(0, len(trees) - MAX_SILENCES)
        self._read_at = self._clock.now()

    def _is_fresh(self, now: float) -> bool:
        return self._read_at is not None and now - self._read_at <= STALE_AFTER_S

    @property
    def _own(self) -> tuple[KnownSilence, ...]:
        return self._local.known if self._local is not None else ()

    def _require(self) -> None:
        if not self._clients and self._local is None:
            raise BadInputError(
                "no Alertmanager is configured, and silences are kept there",
                remedy="set alertmanagers: [http://HOST:9093] in the controller's settings and restart it",
            )
