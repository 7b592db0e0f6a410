"""Who may come in: refused at once with a reason, or held until its one end.

Nothing is awaited between the check and the entry into the registry: a drain that begins finds the request either
refused or held. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from engine.node.choice import make_choice
from engine.node.core_link import CoreLink
from engine.node.drain import DrainControl
from engine.node.generation_request import ChoiceProgress, GenerationRequest
from engine.node.health import Reason
from engine.node.inflight import Fate, InflightRequest
from engine.node.limits import LimitsInForce
from engine.node.metrics import NodeMetrics
from engine.node.queue_guard import QUEUE_TIMEOUT, QueueGuard
from engine.node.refusal import RefusedError, check_fits
from engine.node.request_log import RequestLog
from engine.node.request_record import Arrival, RequestRecord
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ServedModel
from engine.node.stream_progress import CoveredTokens, ProgressLines
from engine.protocol.request_id import new_admission


class Admission:
    """Threading: event loop only."""

    def __init__(
        self,
        *,
        model: ServedModel,
        core: CoreLink,
        requests: RequestRegistry,
        drain: DrainControl,
        queue: QueueGuard,
        limits: LimitsInForce,
        judge_health: Callable[[], Reason],
        metrics: NodeMetrics,
        request_log: RequestLog,
    ) -> None:
        self._model = model
        self._core = core
        self._requests = requests
        self._drain = drain
        self._queue = queue
        self._limits = limits
        self._judge_health = judge_health
        self._metrics = metrics
        self._request_log = request_log
        self.arriving: set[str] = set()  # ids of requests that are read, tokenised or compiled, and not held yet

    @property
    def max_queued_tokens(self) -> int:
        """What all that waits may need together."""
        return self._queue.max_tokens(self._limits.now, self._core.kv_capacity_tokens or 0)

    def is_in_flight(self, request_id: str) -> bool:
        """Whether a request of this id is read, tokenised or computed here.

        A core that hangs computes nothing: its requests are no reason to keep one from another node.
        """
        if request_id in self.arriving:
            return True
        held = any(f.outcome is None and f.request.request_id == request_id for f in self._requests.held)
        return held and self._judge_health() is not Reason.CORE_STUCK

    def check(self, request: GenerationRequest | None = None, *, request_id: str = "") -> None:
        """Raises RefusedError when this request, or any more (None), can't be taken now; it is counted then."""
        try:
            if not self._drain.takes_work:
                raise RefusedError("draining", "this node is being drained")
            reason = self._judge_health()
            if reason is not Reason.READY:
                raise RefusedError("not_ready", f"this node is not ready: {reason.value}")
            core = self._core
            self._queue.check(request, self._limits.now, core.kv_capacity_tokens or 0, core.tokens_per_s)
        except RefusedError as refusal:
            self._metrics.note_refused(refusal.reason, refusal.limit)
            known = request.request_id if request is not None else request_id
            self._drain.note_refused(known, len(self._requests.held))
            raise

    def admit(
        self,
        request: GenerationRequest,
        *,
        arrival: Arrival,
        accepts_handoff: bool = False,
        progress: Sequence[ChoiceProgress | CoveredTokens] = (),
        lines: ProgressLines | None = None,
        elapsed_before_s: float = 0.0,
    ) -> InflightRequest:
        """Takes a request in, or goes on with one that another node handed off, or died with (`progress`).

        `lines`: its stream tells its caller what each event covers.
        Raises RefusedError, TooLongError, ReplayError.
        """
        for prompt in request.prompts:
            check_fits(len(prompt), request.sampling.max_tokens, self._model.max_sequence_tokens)
        self.check(request)
        admission = new_admission()
        num_choices = request.n * len(request.prompts)
        inflight = InflightRequest(
            request=request,
            choices=[make_choice(request, index, admission, self._model.tokenizer) for index in range(num_choices)],
            arrived_at=arrival.at,
            accepts_handoff=accepts_handoff,
            progress=lines,
            elapsed_before_s=elapsed_before_s,
            is_continued=arrival.is_continued,
            shadow_of=arrival.shadow_of,
            trace_headers=arrival.trace_headers,
            admitted_at=time.monotonic(),
        )
        for step in progress:
            choice = inflight.choices[step.index]
            if isinstance(step, CoveredTokens):
                choice.resume(step)
            else:
                choice.replay(step)
        inflight.num_sent_tokens = inflight.num_output_tokens
        self._set_timers(inflight, may_wait=not progress)
        self._requests.enter(inflight)
        self._metrics.note_admitted(inflight)
        return inflight

    def turn_away(self, arrival: Arrival, fate: Fate, status: int, code: str | None) -> None:
        """A request ended before it was taken in. Refusals were counted when they were made."""
        if fate is not Fate.REFUSED:
            self._metrics.note_fate(fate)
        # No message: it may quote what the client sent.
        self._request_log.write(RequestRecord(arrival, fate, time.monotonic(), status, error_code=code))

    def _set_timers(self, inflight: InflightRequest, *, may_wait: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = inflight.request.deadline_s
        if deadline_s is not None:
            left_s = deadline_s - inflight.elapsed_before_s - (inflight.admitted_at - inflight.arrived_at)
            inflight.timers.append(loop.call_later(max(0.0, left_s), self._expire, inflight, deadline_s))
        wait_s = self._limits.now.max_queue_wait_s
        if wait_s is not None and may_wait:
            inflight.timers.append(loop.call_later(wait_s, self._expire_waiting, inflight, wait_s))

    def _expire(self, inflight: InflightRequest, deadline_s: float) -> None:
        reason = f"the deadline of {deadline_s:g} s passed"
        self._requests.fail(inflight, reason, "deadline_exceeded", "deadline")

    def _expire_waiting(self, inflight: InflightRequest, waited_s: float) -> None:
        if inflight.outcome is None and inflight.is_waiting:
            self._metrics.rejected.labels(reason=QUEUE_TIMEOUT).inc()
            reason = f"it waited for {waited_s:g} s without being begun: this node has too much to do"
            self._requests.fail(inflight, reason, QUEUE_TIMEOUT, QUEUE_TIMEOUT)
