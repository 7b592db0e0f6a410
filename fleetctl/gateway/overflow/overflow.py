"""Which requests go outside, and their budget: the rule, the reservation, the request, the settlement."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import structlog

from fleetctl.gateway.overflow import bedrock_endpoint, openai_endpoint
from fleetctl.gateway.overflow.bedrock_endpoint import AwsSigner
from fleetctl.gateway.overflow.ledger import Amount, Exhausted, Ledger, Reservation, micros_of
from fleetctl.gateway.overflow.outside import NotExpressibleError, OutsideAnswer, OutsideError, OutsideRequest
from fleetctl.gateway.overflow.overflow_metrics import OverflowMetrics
from fleetctl.gateway.routing.json_cost import is_cheap_to_parse
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.overflow import OverflowEndpoint, OverflowModel, OverflowReason, OverflowSettings
from fleetctl.traffic_rule import OverflowSpec, TrafficRule

log = structlog.get_logger()

NODE_PREFIX = "overflow/"  # of an endpoint's name where a node's would stand


@dataclass(frozen=True, slots=True)
class Exit:
    """A way out of the house for one request."""

    endpoint: OverflowEndpoint
    model: OverflowModel
    reason: OverflowReason


def find_exit(
    endpoints: Sequence[OverflowEndpoint],
    *,
    reason: OverflowReason,
    model: str | None,
    tenant: str,
    priority: str | None = None,
    wait_s: float | None = None,
    order: OverflowSpec | None = None,
) -> Exit | None:
    """The first endpoint whose rule fits; None keeps the request in the house. Pure.

    `wait_s`: how long the least loaded node's oldest request waits; None: not known, which fits no rule. `order`: the
    traffic rule in force; None: what the endpoint's settings say holds.
    """
    if order is not None and order.state == "off":
        return None
    for endpoint in endpoints:
        if reason not in endpoint.when and (order is None or reason not in order.when):
            continue
        if not (tenant in endpoint.tenants or "*" in endpoint.tenants):
            continue
        if not ("*" in endpoint.classes or priority in endpoint.classes):
            continue
        if reason == "queue_wait" and (wait_s is None or wait_s <= endpoint.queue_wait_s):
            continue
        for one in endpoint.models:
            if one.model == model:
                return Exit(endpoint, one, reason)
    return None


def order_for(rules: Iterable[TrafficRule], model: str | None, now: float) -> OverflowSpec | None:
    """What is ordered of requests for this model: by a rule for the model, else for all; of several by the last. Pure.

    `now`: Unix seconds.
    """
    found: OverflowSpec | None = None
    for rule in sorted(rules, key=lambda one: one.made_at):
        spec = rule.spec
        if not isinstance(spec, OverflowSpec) or not rule.is_in_force(now) or spec.model not in (None, model):
            continue
        if found is None or found.model is None or spec.model is not None:
            found = spec
    return found


class SentOutside:
    """A request that went out: its answer, and its budget, which is settled when the block ends.

    As a context manager; `answer.usage` at its end is what is settled. Without usage the reservation stays spent,
    unless the endpoint refused the request.
    """

    def __init__(self, way: Exit, answer: OutsideAnswer, reservation: Reservation, overflow: Overflow) -> None:
        self.way = way
        self.answer = answer
        self._reservation = reservation
        self._overflow = overflow

    @property
    def node(self) -> str:
        """What stands where a node's name would."""
        return NODE_PREFIX + self.way.endpoint.name

    async def __aenter__(self) -> SentOutside:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer.close()
        used = self.answer.usage
        if used is not None:
            settled = self._overflow.settle(self.way, self._reservation, used.input_tokens, used.output_tokens)
        elif self.answer.status >= 400:
            settled = self._overflow.settle(self.way, self._reservation, 0, 0)
        else:
            self._overflow.note_unsettled(self._reservation)
            return
        await asyncio.shield(settled)


class Overflow:
    """The endpoints, their budgets and their connections. Threading: event loop only. `aclose()` is owed."""

    def __init__(
        self,
        settings: OverflowSettings,
        metrics: OverflowMetrics,
        run_dir: Path,
        *,
        wait_s: Callable[[str | None], float | None] = lambda model: None,
        is_served_here: Callable[[str | None], bool] = lambda model: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`wait_s`: how long the least loaded node of a model lets its oldest request wait; `now`: Unix seconds.

        Raises BadInputError when an endpoint can't be opened.
        """
        self._endpoints = settings.endpoints
        self.metrics = metrics
        self._ledger = Ledger(run_dir)
        self._wait_s = wait_s
        self._is_served_here = is_served_here
        self._now = now
        self._signers = {
            one.name: AwsSigner(one.region) for one in self._endpoints if one.region and one.kind == "bedrock"
        }
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), skip_auto_headers=("User-Agent",), trust_env=True
        )
        self._settling: set[asyncio.Task[None]] = set()
        self._rules: tuple[TrafficRule, ...] = ()  # those about overflow
        self._reasons = frozenset(reason for one in self._endpoints for reason in one.when)

    def use_rules(self, rules: Iterable[TrafficRule]) -> None:
        """The traffic rules of a new table."""
        self._rules = tuple(rule for rule in rules if isinstance(rule.spec, OverflowSpec))

    async def describe(self) -> list[dict[str, Any]]:
        """Each endpoint with its models and the share of its budget that is left; None while that is unknown."""
        told = []
        for endpoint in self._endpoints:
            try:
                ratios = await asyncio.to_thread(self._ledger.left_ratios, endpoint, self._now())
            except (BadInputError, OSError):
                ratios = {"hour": math.nan, "day": math.nan}
            self.metrics.set_left(endpoint.name, ratios)
            left = min(ratios.values())
            models = [one.model for one in endpoint.models]
            is_known = not math.isnan(left)
            told.append({"endpoint": endpoint.name, "models": models, "budget_left": left if is_known else None})
        return told

    async def aclose(self) -> None:
        """Settle what is under way and close connections."""
        if self._settling:
            await asyncio.wait(self._settling)
        await self._session.close()

    def exit_before(self, *, model: str | None, tenant: str, priority: str | None = None) -> Exit | None:
        """The way out of a request that no node was asked about: its model is not here, or all nodes are behind."""
        order = self._order_for(model)
        reasons = self._reasons if order is None else self._reasons.union(order.when)
        find = partial(find_exit, self._endpoints, model=model, tenant=tenant, priority=priority, order=order)
        if "model_not_here" in reasons and not self._is_served_here(model):
            return find(reason="model_not_here")
        return find(reason="queue_wait", wait_s=self._wait_s(model)) if "queue_wait" in reasons else None

    def exit_after(
        self, *, is_overload: bool, model: str | None, tenant: str, priority: str | None = None
    ) -> Exit | None:
        """The way out of a request that no node took."""
        reason: OverflowReason = "overloaded" if is_overload else "no_node"
        order = self._order_for(model)
        return find_exit(self._endpoints, reason=reason, model=model, tenant=tenant, priority=priority, order=order)

    def _order_for(self, model: str | None) -> OverflowSpec | None:
        return order_for(self._rules, model, self._now()) if self._rules else None

    async def send(self, way: Exit, path: str, body: bytes, answer_id: str) -> SentOutside | None:
        """Reserve the request's upper bound and send it. None: it stays in the house. Raises OutsideError."""
        endpoint = way.endpoint
        try:
            request = self._request(way, path, body)
        except NotExpressibleError as error:
            self._stay(way, "not_expressible", field=str(error))
            return None
        reservation = await self._reserve(way, request)
        if reservation is None:
            return None
        try:
            answer = await self._ask(way, request, answer_id)
        except OutsideError as error:
            if error.was_sent:
                self.note_unsettled(reservation)
            else:
                await self.settle(way, reservation, 0, 0)
            self.metrics.requests.labels(endpoint.name, "failed").inc()
            log.warning("overflow.failed", endpoint=endpoint.name, error=str(error))
            raise
        except BadInputError as error:
            await self.settle(way, reservation, 0, 0)
            self._stay(way, "no_key", error=error.message)
            return None
        except BaseException:  # the client hung up while we waited for the head
            self.note_unsettled(reservation)
            raise
        log.info("overflow.sent", endpoint=endpoint.name, reason=way.reason, status=answer.status)
        return SentOutside(way, answer, reservation, self)

    def settle(self, way: Exit, reservation: Reservation, input_tokens: int, output_tokens: int) -> asyncio.Task[None]:
        """Write what was used in the place of what was reserved. It goes on when the caller is cancelled."""
        name = way.endpoint.name
        micros = micros_of(input_tokens, way.model.input_cost) + micros_of(output_tokens, way.model.output_cost)
        self.metrics.tokens.labels(name, "input").inc(input_tokens)
        self.metrics.tokens.labels(name, "output").inc(output_tokens)
        self.metrics.cost.labels(name).inc(micros / 1e6)
        used = Amount(input_tokens + output_tokens, micros)
        task = asyncio.get_running_loop().create_task(self._settle(way.endpoint, reservation, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    def note_unsettled(self, reservation: Reservation) -> None:
        """The endpoint never said what it used: what was reserved stays spent."""
        self.metrics.tokens.labels(reservation.endpoint, "unsettled").inc(reservation.amount.tokens)
        self.metrics.cost.labels(reservation.endpoint).inc(reservation.amount.micros / 1e6)

    def _request(self, way: Exit, path: str, body: bytes) -> OutsideRequest:
        if not is_cheap_to_parse(body):
            raise NotExpressibleError("the body: too many JSON values to read")
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError) as error:  # routing reads no more of a body than it needs
            raise NotExpressibleError("the body: not valid JSON") from error
        if path not in openai_endpoint.PATHS or not isinstance(value, dict):
            raise NotExpressibleError(path)
        if way.endpoint.kind == "bedrock":
            return bedrock_endpoint.outside_request(path, value, way.endpoint, way.model)
        return openai_endpoint.outside_request(path, value, way.endpoint, way.model)

    async def _reserve(self, way: Exit, request: OutsideRequest) -> Reservation | None:
        endpoint, model = way.endpoint, way.model
        micros = micros_of(request.max_input_tokens, model.input_cost)
        micros += micros_of(request.max_output_tokens, model.output_cost)
        amount = Amount(request.max_input_tokens + request.max_output_tokens, micros)
        try:
            made = await asyncio.to_thread(self._ledger.reserve, endpoint, amount, self._now())
            self.metrics.set_left(
                endpoint.name, await asyncio.to_thread(self._ledger.left_ratios, endpoint, self._now())
            )
        except (BadInputError, OSError) as error:
            self.metrics.set_left(endpoint.name, {"hour": float("nan"), "day": float("nan")})
            self._stay(way, "budget_unknown", error=str(error), remedy=getattr(error, "remedy", None))
            return None
        if isinstance(made, Exhausted):
            self._stay(way, "no_budget", limit=made.limit)
            return None
        return made

    async def _ask(self, way: Exit, request: OutsideRequest, answer_id: str) -> OutsideAnswer:
        signer = self._signers.get(way.endpoint.name)
        if signer is None:
            return await openai_endpoint.send(self._session, way.endpoint, request)
        return await bedrock_endpoint.send(
            self._session, way.endpoint, request, signer, f"chatcmpl-{answer_id}", way.model.model
        )

    async def _settle(self, endpoint: OverflowEndpoint, reservation: Reservation, used: Amount) -> None:
        try:
            await asyncio.to_thread(self._ledger.settle, reservation, used, self._now())
            ratios = await asyncio.to_thread(self._ledger.left_ratios, endpoint, self._now())
        except (BadInputError, OSError) as error:
            # What was reserved stays spent: never less than the truth.
            log.error("overflow.not_settled", endpoint=endpoint.name, error=str(error))
            return
        self.metrics.set_left(endpoint.name, ratios)

    def _stay(self, way: Exit, result: str, **facts: Any) -> None:
        self.metrics.requests.labels(way.endpoint.name, result).inc()
        log.warning("overflow.not_sent", endpoint=way.endpoint.name, reason=result, **facts)
