"""Shadows: copies of users' requests go to another pool or revision, and the answers are compared.

Users notice nothing: a copy is sent once the user's request has its node, nobody waits for it, and what it meets
changes neither what is known of nodes' health nor any count of users. Each rule has so many copies in flight at a
gateway, and one more is left out. What is kept of a user's answer is bounded, and gone once it was compared.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from fleetctl.gateway.http.exchange import REQUEST_ID, Exchange, KeptBody, new_request_id
from fleetctl.gateway.http.node_client import NodeAnswer, NodeClient, NodeClientError
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_keys import NO_NODE_KEYS, NodeKeys
from fleetctl.gateway.nodes.table import Endpoint, Table
from fleetctl.gateway.requests.answer_text import AnswerReader, AnswerText
from fleetctl.gateway.requests.chooser import Chooser
from fleetctl.gateway.requests.continuation import HANDOFF_HEADER, PROGRESS_HEADER
from fleetctl.gateway.requests.fates import Outcome, ProxiedRequest
from fleetctl.gateway.requests.model_names import OWN_ENGINE
from fleetctl.gateway.requests.place import Job, Placed
from fleetctl.gateway.requests.shadow_report import ShadowReports, ShadowResult
from fleetctl.gateway.routing.json_cost import with_fields
from fleetctl.gateway.routing.orders import share_position
from fleetctl.traffic_rule import ShadowSpec, TrafficRule

log = structlog.get_logger()

SHADOW_HEADER = b"x-fleet-shadow"  # tells a node whose copy it has: it is in its log, and seeds are of that id
ID_PREFIX = "shadow-"
MAX_KEPT_BYTES = 1024 * 1024  # of one user's answer; as much is read of its copy's
SILENCE_LIMIT_S = 60.0  # a copy of which nothing was heard for so long is given up
READ_BYTES = 32 * 1024  # of a kept answer that are parsed without a pause
_NOT_COPIED = frozenset({b"x-request-id", b"traceparent", b"tracestate", HANDOFF_HEADER, PROGRESS_HEADER})


class CopyBody(NamedTuple):
    """The body of a copy. `is_repeatable`: the same weights give the same words, so words may be compared."""

    body: bytes
    is_repeatable: bool


class _Sampling(msgspec.Struct):
    temperature: float | None = None
    seed: int | None = None


_decode_sampling = msgspec.json.Decoder(_Sampling).decode


def copy_body(body: bytes, model: str | None, *, is_seeded_by_id: bool) -> CopyBody:
    """The user's body for another node. `model`: the name there, None: the same.

    `is_seeded_by_id`: both nodes draw with a seed of the user's request id where the body has none.
    """
    try:
        given = _decode_sampling(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_repeatable = False
    else:
        is_repeatable = given.temperature == 0 or given.seed is not None or is_seeded_by_id
    return CopyBody(body if model is None else with_fields(body, {"model": model}), is_repeatable)


class _Copy:
    """One copy in flight."""

    __slots__ = ("answer", "is_seeded_by_id", "job", "model", "proxied", "rule", "target", "task", "user_ended")

    def __init__(
        self, rule: TrafficRule, proxied: ProxiedRequest, where: Placed, target: Endpoint, model: str | None
    ) -> None:
        """`model`: what the target calls the model that is asked for; None: as the user does."""
        self.rule = rule
        self.proxied = proxied
        self.job = where.job
        self.target = target
        self.model = model
        self.is_seeded_by_id = where.endpoint.engine == OWN_ENGINE and target.engine == OWN_ENGINE
        self.answer = KeptBody(MAX_KEPT_BYTES)
        self.user_ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Shadows:
    """Owner of the copies. Threading: event loop only."""

    def __init__(
        self,
        client: NodeClient,
        loads: Loads,
        chooser: Chooser,
        registry: CollectorRegistry,
        *,
        silence_limit_s: float = SILENCE_LIMIT_S,
        keys: NodeKeys = NO_NODE_KEYS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._keys = keys
        self._loads = loads
        self._chooser = chooser
        self._silence_limit_s = silence_limit_s
        self._clock = clock
        self._now = now
        self._table: Table | None = None
        self._rules: tuple[TrafficRule, ...] = ()
        self._copies: dict[str, _Copy] = {}  # by the user's request id, until that has ended
        self._in_flight: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reports = ShadowReports(registry)

    def note_placed(self, exchange: Exchange, proxied: ProxiedRequest, where: Placed) -> None:
        """A user's request has its node: send a copy when a rule says so. Never waits, never raises."""
        if not self._rules or where.answer.status >= 400:
            return
        job = where.job
        if job.body is None or not job.is_generation:
            return
        now = self._now()
        for rule in self._rules:
            spec = rule.spec
            assert isinstance(spec, ShadowSpec)
            if (
                rule.is_in_force(now)
                and spec.model in (None, job.facts.model)
                and share_position(rule.id, proxied.request_id) < spec.share
            ):
                self._begin(exchange, proxied, where, rule, spec)
                return

    def note_ended(self, proxied: ProxiedRequest) -> None:
        """The user's request has its fate."""
        if self._copies and (copy := self._copies.pop(proxied.request_id, None)) is not None:
            copy.user_ended.set()
            if proxied.outcome is not Outcome.FINISHED and copy.task is not None:
                copy.task.cancel()  # there is nothing to compare with

    def note_table(self, table: Table) -> None:
        """The routing table in use from now on."""
        self._table = table
        self._rules = tuple(rule for rule in table.rules if isinstance(rule.spec, ShadowSpec))
        self.reports.keep_rules(self._rules)

    async def aclose(self) -> None:
        """End every copy."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed, rule: TrafficRule, spec: ShadowSpec
    ) -> None:
        if self._in_flight[rule.id] >= spec.cap:
            self.reports.note(rule.id, ShadowResult.DROPPED)
            return
        if is_of(where.endpoint, spec):
            self.reports.note(rule.id, ShadowResult.SAME_NODES)
            return
        target = self._target(where.job, spec)
        if target is None:
            self.reports.note(rule.id, ShadowResult.NO_NODE)
            return
        assert self._table is not None
        asked = where.job.facts.model
        is_other = target.model not in ("", asked) and self._table.has_model(asked)
        copy = _Copy(rule, proxied, where, target, target.model if is_other else None)
        exchange.copy_to.append(copy.answer.note)
        self._in_flight[rule.id] += 1
        self._copies[proxied.request_id] = copy
        copy.task = asyncio.create_task(self._carry(copy), name="gateway.shadow")
        self._tasks.add(copy.task)
        copy.task.add_done_callback(lambda task: self._note_done(copy, task))

    def _note_done(self, copy: _Copy, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        copy.answer.close()
        self._in_flight[copy.rule.id] -= 1
        if task.cancelled():
            self.reports.note(copy.rule.id, ShadowResult.USER_ENDED)
        elif (error := task.exception()) is not None:
            log.error("shadow.crashed", rule=copy.rule.id, request_id=copy.proxied.request_id, exc_info=error)
            self.reports.note(copy.rule.id, ShadowResult.FAILED)

    def _target(self, job: Job, spec: ShadowSpec) -> Endpoint | None:
        """A node of the shadow's, the best of them by prefix and load; of the request's own model where it has one."""
        table = self._table
        assert table is not None
        nodes = frozenset(one.node for one in table.active if one.is_well and is_of(one, spec))
        own = frozenset(one.node for one in table.candidates(job.facts.model)) & nodes
        if not nodes:
            return None
        facts = job.facts
        if not own:  # another model is what is judged
            facts = facts._replace(model=next(one.model for one in table.active if one.node in nodes))
        endpoint = self._chooser.choose_among(table, facts, own or nodes).endpoint
        if endpoint is None or self._loads.is_suspect(endpoint.node):
            return None
        if facts.blocks:  # the next copy with this beginning finds it there, as users' requests do
            self._chooser.index.note_routed(endpoint.node, facts.blocks)
        return endpoint

    async def _carry(self, copy: _Copy) -> None:
        job, target, rule_id = copy.job, copy.target, copy.rule.id
        assert job.body is not None
        body = copy_body(job.body, copy.model, is_seeded_by_id=copy.is_seeded_by_id)
        load = self._loads.begin(target.node, job.facts.input_tokens, job.facts.output_estimate)
        try:
            found, shadow_ttft_s = await self._answer(copy, body.body)
        finally:
            load.end()
        if isinstance(found, ShadowResult):
            self.reports.note(rule_id, found)
            return
        await copy.user_ended.wait()
        proxied = copy.proxied
        if job.facts.stream and proxied.ttft_s is not None and not proxied.moves:
            self.reports.note_ttft(rule_id, proxied.ttft_s - proxied.queue_wait_s, shadow_ttft_s)
        if copy.answer.is_too_long:
            self.reports.note(rule_id, ShadowResult.TOO_LONG)
            return
        user = await _read_kept(copy.answer.parts, is_stream=job.facts.stream)
        self.reports.note_lengths(rule_id, user, found)
        if body.is_repeatable:
            self.reports.note_comparison(rule_id, proxied.request_id, user, found)
        self.reports.note(rule_id, ShadowResult.COMPARED if body.is_repeatable else ShadowResult.MEASURED)

    async def _answer(self, copy: _Copy, body: bytes) -> tuple[AnswerText | ShadowResult, float]:
        """What the copy's node says, and seconds until it began to."""
        job, user_id, began = copy.job, copy.proxied.request_id, self._clock()
        request_id = f"{ID_PREFIX}{user_id}"
        if REQUEST_ID.fullmatch(request_id.encode("latin-1")) is None:
            request_id = f"{ID_PREFIX}{new_request_id()}"
        headers = [one for one in self._keys.headers(job.headers, copy.target) if one[0].lower() not in _NOT_COPIED]
        headers += [(b"x-request-id", request_id.encode()), (SHADOW_HEADER, user_id.encode())]
        answer: NodeAnswer | None = None
        first_s = 0.0
        try:
            async with asyncio.timeout(self._silence_limit_s) as limit:
                answer = await self._client.request(
                    job.method, copy.target.base, job.target, headers=headers, body=body
                )
                if answer.status >= 400:
                    is_refusal = answer.status in (429, 503)
                    return (ShadowResult.REFUSED if is_refusal else ShadowResult.FAILED), 0.0
                reader = AnswerReader(is_stream=answer.content_type == "text/event-stream")
                size = 0
                while data := await answer.read_any():
                    first_s = first_s or self._clock() - began
                    limit.reschedule(asyncio.get_running_loop().time() + self._silence_limit_s)
                    reader.feed(data)
                    size += len(data)
                    if size > MAX_KEPT_BYTES:
                        return ShadowResult.TOO_LONG, first_s
                text = reader.finish()
                return (text if text.is_whole else ShadowResult.FAILED), first_s
        except (NodeClientError, TimeoutError) as error:
            log.info("shadow.failed", request_id=user_id, node=copy.target.node, error=type(error).__name__)
            return ShadowResult.FAILED, first_s
        finally:
            if answer is not None:
                answer.release()


def is_of(endpoint: Endpoint, spec: ShadowSpec) -> bool:
    """Whether the node belongs to the shadow's pool or revision."""
    return endpoint.pool == spec.pool if spec.pool is not None else endpoint.revision == spec.revision


async def _read_kept(parts: Sequence[bytes], *, is_stream: bool) -> AnswerText:
    """What a kept answer says. Other requests have their turn meanwhile."""
    reader, num_read = AnswerReader(is_stream=is_stream), 0
    for part in parts:
        reader.feed(part)
        num_read += len(part)
        if num_read > READ_BYTES:
            num_read = 0
            await asyncio.sleep(0)
    return reader.finish()
