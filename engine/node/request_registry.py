"""All requests in flight here: the core's news go in, and each request ends exactly once.

Owner of who is held and of which sequence belongs to which choice. Handlers take deltas from an `InflightRequest` and
call `close` in the end. Knows no HTTP and does not decide who may come in (`admission.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from engine.node.choice import Choice
from engine.node.health import STUCK_FLOOR_S
from engine.node.inflight import Fate, InflightRequest
from engine.node.metrics import NodeMetrics
from engine.node.request_log import RequestLog
from engine.node.request_record import record_of
from engine.protocol.messages import AbortSequence, AddSequence, SequenceUpdate, ToCore

log = structlog.get_logger()

CONFIRM_S = 2.0  # for a core in a long step to say where it stopped


def _raised_at(error: BaseException) -> dict[str, str]:
    """Type and place of an error for the log. Its message may quote a prompt or an answer, so it stays out."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "" if frame is None else f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
    return {"error": type(error).__name__, "where": where}


class RequestRegistry:
    """Threading: event loop only. Nothing here waits, but `is_empty_within`."""

    def __init__(
        self,
        *,
        send: Callable[[ToCore], object],
        metrics: NodeMetrics,
        request_log: RequestLog,
        on_ended: Callable[[InflightRequest, Fate, int], None],
        on_output: Callable[[int], None],
        on_changed: Callable[[InflightRequest], None],
    ) -> None:
        """`send` reaches the core. `on_ended` hears each end with how many are left, `on_output` the length in tokens
        of each choice that finished by itself, `on_changed` whenever a request may have begun or ceased to wait."""
        self._send = send
        self._metrics = metrics
        self._request_log = request_log
        self._on_ended = on_ended
        self._on_output = on_output
        self._on_changed = on_changed
        self.held: set[InflightRequest] = set()
        self._sequences: dict[str, tuple[InflightRequest, Choice]] = {}  # until the core's terminal update
        self._emptied = asyncio.Event()

    def enter(self, inflight: InflightRequest) -> None:
        """Holds a request from now on, and gives its open choices to the core."""
        request = inflight.request
        self.held.add(inflight)
        for choice in inflight.open_choices:
            self._sequences[choice.seq_id] = (inflight, choice)
            self._send(
                AddSequence(
                    seq_id=choice.seq_id,
                    prompt_token_ids=choice.prompt,
                    sampling=choice.sampling,
                    arrived_at=inflight.arrived_at,
                    priority=request.priority,
                    output_token_ids=tuple(choice.output_token_ids),
                    cache_salt=request.cache_salt,
                )
            )
        inflight.settle()
        self._on_changed(inflight)

    def counts(self, core_running: int) -> tuple[int, int]:
        """(running, waiting) sequences. What the core has not reported as running is waiting, also when it hangs."""
        held = sum(len(f.open_choices) for f in self.held if f.outcome is None)
        running = min(core_running, held)
        return running, held - running

    # What the core says

    def apply_update(self, update: SequenceUpdate, now: float) -> bool:
        """Takes one update in; returns whether its sequence is one of ours. `now` is monotonic."""
        entry = self._sequences.get(update.seq_id)
        if entry is None:
            return False
        inflight, choice = entry
        if update.finish_reason is not None:
            del self._sequences[update.seq_id]
        if not inflight.waits_for(choice):
            return True  # drawn after the client left or a stop string was found
        num_before, is_new = len(choice.output_token_ids), choice.scheduled_at is None
        try:
            delta = choice.apply(update)
        except Exception as error:  # noqa: BLE001  whatever reading one answer runs into ends that request alone
            self._metrics.output_failures.inc()
            log.error(
                "request.output_failed",
                request_id=inflight.request.request_id,
                seq_id=choice.seq_id,
                **_raised_at(error),
            )
            self.fail(inflight, "the node could not read the model's output for this request", "engine_error")
            return True
        if is_new:
            self._metrics.note_scheduled(inflight, choice)
        self._metrics.note_tokens(inflight, choice, len(choice.output_token_ids) - num_before, now)
        if delta is not None:
            inflight.add(delta)
        if choice.is_closed:
            self._on_choice_closed(inflight, choice, is_core_done=update.finish_reason is not None, now=now)
        if choice.is_closed or (is_new and choice.scheduled_at is not None):
            self._on_changed(inflight)
        return True

    def _on_choice_closed(self, inflight: InflightRequest, choice: Choice, *, is_core_done: bool, now: float) -> None:
        if not is_core_done:
            self._send(AbortSequence(choice.seq_id, "stop_string"))
        if not choice.is_moved:  # it counts where it finishes
            self._metrics.note_closed(inflight, choice, now)
        if choice.error is not None:
            self.fail(inflight, choice.error, choice.error_code)
        elif choice.finish_reason is not None:
            self._on_output(len(choice.output_token_ids))
        inflight.settle()

    def fail_lost(self, idle_at: float) -> None:
        """The core held nothing at `idle_at`. A request that it was given long before is lost: nobody would end it."""
        for inflight in self.held:
            if inflight.outcome is None and idle_at - inflight.admitted_at > STUCK_FLOOR_S:
                log.error("request.lost", request_id=inflight.request.request_id)
                self.fail(inflight, "the engine core lost this request", "engine_error")

    def fail_all(self, reason: str, code: str) -> None:
        """The core is gone, and with it every sequence."""
        self._sequences.clear()
        for inflight in self.held:
            inflight.fail(reason, code)
            self._on_changed(inflight)

    # The end of a request

    def abandon(self, inflight: InflightRequest) -> None:
        """The client is gone: frees what the core holds for it."""
        if inflight.outcome is None:
            inflight.end(Fate.ABORTED)
            self._on_changed(inflight)
            self._abort_open(inflight, "client_gone")

    def fail(self, inflight: InflightRequest, reason: str, code: str, abort_reason: str = "admin") -> None:
        """Ends a request with an error towards its client."""
        if inflight.outcome is None:
            inflight.fail(reason, code)
            self._on_changed(inflight)
            self._abort_open(inflight, abort_reason)

    def hand_off(self) -> None:
        """Stops every request that can go on elsewhere. Its state is taken when the core has confirmed, so that a
        token drawn meanwhile is not drawn twice; a core that hangs is not waited for."""
        stopped = [inflight for inflight in self.held if inflight.accepts_handoff and inflight.outcome is None]
        for inflight in stopped:
            self._abort_open(inflight, "moved")
        if stopped:
            asyncio.get_running_loop().call_later(CONFIRM_S, self._move_unconfirmed, stopped)

    def _move_unconfirmed(self, stopped: Sequence[InflightRequest]) -> None:
        """What the core drew and did not tell is drawn again elsewhere: the same tokens."""
        for inflight in stopped:
            if inflight.outcome is not None:
                continue
            for choice in inflight.open_choices:
                choice.is_moved = choice.abort_reason == "moved"
            inflight.settle()
            self._on_changed(inflight)

    def abort(self, request_ids: Sequence[str] | None) -> list[str]:
        """Ends these requests (by X-Request-Id or by the answer's id), or all, with an error event; returns whose."""
        chosen = [
            inflight
            for inflight in self.held
            if inflight.outcome is None and (request_ids is None or not inflight.names.isdisjoint(request_ids))
        ]
        for inflight in chosen:
            self.fail(inflight, "aborted by an operator", "aborted")
        aborted = [inflight.request.request_id for inflight in chosen]
        log.warning(
            "node.requests_aborted",
            count=len(chosen),
            asked_for="all" if request_ids is None else "some",
            request_ids=aborted,
        )
        return aborted

    def close(self, inflight: InflightRequest, fate: Fate) -> None:
        """The answer was written, or never will be: the one place where a held request ends, counted once."""
        if inflight not in self.held:
            return
        now = time.monotonic()
        self.abandon(inflight)
        for timer in inflight.timers:
            timer.cancel()
        self.held.discard(inflight)
        for choice in inflight.choices:
            # One that was to move ends here when its client left, or another choice failed, before it was handed off.
            if not choice.is_closed or (choice.is_moved and fate is not Fate.MOVED):
                self._metrics.note_closed(inflight, choice, now)
        self._metrics.note_ended(inflight, fate)
        self._on_ended(inflight, fate, len(self.held))
        if not self.held:
            self._emptied.set()
        self._request_log.write(record_of(inflight, fate, inflight.status, now))

    def _abort_open(self, inflight: InflightRequest, reason: str) -> None:
        for choice in inflight.open_choices:
            if choice.abort_reason is None:
                choice.abort_reason = reason
                self._send(AbortSequence(choice.seq_id, reason))

    async def is_empty_within(self, seconds: float) -> bool:
        """Waits until nothing is held; False when that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                while self.held:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True
