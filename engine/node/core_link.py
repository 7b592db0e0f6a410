"""The API process's end of the engine core: starts it, hears it, notices its death, starts it again.

What the core says of requests goes to the node; what it says of itself is kept here, for health and metrics.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from typing import Protocol

import msgspec
import structlog

from engine.node.core_process import CoreClient
from engine.node.core_starts import CoreStarts
from engine.node.health import CorePhase, Reason, Wakefulness, is_stuck, judge
from engine.node.metrics import NodeMetrics
from engine.protocol.core_config import CoreConfig
from engine.protocol.heartbeat import Heartbeat
from engine.protocol.messages import (
    BlocksHeld,
    BlockUse,
    CoreAsleep,
    CoreAwake,
    CoreFailed,
    CoreIdle,
    CoreProgress,
    CoreReady,
    CountBlocks,
    FromCore,
    ListBlocks,
    SetLimits,
    Sleep,
    StepReport,
    ToCore,
    WakeUp,
)

log = structlog.get_logger()

STOP_GRACE_S = 5.0
SLEEP_LIMIT_S = 60.0  # moving weights to host memory
WAKE_LIMIT_S = 120.0  # moving them back, and the golden prompt
REAP_GRACE_S = 1.0  # of a core whose connection ended: it exits by itself


class CoreListener(Protocol):
    """Who is told of requests."""

    def on_ready(self, message: CoreReady) -> None:
        """A core came up and can answer."""

    def on_awake(self, message: CoreAwake) -> None:
        """The core that slept answers again."""

    def on_step(self, report: StepReport) -> None:
        """One step, with news of its sequences."""

    def on_idle(self, message: CoreIdle) -> None:
        """Nothing runs or waits in the core."""

    def on_core_lost(self, reason: str) -> None:
        """The core is gone, and all that it held."""


class CoreLink:
    """Owner of the core process. Threading: event loop only."""

    def __init__(self, config: CoreConfig, metrics: NodeMetrics, listener: CoreListener) -> None:
        self._config = config
        self._metrics = metrics
        self._listener = listener
        self._client: CoreClient | None = None
        now = time.monotonic()
        self._awake = Wakefulness(since=now, asked_at=now)
        self._is_stopping = False
        self._reason = ""  # why the core of now ended, or will have
        self.phase = CorePhase.LOADING
        self.progress: CoreProgress | None = None
        self.ready: CoreReady | None = None
        self.error: str | None = None  # why the last core ended
        self.running = 0
        self.kv_ratio = 0.0
        self.tokens_per_s = 0.0
        self.first_ready = asyncio.Event()
        self.sleep_level = 0
        self._wakes = asyncio.Event()  # set while a core is wanted
        self._wakes.set()
        self._ended = asyncio.Event()  # set while there is no core
        self._answer: asyncio.Future[CoreAsleep | str | None] | None = None  # awaited by `sleep` or `wake`
        self._stuck_since: float | None = None
        self.starts = CoreStarts()
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[BlocksHeld | BlockUse]] = {}

    @property
    def kv_capacity_tokens(self) -> int | None:
        """None until the core is ready for the first time."""
        return None if self.ready is None else self.ready.num_kv_blocks * self.ready.block_size

    def judge(self, *, takes_work: bool, output_is_wrong: bool, now: float, rests: bool = False) -> Reason:
        """Readiness at monotonic time `now`. To be asked every second or so, also when nobody wants to know."""
        stuck = is_stuck(self.heartbeat(), awake_since=self._awake.note(now), now=now) and self.phase is CorePhase.UP
        self._stuck_since = (self._stuck_since or now) if stuck else None
        self._metrics.core_stuck.set(1 if stuck else 0)
        return judge(phase=self.phase, stuck=stuck, takes_work=takes_work, output_is_wrong=output_is_wrong, rests=rests)

    def kill_if_stuck(self, after_s: float, now: float) -> None:
        """Ends a core that was found stuck `after_s` ago (0: never) and still is; another one is then started."""
        if after_s and self._stuck_since is not None and now - self._stuck_since > after_s:
            log.error("core.stuck_killed", after_s=after_s)
            self._reason = f"it made no progress for more than {after_s:g} s and was killed"
            self._stuck_since = None
            self.kill()

    @property
    def stuck_since(self) -> float | None:
        """Monotonic; None while the core makes progress."""
        return self._stuck_since

    def kill_if_start_hangs(self, now: float) -> None:
        """Ends a core whose start takes longer than is allowed; another one is started after the back-off."""
        if self.starts.is_late(now, awake_since=self._awake.since):
            log.error("core.start_killed", after_s=self.starts.limit_s)
            self._reason = f"its start took longer than {self.starts.limit_s:g} s and it was killed"
            self.kill()

    async def sleep(self) -> CoreAsleep:
        """Level 1. An answer with `problem` means that nothing was done; a core that dies of it sleeps at level 2."""
        self._wakes.clear()  # from now on a core that dies is not started again
        answer = await self._request_answer(Sleep(), SLEEP_LIMIT_S)
        if not isinstance(answer, CoreAsleep):
            await self.discard()
            return CoreAsleep()
        if answer.problem is not None:
            self._wakes.set()
        return answer

    async def discard(self) -> None:
        """Level 2: ends the core, and with it all that it holds."""
        self._wakes.clear()
        self.sleep_level = 2
        if self._client is not None:
            await self._client.stop(STOP_GRACE_S)
        await self._ended.wait()

    async def wake(self) -> str | None:
        """Returns once the core can answer, None; or why it can't: then another is started as after any death."""
        if self.sleep_level == 1:
            self.phase = CorePhase.WARMING_UP
            self.sleep_level = 0
            self._wakes.set()
            answer = await self._request_answer(WakeUp(), WAKE_LIMIT_S)
        else:
            self._answer = asyncio.get_running_loop().create_future()
            self.phase, self.sleep_level = CorePhase.LOADING, 0
            self._wakes.set()
            answer = await self._answer
        return None if answer is None else str(answer)

    async def _request_answer(self, message: Sleep | WakeUp, limit_s: float) -> CoreAsleep | str | None:
        """What the core answers; text when it died of it, or was killed because it did not."""
        self._answer = asyncio.get_running_loop().create_future()
        if not self.send(message):
            return "there is no core"
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            self.kill()
            return f"no answer within {limit_s:g} s"

    def _answered(self, answer: CoreAsleep | str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        self._answer = None

    async def blocks_held(self, within_s: float) -> dict[str, int] | None:
        """KV blocks by the core's request ids; None when the core does not answer in time: it is gone, hangs, or is in
        a long step."""
        answer = await self._ask(ListBlocks(next(self._numbers)), within_s)
        return answer.blocks if isinstance(answer, BlocksHeld) else None

    async def block_use(self, within_s: float) -> BlockUse | None:
        """What the KV cache is used for; None as above."""
        answer = await self._ask(CountBlocks(next(self._numbers)), within_s)
        return answer if isinstance(answer, BlockUse) else None

    async def _ask(self, question: ListBlocks | CountBlocks, within_s: float) -> BlocksHeld | BlockUse | None:
        answer: asyncio.Future[BlocksHeld | BlockUse] = asyncio.get_running_loop().create_future()
        self._questions[question.number] = answer
        try:
            if not self.send(question):
                return None
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[question.number]

    def heartbeat(self) -> Heartbeat | None:
        """What the core does right now; None without a core."""
        return None if self._client is None else self._client.heartbeat()

    def send(self, message: ToCore) -> bool:
        """Messages to a core that is gone are dropped, and False: its requests were failed when it went."""
        return self._client is not None and self._client.send(message)

    def set_limits(self, limits: SetLimits) -> None:
        """For the core that runs and for those that come after it."""
        self._config = msgspec.structs.replace(
            self._config, **{name: getattr(limits, name) for name in limits.__struct_fields__}
        )
        self.send(limits)

    async def keep_running(self) -> None:
        """Keeps a core running until stopped. Returns early, with `error` set, when the first one can't start."""
        while True:
            self._ended.clear()
            reason = await self._run_once()
            if self._is_stopping:
                self._answered("the node is stopping")
                return
            if not self._wakes.is_set():
                await self._rest(reason)
                continue
            self._lose(reason)
            if not self.first_ready.is_set():
                return
            backoff_s = self.starts.note_lost(time.monotonic())
            log.warning("core.restart_scheduled", after_s=backoff_s)
            await asyncio.sleep(backoff_s)
            if not self._wakes.is_set():
                await self._rest(reason)
            self._metrics.core_restarts.inc()

    async def _rest(self, reason: str) -> None:
        """There is no core and shall be none until somebody wakes the node."""
        if self.sleep_level == 1:
            log.warning("core.lost_asleep", reason=reason)
        self.starts.note_rested()
        self.phase, self.sleep_level = CorePhase.ASLEEP, 2
        self.running, self.kv_ratio = 0, 0.0
        self._metrics.core_up.set(0)
        self._metrics.swap_blocks_used.set(0)
        self._listener.on_core_lost(reason)
        self._answered(reason)
        self._ended.set()
        await self._wakes.wait()

    async def stop(self) -> None:
        """Ends the core for good."""
        self._is_stopping = True
        if self._client is not None:
            # One that loads hears nothing before it is done, and holds nothing that could be lost.
            is_listening = self.phase in (CorePhase.UP, CorePhase.ASLEEP)
            await self._client.stop(STOP_GRACE_S if is_listening else 0.0)

    def kill(self) -> None:
        """Ends the core at once, when there is no time for `stop`."""
        if self._client is not None:
            self._client.kill()

    async def _run_once(self) -> str:
        client = CoreClient()
        self._client = client
        self._reason = ""
        self.starts.begin(time.monotonic())
        try:
            await client.start(self._config)
            async for message in client.messages():
                if isinstance(message, CoreFailed):
                    self._reason = message.reason
                else:
                    self._hear(message)
        except OSError as exc:
            self._reason = f"the core process can't be reached: {exc}"
        finally:
            code = await client.stop(REAP_GRACE_S)  # reaps what is left of it
            self._client = None
        if client.was_killed and not self._reason:
            return "the node killed the core process, which had closed its connection or did not answer"
        return self._reason or end_of(code)

    def _lose(self, reason: str) -> None:
        self.phase, self.error = CorePhase.DEAD, reason
        self.running, self.kv_ratio = 0, 0.0
        self._metrics.core_up.set(0)
        self._metrics.core_deaths.inc()
        self._metrics.swap_blocks_used.set(0)
        log.error("core.lost", reason=reason)
        self._listener.on_core_lost(reason)
        self._answered(reason)

    def _hear(self, message: FromCore) -> None:
        match message:
            case StepReport():
                self.running = message.running
                self.kv_ratio = message.kv_blocks_used / max(1, message.kv_blocks_total)
                if message.seconds > 0 and message.num_tokens > 0:
                    self.tokens_per_s += 0.1 * (message.num_tokens / message.seconds - self.tokens_per_s)
                self._metrics.note_step(message)
                self._listener.on_step(message)
            case CoreIdle():
                self.running = 0
                self.kv_ratio = message.kv_blocks_used / max(1, message.kv_blocks_total)
                self._metrics.note_integrity(message.integrity_error is None)
                if message.integrity_error:
                    log.error("core.integrity_failed", reason=message.integrity_error)
                self._listener.on_idle(message)
            case CoreProgress():
                self.progress = message
                # After a death the node says core_dead until the new core answers: it is not "loading" to users.
                if not self.first_ready.is_set() or self._answer is not None:
                    self.phase = CorePhase(message.phase)
            case CoreReady():
                self.ready, self.phase = message, CorePhase.UP
                self.starts.note_ready(time.monotonic())
                self._metrics.core_up.set(1)
                self._metrics.note_ready(message, prefix_caching=self._config.prefix_caching)
                self._listener.on_ready(message)
                self.first_ready.set()
                self._answered(None)
                log.info("core.ready", load_s=message.load_seconds, warmup_s=message.warmup_seconds)
            case CoreAsleep():
                if message.problem is None:
                    self.phase, self.sleep_level = CorePhase.ASLEEP, 1
                    self.running, self.kv_ratio = 0, 0.0
                self._answered(message)
            case CoreAwake():
                self.phase = CorePhase.UP
                self._listener.on_awake(message)
                self._answered(None)
            case BlocksHeld() | BlockUse():
                if (question := self._questions.get(message.number)) is not None and not question.done():
                    question.set_result(message)
            case CoreFailed():
                self.error = message.reason


def end_of(code: int | None) -> str:
    """How a core process ended that said nothing, by its return code; None: it was never started."""
    if code is None:
        return "the core process could not be started"
    if code >= 0:
        return f"the core process exited with code {code} without saying why"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "not a signal that is known here"
    hint = ": often the kernel's OOM killer, see dmesg" if code == -signal.SIGKILL else ""
    return f"the core process was killed by signal {-code} ({name}){hint}"
