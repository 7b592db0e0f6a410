"""Who is let in: the tenant of a key, its limits, orders to shed, and a seat at a node. Knows no node and no prompt.

The order of questions is by what an answer costs: key, model, cap, shed, limits, then the queue for a seat. They are in
one file for that order's sake.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from fleetctl.gateway.admission.demand import Demand, Usage
from fleetctl.gateway.admission.fair_queue import Waiter
from fleetctl.gateway.admission.seat_queue import Lane, SeatQueue
from fleetctl.gateway.admission.shedding import ShedOrder, shed_by, shed_retry_after_s
from fleetctl.gateway.admission.tenant import ANONYMOUS, Tenant, TenantBook
from fleetctl.gateway.admission.tenant_account import Charge, Refusal, TenantAccount
from fleetctl.gateway.admission.tenants_file import read_tenants
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.kit.api_key import key_of
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.shared_counters import SharedCounters
from fleetctl.priority_class import PriorityClass
from fleetctl.settings.admission import AdmissionSettings

log = structlog.get_logger()

RELOAD_EVERY_S = 2.0
SWEEP_EVERY_S = 0.05
MAX_RETRY_AFTER_S = 3600
MAX_KNOWN_KEYS = 4096
_WORDS = {
    Refusal.REQUESTS: "requests per minute",
    Refusal.INPUT_TOKENS: "input tokens per minute",
    Refusal.OUTPUT_TOKENS: "output tokens per minute",
    Refusal.CONCURRENCY: "requests at once",
}


class Admitted:
    """A request that was let in. `release` is owed exactly once."""

    __slots__ = ("_admission", "_charge", "_demand", "_lane", "_waiter", "account", "max_output_tokens", "queue_wait_s")

    def __init__(
        self, admission: Admission, account: TenantAccount, charge: Charge, demand: Demand, lane: Lane | None
    ) -> None:
        self.account = account
        self.queue_wait_s = 0.0
        cap = account.tenant.limits.max_output_tokens
        self.max_output_tokens = cap if demand.output_tokens is None else None  # to be set in the body: it names none
        self._admission: Admission | None = admission
        self._charge = charge
        self._demand = demand
        self._lane = lane
        self._waiter: Waiter | None = None

    @property
    def input_tokens(self) -> int:
        """Its prompt's tokens, as estimated."""
        return self._demand.input_tokens

    def note_seated(self) -> None:
        """A node took it."""
        if self._lane is not None and self._admission is not None:
            self._lane.seats.note_seated(self._admission.clock())

    async def wait_again(self, retry_after_s: int = 1) -> Refusal | None:
        """Every node refused it as overloaded: wait for a seat again, before others. None: it has one.

        `retry_after_s`: when the nodes said to come again.
        """
        if self._lane is None or self._admission is None:
            return Refusal.QUEUE_LIMIT
        return await self._admission.wait_again(self, self._lane, retry_after_s)

    def release(self, usage: Usage | None) -> None:
        """It ended and used this; None: no node worked on it. Later calls do nothing."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.end(self, usage)


class Admission:
    """One gateway's admission. Without a tenants file there is one anonymous tenant without limits.

    `counters`: shared with the other workers of this gateway, which hold its limits together then; without them each
    of `num_workers` holds its part. `lane_of` gives the routed model of a request; `now` is Unix seconds, `clock`
    monotonic ones. Raises BadInputError when the tenants file can't be used.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        tenants_file: Path | None = None,
        node_key: str | None = None,
        lane_of: Callable[[str | None], str] = lambda model: "",
        most_outstanding: Callable[[str], int | None] = lambda lane: None,
        counters: SharedCounters | None = None,
        num_workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self.now = now
        self.queue = SeatQueue(settings, clock=clock, most_outstanding=most_outstanding)
        self.orders: tuple[ShedOrder, ...] = ()
        self.queue_waits_s: Callable[[PriorityClass, float], None] = lambda priority, wait_s: None
        self.num_without_key = 0
        self.num_unknown_keys = 0
        self.num_reloads = {"loaded": 0, "failed": 0}
        self.reload_has_failed = False
        self._counters = counters
        self._num_workers = num_workers
        self._share = 1.0
        # Headers that were right, in memory only and until the next reload. A dict's hash is seeded for each process,
        # so that the time of a look-up tells nothing of keys.
        self._known: dict[bytes, TenantAccount] = {}
        self._lane_of = lane_of
        self._node_authorization = None if node_key is None else (b"authorization", f"Bearer {node_key}".encode())
        self._path = tenants_file
        self._signature: tuple[int, int, int] | None = None
        self._book: TenantBook | None = None
        self.accounts: dict[str, TenantAccount] = {}
        if tenants_file is None:
            self._anonymous: TenantAccount | None = TenantAccount(Tenant(ANONYMOUS), clock())
            self.accounts[ANONYMOUS] = self._anonymous
        else:
            self._anonymous = None
            self._signature = _signature(tenants_file)
            self.use_book(read_tenants(tenants_file))

    @property
    def wants_keys(self) -> bool:
        """Whether clients need a key of ours: then their Authorization header is for us and for no node."""
        return self._anonymous is None

    def authenticate(self, authorization: bytes | None) -> TenantAccount | ErrorAnswer:
        """Who asks, by the value of the Authorization header; before anything of the request's body is read."""
        return self.account_of(authorization) or self._unauthenticated(authorization)

    def node_headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """A client's headers (names in lower case) as a node may have them: a key that is for us stays here, and the
        node gets its own."""
        if self._anonymous is not None and self._node_authorization is None:
            return headers
        kept = [header for header in headers if header[0] != b"authorization"]
        if self._node_authorization is not None:
            kept.append(self._node_authorization)
        return kept

    def account_of(self, authorization: bytes | None) -> TenantAccount | None:
        """The account of the key's tenant; None when there is no key, or none that we know."""
        if self._anonymous is not None:
            return self._anonymous
        known = self._known.get(authorization) if authorization is not None else None
        if known is not None:
            return known
        key = key_of(authorization)
        tenant = self._book.tenant_of(key) if key is not None and self._book is not None else None
        if tenant is None or authorization is None:
            return None
        if len(self._known) < MAX_KNOWN_KEYS:
            self._known[authorization] = self.accounts[tenant.name]
        return self.accounts[tenant.name]

    async def admit(self, account: TenantAccount, demand: Demand) -> Admitted | ErrorAnswer:
        """Let a request of the tenant in, perhaps after a wait in the queue, or say why not."""
        now, tenant = self.clock(), account.tenant
        is_free = not demand.is_work
        if tenant.models and not (is_free and demand.model is None) and not account.may_use(demand.model):
            return self._refused(account, Refusal.MODEL)
        if is_free:
            return Admitted(self, account, _NOTHING, demand, None)
        cap = tenant.limits.max_output_tokens
        if cap is not None and demand.output_tokens is not None and demand.output_tokens > cap:
            return self._refused(account, Refusal.OUTPUT_CAP)
        if self.orders:
            order = shed_by(self.orders, tenant, demand.request_id, self.now())
            if order is not None:
                return self._refused(account, Refusal.SHED, shed_retry_after_s(order, self.now()))
        charge = account.charge_of(demand.input_tokens, demand.output_tokens)
        refusal = account.refusal_of(charge, now)
        if refusal is not None:
            return self._refused(account, refusal[0], _whole_seconds(refusal[1]))
        account.admit(charge)
        if not self.queue.is_on:
            return Admitted(self, account, charge, demand, None)
        lane = self.queue.lane(self._lane_of(demand.model))
        if self.queue.take_free_seat(lane):
            return Admitted(self, account, charge, demand, lane)
        return await self._wait(Admitted(self, account, charge, demand, None), lane)

    async def _wait(self, admitted: Admitted, lane: Lane) -> Admitted | ErrorAnswer:
        refusal: Refusal | None = Refusal.QUEUE_LIMIT
        try:
            refusal = await self._wait_for_seat(admitted, lane, had_turn=False)
        finally:
            if refusal is not None:
                admitted.release(None)
        if refusal is None:
            return admitted
        return self._refused(admitted.account, refusal, lane.seats.retry_after_s)

    async def wait_again(self, admitted: Admitted, lane: Lane, retry_after_s: int) -> Refusal | None:
        """The seat that a request had was none: give it back and wait for another one."""
        admitted._lane = None
        lane.seats.give_back()
        lane.seats.note_overload(self.clock(), retry_after_s)
        refusal = await self._wait_for_seat(admitted, lane, had_turn=True)
        if refusal is not None:
            admitted.account.note_refused(refusal)
        return refusal

    async def _wait_for_seat(self, admitted: Admitted, lane: Lane, *, had_turn: bool) -> Refusal | None:
        demand, tenant, charge = admitted._demand, admitted.account.tenant, admitted._charge
        waiter = admitted._waiter
        began = self.clock()
        if waiter is None:
            waiter = admitted._waiter = Waiter(
                tenant.name,
                tenant.priority,
                charge.input_tokens + charge.output_tokens,
                began,
                tenant.weight,
                demand.size_bytes,
            )
        elif had_turn:
            lane.queue.note_cost(waiter.tenant, waiter.priority, -waiter.tokens, waiter.weight)
        try:
            refusal = await self.queue.wait_for_seat(lane, waiter, demand.deadline_at, had_turn=had_turn)
        finally:
            waited_s = self.clock() - began
            admitted.queue_wait_s += waited_s
            self.queue_waits_s(waiter.priority, waited_s)
        if refusal is None:
            admitted._lane = lane
        return refusal

    def end(self, admitted: Admitted, usage: Usage | None) -> None:
        """A request that was let in is over; called by `Admitted.release`."""
        lane, waiter = admitted._lane, admitted._waiter
        if admitted._charge is _NOTHING:
            return
        admitted.account.end(admitted._charge, usage)
        if lane is None:
            return
        if waiter is not None and usage is not None:
            more = usage.input_tokens + usage.output_tokens - waiter.tokens
            lane.queue.note_cost(waiter.tenant, waiter.priority, more, waiter.weight)
        self.queue.give_back(lane)

    def use_book(self, book: TenantBook) -> None:
        """Go by these tenants from now on. What is used already stays used; requests that are in stay in."""
        now = self.clock()
        self._book = book
        self._known.clear()
        for name, tenant in book.tenants.items():
            account = self.accounts.get(name)
            if account is None:
                account = self.accounts[name] = TenantAccount(tenant, now)
            else:
                account.use_tenant(tenant, now)
            self._share_limits(account, now)
        for name in [n for n in self.accounts if n not in book.tenants]:
            del self.accounts[name]

    def use_num_gateways(self, num: int) -> None:
        """From now on hold this gateway's part of every limit: so many share them."""
        self._share, now = 1.0 / max(1, num), self.clock()
        for account in self.accounts.values():
            self._share_limits(account, now)

    def exchange_counts(self) -> None:
        """Take up what other workers of this gateway let in, and tell them what is left; several times a second."""
        now = self.clock()
        for account in self.accounts.values():
            account.exchange(now)

    def _share_limits(self, account: TenantAccount, now: float) -> None:
        """Together with the other workers where that can be, else this worker's part."""
        if self._counters is not None and not account.is_joint and account.tenant.limits.are_shared:
            row = self._counters.row(f"tenant {account.tenant.name}")
            if row is not None:
                account.join(row, now)
        account.use_share(self._share if account.is_joint else self._share / self._num_workers, now)

    def use_orders(self, orders: Sequence[ShedOrder]) -> None:
        """Shed by these orders from now on, each until it expires."""
        self.orders = tuple(orders)

    async def run_forever(self) -> None:
        """Sweep the queue and look after the tenants file until cancelled."""
        looked_at = self.clock()
        while True:
            await asyncio.sleep(SWEEP_EVERY_S if self.queue.num_waiting else 5 * SWEEP_EVERY_S)
            self.queue.sweep()
            if self._path is not None and self.clock() - looked_at >= RELOAD_EVERY_S:
                looked_at = self.clock()
                await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Read the tenants file again when it is another one. A bad file changes nothing, and is told once."""
        assert self._path is not None
        signature = await asyncio.to_thread(_signature, self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            book = await asyncio.to_thread(read_tenants, self._path)
        except BadInputError as error:
            self.num_reloads["failed"] += 1
            self.reload_has_failed = True
            log.error("tenants.not_reloaded", error=error.message, remedy=error.remedy)
            return
        self.use_book(book)
        self.num_reloads["loaded"] += 1
        self.reload_has_failed = False
        log.info("tenants.reloaded", path=str(self._path), tenants=len(book.tenants), keys=len(book.names_by_digest))

    def as_json(self, authorization: bytes | None, *, may_see_all: bool) -> dict[str, Any] | None:
        """The body of `GET /gateway/tenants`: all tenants for who may see all, its own for a key; None: neither."""
        now = self.clock()
        own = self.account_of(authorization) if self.wants_keys else None
        if not may_see_all and own is None:
            return None
        shown = self.accounts.values() if may_see_all else [own] if own is not None else []
        waiting = {priority.value: count for priority, count in self.queue.counts().items()}
        return {
            "tenants": [account.as_json(now) for account in shown],
            "waiting": waiting if may_see_all else {},
            "lanes": [
                {"model": model, "waiting": num, "outstanding": out, "seats": seats, "oldest_wait_s": round(oldest, 3)}
                for model, num, out, seats, oldest in self.queue.lanes()
            ]
            if may_see_all
            else [],
        }

    def check_integrity(self) -> None:
        """Raises AssertionError when a count does not add up."""
        self.queue.check_integrity()
        for account in self.accounts.values():
            account.check_integrity()

    def _unauthenticated(self, authorization: bytes | None) -> ErrorAnswer:
        if authorization is None:
            self.num_without_key += 1
            message = "no API key: send it as `Authorization: Bearer KEY`"
        else:
            self.num_unknown_keys += 1
            message = "the API key is not known here"
        return ErrorAnswer(401, message, "invalid_request_error", "invalid_api_key")

    def _refused(self, account: TenantAccount, why: Refusal, retry_after_s: int | None = None) -> ErrorAnswer:
        account.note_refused(why)
        return refusal_answer(account.tenant, why, retry_after_s)


_NOTHING = Charge(0.0, 0.0)


def refusal_answer(tenant: Tenant, why: Refusal, retry_after_s: int | None) -> ErrorAnswer:
    """What the client is told: which limit, and when to come again."""
    match why:
        case Refusal.MODEL:
            names = ", ".join(tenant.models[:20])
            return ErrorAnswer(
                403, f"this key may use: {names}", "invalid_request_error", why.value, param="model", limit=why.value
            )
        case Refusal.OUTPUT_CAP:
            cap = tenant.limits.max_output_tokens
            return ErrorAnswer(
                400, f"at most {cap} tokens for this key", "invalid_request_error", why.value, param="max_tokens"
            )
        case Refusal.DEADLINE:
            message = "the deadline passed while the request waited for a node"
            return ErrorAnswer(504, message, "server_error", why.value)
        case Refusal.SHED:
            message = f"requests of class {tenant.priority.value} are turned away for now: the fleet is overloaded"
        case Refusal.QUEUE_FULL:
            message = "the nodes are full, and as many requests wait as may"
        case Refusal.QUEUE_LIMIT:
            message = "the nodes are full, and the request waited as long as it may"
        case _:
            message = f"this key's limit on {_WORDS[why]} is reached"
    return ErrorAnswer(429, message, "rate_limit_error", why.value, retry_after_s=retry_after_s or 1, limit=why.value)


def _whole_seconds(wait_s: float) -> int:
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(wait_s)))


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What is another one after each change of the file; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
