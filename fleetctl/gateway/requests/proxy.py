"""One request from its first byte to its fate: place it, relay the answer, move it when its node does not end it.

Until the client has something another node may begin anew; after that one goes on where the stream stands, with what
the node handed off or with what it told of its progress. A stream that can't go on ends with an error event: never a
silent cut, never a wait without end. Longer than others: it is one path with its exits, read from top to bottom.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.admission.tenant import ANONYMOUS
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.gateway.http.exchange import (
    BadDeadlineError,
    BadFramingError,
    BodyTooLargeError,
    ClientGoneError,
    Exchange,
    TooManyBodiesError,
    new_request_id,
)
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.node_watch import NodeWatch, WaitEnd
from fleetctl.gateway.nodes.table import Routing
from fleetctl.gateway.overflow.overflow import Overflow
from fleetctl.gateway.prompts.preparation import PromptOverBudgetError, PromptPreparation
from fleetctl.gateway.requests.cached_answers import CachedAnswers
from fleetctl.gateway.requests.continuation import Continuance, Continuations, StreamAccount
from fleetctl.gateway.requests.entry import Entry
from fleetctl.gateway.requests.explain import explain_choice
from fleetctl.gateway.requests.fates import Fates, Move, OpenTrace, Outcome, ProxiedRequest
from fleetctl.gateway.requests.model_names import MODEL_HEADER, ModelNames
from fleetctl.gateway.requests.outside_relay import OutsideRelay
from fleetctl.gateway.requests.place import DEADLINE_HEADER, Job, NotPlaced, Placed, Placer
from fleetctl.gateway.requests.poison import SETTLES_S, Poisoned, PoisonMemory
from fleetctl.gateway.requests.relay import Cut, ReceivedHandoff, Relay, id_header
from fleetctl.gateway.requests.shadow import Shadows
from fleetctl.gateway.requests.unserved import UnservedMemory
from fleetctl.gateway.routing.routing_facts import (
    CHAT_PATH,
    COMPLETION_PATH,
    GENERATION_PATHS,
    MOVABLE_PATHS,
    WORK_PATHS,
    BadBodyError,
    RoutingFacts,
    read_routing_facts,
)
from fleetctl.settings.gateway import GatewaySettings

log = structlog.get_logger()

MAX_SESSION_CHARS = 200
MAX_IN_FLIGHT = 4096
MOVE_PATIENCE_S = 10.0  # a stream without a node waits this long for one: a pause is better than a loss
MOVE_PAUSE_S = 0.2
MAX_MOVES = 32  # nodes that hand a request round in a circle must come to an end
HANDOFF = "handoff"  # why a request moved: its node wanted it
POISON = "poison"


class Proxy:
    """Serves proxied requests. `node_token` opens the nodes' internal routes."""

    def __init__(
        self,
        placer: Placer,
        routing: Routing,
        fates: Fates,
        metrics: GatewayMetrics,
        health: HealthMetrics,
        watch: NodeWatch,
        admission: Admission,
        shadows: Shadows,
        limits: GatewaySettings,
        *,
        node_token: str,
        move_patience_s: float,
        prompts: PromptPreparation | None,
        overflow: Overflow | None,
        cached: CachedAnswers | None,
        begin_trace: Callable[[Iterable[tuple[bytes, bytes]], float], OpenTrace] | None,
    ) -> None:
        """None: the settings want no such part."""
        self._placer = placer
        self._routing = routing
        self._names = ModelNames(limits.routing)
        self._entry = Entry(admission, placer)
        self._cached = cached
        self._outside = OutsideRelay(overflow, fates, metrics)
        self._fates = fates
        self._metrics = metrics
        self._watch = watch
        self._continuations = Continuations(node_token)
        self._relay = Relay(fates, metrics)
        self._prompts = prompts
        self._continue_by_text = limits.continue_by_text
        self._max_body_bytes = limits.http.max_body_bytes
        self._max_in_flight = MAX_IN_FLIGHT
        self._move_patience_s = move_patience_s
        self._poison = PoisonMemory(limits.retries.poison_memory_s)
        self._unserved = UnservedMemory()
        self._health = health
        self._begin_trace = begin_trace
        self._shadows = shadows
        self._exchanges: set[Exchange] = set()

    async def serve(self, exchange: Exchange) -> None:
        """Proxy one request and end it, whatever happens."""
        given = exchange.request_id()
        is_taken = given is not None and self._fates.is_in_flight(given)
        request_id = new_request_id() if given is None or is_taken else given
        proxied = self._fates.begin(request_id)
        if self._begin_trace is not None:
            proxied.trace = self._begin_trace(exchange.headers, proxied.started)
        self._exchanges.add(exchange)
        try:
            if is_taken:
                await self._refuse(exchange, proxied, answers.in_flight(f"request {given} is in flight here"))
            else:
                await self._serve(exchange, proxied)
        except asyncio.CancelledError:
            if not (exchange.is_gone or exchange.is_aborted):
                raise
            await self._end_cancelled(exchange, proxied)
        except Exception:
            log.exception("request.crashed", request_id=request_id)
            await self._fail(
                exchange, proxied, ErrorAnswer(500, "gateway error", "server_error", "internal"), "internal"
            )
        finally:
            self._exchanges.discard(exchange)
            exchange.close()
            self._entry.leave(proxied)
            if self._cached is not None:
                self._cached.keep(proxied)
            if proxied.outcome is None:
                self._fates.end(proxied, Outcome.FAILED, reason="interrupted")
            self._unserved.note_ended(proxied, time.monotonic())
            self._shadows.note_ended(proxied)

    async def read_question(self, exchange: Exchange) -> bytes | ErrorAnswer:
        """The body of a completion request that somebody wants explained, or what is wrong with it."""
        try:
            return await exchange.read_body(self._max_body_bytes)
        except (BodyTooLargeError, TooManyBodiesError, TimeoutError, ClientGoneError):
            return answers.bad_request("the body is too large, or did not come", status=413)

    def explain(self, body: bytes) -> dict[str, Any]:
        """Which node a completion request would go to, and why. Nothing is sent to a node. Raises BadBodyError."""
        facts = read_routing_facts(CHAT_PATH if b'"messages"' in body else COMPLETION_PATH, body)
        return explain_choice(self._routing.table, self._placer.chooser, self._names, facts, body)

    def retries_left(self) -> float:
        """Of the retry budget, now."""
        return self._placer.budget.left(time.monotonic())

    def abort_all(self) -> int:
        """End every request now, each with an error that its client sees. Returns how many there were."""
        aborted = list(self._exchanges)
        for exchange in aborted:
            exchange.abort()
        return len(aborted)

    async def _serve(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        account = self._entry.authenticate(exchange, proxied)
        if isinstance(account, ErrorAnswer):
            await self._refuse(exchange, proxied, account)
            return
        is_listing = exchange.path == "/v1/models" and exchange.method == "GET"
        if is_listing and (listing := self._names.listing(self._routing.table)) is not None:
            await exchange.answer(listing.status, listing.body, [*listing.headers, *id_header(proxied)])
            self._fates.end(proxied, Outcome.FINISHED, status=listing.status)
            return
        read = await self._read_job(exchange, proxied)
        if read is None:
            return
        if (known := self._poison.find(read.path, read.body, time.monotonic())) is not None:
            await self._refuse_poison(exchange, proxied, known)
            return
        if self._unserved.note_begun(proxied, read.path, read.body, time.monotonic()):
            self._metrics.asked_again.inc()
        exchange.watch()
        job = await self._entry.admit(read, proxied, account)
        if isinstance(job, ErrorAnswer):
            if not await self._outside.serve_refused(exchange, proxied, read, job):
                await self._refuse(exchange, proxied, job)
            return
        if self._cached is not None and await self._cached.serve(exchange, proxied, job):
            return
        if await self._outside.serve_unplaced(exchange, proxied, job):
            return
        kept = StreamAccount(job, keeps_text=self._continue_by_text)
        may_leave = self._outside.may_leave_when_full(job, proxied)
        where = await self._entry.place(job, proxied, may_wait=not may_leave)
        if may_leave and isinstance(where, NotPlaced) and where.is_overload:
            if await self._outside.serve_not_placed(exchange, proxied, job, where):
                return
            where = await self._entry.place(job, proxied)  # it stays, so it waits its turn
        if isinstance(where, Placed):
            self._shadows.note_placed(exchange, proxied, where)
        while True:
            if isinstance(where, NotPlaced):
                if await self._outside.serve_not_placed(exchange, proxied, job, where):
                    return
                if proxied.deaths and not exchange.has_begun:
                    where = await self._place_again(job, where, proxied)
            if isinstance(where, NotPlaced):
                await self._tell_not_placed(exchange, proxied, where)
                return
            try:
                end = await self._relay.relay(exchange, proxied, where, kept)
            finally:
                where.close()
            if end is None:
                return
            if isinstance(end, ReceivedHandoff):
                if proxied.moved >= MAX_MOVES:
                    await self._fail(exchange, proxied, answers.upstream_failed("moved too often"), "moved_too_often")
                    return
                where = await self._hand_over(end, where, kept, proxied)
                continue
            after = await self._after_cut(end, exchange, where, kept, proxied)
            if after is None:
                return
            where = after

    async def _place_again(self, job: Job, where: NotPlaced, proxied: ProxiedRequest) -> Placed | NotPlaced:
        """Another node for what one had and did not end, while there is patience, as a stream has it: on a machine that
        stands still for seconds the other nodes are silent too, and answer again."""
        until = time.monotonic() + self._move_patience_s
        until = until if job.deadline_at is None else min(until, job.deadline_at)
        again: Placed | NotPlaced = where
        while isinstance(again, NotPlaced) and await self._pauses(again, until, proxied):
            again = await self._placer.place(job, proxied)
        return again

    async def _pauses(self, where: NotPlaced, until: float, proxied: ProxiedRequest) -> bool:
        """Whether nodes are to be asked again, after a pause: there is patience, and it may still be sent."""
        if time.monotonic() >= until or where.given_up is not None or not self._placer.may_resend(proxied):
            return False
        await asyncio.sleep(MOVE_PAUSE_S)
        return True

    async def _hand_over(
        self, handoff: ReceivedHandoff, source: Placed, kept: StreamAccount, proxied: ProxiedRequest
    ) -> Placed | NotPlaced:
        """Another node, for what its node handed off."""
        # Nodes that passed it on without a single event of their own are not asked again.
        stuck = frozenset() if source.wait.has_forwarded else source.job.excluded
        job = self._continuations.of_handoff(handoff.data, kept, proxied)
        job = job._replace(excluded=stuck | {source.endpoint.node})
        where = await self._move(job, source, HANDOFF, kept, proxied)
        self._metrics.handoffs.labels("moved" if isinstance(where, Placed) else "failed").inc()
        return where

    async def _after_cut(
        self, cut: Cut, exchange: Exchange, where: Placed, kept: StreamAccount, proxied: ProxiedRequest
    ) -> Placed | NotPlaced | None:
        """Another node, for what its node did not end; None when the client was told how it ended."""
        if exchange.has_begun and kept.is_all_sent:
            await self._relay.end_stream(exchange, proxied)
            return None
        if where.wait.end is not None and not where.wait.end.is_nodes_failure:
            await self._tell_given_up(exchange, proxied, where.wait.end)
            return None
        if where.wait.end is None or not where.wait.end.is_of_a_node_that_is_well:
            self._placer.note_death(proxied, where.job, where.endpoint.node, cut.reason)
        may_resend = self._placer.may_resend(proxied)
        if may_resend and exchange.has_begun and kept.can_continue:
            how = kept.how
            job = self._continuations.of_account(kept, proxied, time.monotonic())
            job = job._replace(excluded=frozenset({where.endpoint.node}))
            after = await self._move(job, where, cut.reason, kept, proxied)
            is_moved = isinstance(after, Placed)
            self._metrics.stream_moves.labels(cut.reason, how.value, "moved" if is_moved else "failed").inc()
            if is_moved or cut.error is None or not self._placer.may_resend(proxied):
                return after
            await self._relay.tell_last_word(exchange, proxied, cut)
            return None
        if where.wait.has_forwarded or not may_resend:
            await self._tell_node_lost(exchange, proxied)
            return None
        # The client has nothing of this node's part, so the same job may go to another one.
        proxied.retries += 1
        self._metrics.retries.labels(cut.reason).inc()
        job = where.job._replace(excluded=where.job.excluded | {where.endpoint.node})
        if job.is_continuation:
            return await self._move(job, where, cut.reason, kept, proxied)
        return await self._placer.place(job, proxied)

    async def _read_job(self, exchange: Exchange, proxied: ProxiedRequest) -> Job | None:
        """The client's request as a job; None when it was answered, or left, already."""
        path = exchange.path
        if self._fates.in_flight > self._max_in_flight:
            await self._refuse(exchange, proxied, answers.overloaded("the gateway holds too many requests"))
            return None
        try:
            body = await exchange.read_body(self._max_body_bytes)
            deadline_s = exchange.deadline_s()
            is_generation = path in GENERATION_PATHS and exchange.method == "POST"
            if is_generation and self._prompts is not None:
                prepared = self._prompts.prepare(body, proxied.tenant or ANONYMOUS)
                body = prepared.body
                proxied.answer_headers.extend(prepared.headers)
            is_work = path in WORK_PATHS and exchange.method == "POST"
            facts = read_routing_facts(path, body) if is_work else RoutingFacts()
            if is_work:
                asked = facts.model
                facts, body = self._names.resolve(self._routing.table, facts, body)
                if facts.model is not None and facts.model != asked:
                    proxied.set_header(MODEL_HEADER, facts.model)
                if session := exchange.header(b"x-fleet-session"):
                    facts = facts._replace(session=session.decode("latin-1")[:MAX_SESSION_CHARS])
        except PromptOverBudgetError as error:
            await self._refuse(exchange, proxied, answers.bad_request(str(error), code="prompt_over_budget"))
        except BodyTooLargeError:
            message = f"the body is larger than {self._max_body_bytes} bytes"
            await self._refuse(exchange, proxied, answers.bad_request(message, status=413, code="too_large"))
        except TooManyBodiesError:
            full = answers.unavailable("too many request bodies are on their way in", code="too_many_bodies")
            await self._refuse(exchange, proxied, full)
        except TimeoutError:
            await self._refuse(
                exchange, proxied, answers.bad_request("the body did not come", status=408, code="timeout")
            )
        except BadFramingError:
            await self._refuse(exchange, proxied, answers.bad_request("the body's framing is no HTTP", code="bad_http"))
        except BadBodyError as error:
            await self._refuse(exchange, proxied, answers.bad_request(str(error)))
        except BadDeadlineError:
            message = f"{DEADLINE_HEADER}: must be seconds, above 0"
            refusal = answers.bad_request(message, param=DEADLINE_HEADER, code="invalid_value")
            await self._refuse(exchange, proxied, refusal)
        except ClientGoneError:
            self._fates.end(proxied, Outcome.CLIENT_GONE, reason=exchange.gone_reason)
        else:
            if exchange.names_itself(facts.request_id):
                if self._fates.is_in_flight(facts.request_id):
                    taken = answers.in_flight(f"request {facts.request_id} is in flight here")
                    await self._refuse(exchange, proxied, taken)
                    return None
                self._fates.rename(proxied, facts.request_id)
            if (unknown := self._names.refusal(self._routing.table, facts)) is not None:
                await self._refuse(exchange, proxied, unknown)
                return None
            headers = exchange.forwarded_headers()
            if proxied.trace is not None:
                headers = proxied.trace.carried_by(headers)
            request_id = proxied.request_id.encode()
            headers.append((b"x-request-id", request_id))
            if path in MOVABLE_PATHS and exchange.method == "POST":
                headers += self._continuations.offers(request_id, is_stream=facts.stream)
            given = [limit for limit in (deadline_s, facts.deadline_s) if limit is not None]
            deadline_at = proxied.started + min(given) if given else None
            return Job(exchange.method, exchange.target, body or None, headers, facts, deadline_at=deadline_at)
        return None

    async def _move(
        self, job: Job, source: Placed, reason: str, kept: StreamAccount, proxied: ProxiedRequest
    ) -> Placed | NotPlaced:
        """A node's answer to the continuation. Asks all of them, and again while there is patience.

        First those of its node's own revision: other weights would draw other tokens.
        """
        others = self._placer.other_revisions(source.endpoint)
        is_exact = kept.how is Continuance.EXACT
        never = self._placer.foreign_nodes() if is_exact else self._placer.other_kinds(source.endpoint)
        job = job._replace(excluded=job.excluded | never)
        deadline = time.monotonic() + self._move_patience_s
        if proxied.paused_at is None:
            proxied.paused_at = source.wait.heard_at
        while True:
            where = await self._placer.place(job._replace(excluded=job.excluded | others), proxied)
            if others and isinstance(where, NotPlaced) and where.given_up is None:
                where = await self._placer.place(job, proxied)
            if isinstance(where, Placed):
                num_tokens = kept.num_tokens if kept.can_continue else None
                if source.job.is_continuation and not source.wait.has_forwarded and proxied.moves:
                    move = proxied.moves[-1]  # it went on nowhere in between
                    move.target = where.endpoint.node
                else:
                    move = Move(source.endpoint.node, where.endpoint.node, reason, num_tokens, how=kept.how.value)
                    proxied.moves.append(move)
                log.info(
                    "request.moved",
                    request_id=proxied.request_id,
                    source=move.source,
                    node=move.target,
                    reason=move.reason,
                    how=move.how,
                    tokens=num_tokens,
                    moved=proxied.moved,
                )
                return where
            if not await self._pauses(where, deadline, proxied):
                return where
            job = job._replace(excluded=never)  # by now the source may serve again

    async def _tell_not_placed(self, exchange: Exchange, proxied: ProxiedRequest, not_placed: NotPlaced) -> None:
        said = ", ".join(f"{node}: {reason}" for node, reason in sorted(not_placed.reasons.items())) or "no active node"
        if not_placed.given_up is not None:
            await self._tell_given_up(exchange, proxied, not_placed.given_up)
        elif not self._placer.may_resend(proxied):
            await self._tell_node_lost(exchange, proxied)
        elif proxied.deaths and exchange.has_begun:
            death = proxied.deaths[-1]
            message = f"node {death.node} stopped before the answer was complete ({death.reason}), and no other one"
            error = answers.upstream_failed(f"{message} could continue it ({said})", code=death.fate)
            await self._fail(exchange, proxied, error, death.fate)
        elif proxied.nodes:
            error = answers.unavailable(f"no node could continue the request ({said})", code="not_continued")
            await self._fail(exchange, proxied, error, "not_continued")
        elif proxied.deaths:
            death = proxied.deaths[-1]
            error = answers.unavailable(f"no other node takes the request ({said})", code=death.fate)
            await self._fail(exchange, proxied, error, death.fate)
        elif not_placed.is_overload:
            error = answers.overloaded(f"every node is overloaded ({said})", retry_after_s=not_placed.retry_after_s)
            await self._refuse(exchange, proxied, error)
        else:
            await self._refuse(exchange, proxied, answers.unavailable(f"no node takes requests ({said})"))

    async def _tell_node_lost(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """A node died or fell silent with the request, and no other one may have it."""
        death = proxied.deaths[-1]
        if len(proxied.deaths) > 1 and not self._placer.may_resend(proxied):
            await self._tell_poison(exchange, proxied)
            return
        if exchange.has_begun:
            message = f"node {death.node} stopped before the answer was complete ({death.reason})"
            await self._fail(exchange, proxied, answers.upstream_failed(message, code=death.fate), death.fate)
            return
        message = f"node {death.node} stopped before the answer was complete ({death.reason}); no other one is asked"
        await self._fail(exchange, proxied, answers.final(message, code=death.fate), death.fate)

    async def _tell_poison(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """The request has ended its nodes: no other one gets it, nor the same body again for a while."""
        nodes = tuple(death.node for death in proxied.deaths)
        poisoned = Poisoned(proxied.request_id, nodes, time.monotonic())
        if proxied.body_key is not None:
            self._poison.note(proxied.body_key, poisoned)
        asyncio.get_running_loop().call_later(SETTLES_S, self._settle_poison, proxied.body_key, poisoned)
        had = ", ".join(f"{death.node}: {death.reason}" for death in proxied.deaths)
        log.error("request.poison", request_id=proxied.request_id, nodes=list(nodes), deaths=had)
        message = f"{len(nodes)} nodes ended with this request in hand ({had}); no other one is asked"
        await self._fail(exchange, proxied, answers.poison(message), POISON)

    def _settle_poison(self, key: bytes | None, poisoned: Poisoned) -> None:
        """Say that it was the request; not where all nodes ended at once, and each request in hand looks guilty."""
        if not self._placer.ended_besides(poisoned.nodes, poisoned.at - SETTLES_S):
            self._health.poison.labels("found").inc()
            return
        if key is not None:
            self._poison.forget(key)
        log.warning("request.not_poison", request_id=poisoned.request_id, reason="other nodes ended meanwhile")

    async def _refuse_poison(self, exchange: Exchange, proxied: ProxiedRequest, known: Poisoned) -> None:
        """The same body ended nodes a short while ago."""
        self._health.poison.labels("refused").inc()
        log.warning("request.poison_refused", request_id=proxied.request_id, first=known.request_id)
        message = f"the same request ended {len(known.nodes)} nodes a short while ago (request {known.request_id})"
        await self._refuse(exchange, proxied, answers.poison(message))

    async def _tell_given_up(self, exchange: Exchange, proxied: ProxiedRequest, why: WaitEnd) -> None:
        """A limit on the wait passed, though nothing is known to be wrong with the node."""
        node = f"node {proxied.wait.node}" if proxied.wait else "no node"
        message = {
            WaitEnd.DEADLINE: "the deadline passed",
            WaitEnd.FIRST_BYTE_LIMIT: f"{node} did not begin its answer in time",
        }.get(why, f"{node} sent nothing more for too long")
        await self._fail(exchange, proxied, answers.timed_out(message, code=why.value), why.value)

    async def _refuse(self, exchange: Exchange, proxied: ProxiedRequest, error: ErrorAnswer) -> None:
        await exchange.fail(error, id_header(proxied))
        self._fates.end(proxied, Outcome.REFUSED, reason=error.code, status=error.status)

    async def _fail(self, exchange: Exchange, proxied: ProxiedRequest, error: ErrorAnswer, reason: str) -> None:
        status = None if exchange.has_begun else error.status
        await exchange.fail(error, id_header(proxied))
        if proxied.outcome is None:
            self._fates.end(proxied, Outcome.FAILED, reason=reason, status=status)

    async def _end_cancelled(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """The client hung up, or we shut down and still owe it a word."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        if not exchange.is_gone:
            error = answers.unavailable("the gateway is shutting down", code="shutting_down")
            await self._fail(exchange, proxied, error, "shutting_down")
        elif proxied.outcome is None:
            trouble = self._watch.trouble_of(proxied.wait) if proxied.wait else None
            if trouble is not None:
                self._fates.end(proxied, Outcome.GAVE_UP, reason=trouble.value)
            else:
                reason = exchange.gone_reason or ("" if exchange.has_begun else "before_first_byte")
                self._fates.end(proxied, Outcome.CLIENT_GONE, reason=reason)
