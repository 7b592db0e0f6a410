"""Putting a node to sleep and waking it: memory is given back, and it is ready again only after the golden prompt.

Level 1 keeps the weights (on a GPU: moves them to host memory) and drops the KV cache. Level 2 drops everything by
ending the core process; waking loads the model again. A core that dies at level 1 leaves the node at level 2: nobody
may find a core that the operator put to sleep started again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

import structlog

from engine.node.core_link import CoreLink
from engine.node.drain import DrainControl
from engine.node.golden_probe import GoldenProbe
from engine.node.health import CorePhase, Reason
from engine.node.request_registry import RequestRegistry
from engine.protocol.messages import CoreAsleep

log = structlog.get_logger()

MOVE_GRACE_S = 5.0  # for hand-offs to be written, after the drain's deadline


class SleepState(StrEnum):
    """What the node does, or is about to."""

    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"


class SleepRefusedError(Exception):
    """It can't be done now; the message says what to do first."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Sleeper:
    """Owner of the sleep state. Threading: event loop only."""

    def __init__(
        self,
        *,
        core: CoreLink,
        drain: DrainControl,
        requests: RequestRegistry,
        golden: GoldenProbe,
        judge_health: Callable[[], Reason],
    ) -> None:
        self._core = core
        self._drain = drain
        self._requests = requests
        self._golden = golden
        self._judge_health = judge_health
        self._since = time.time()
        self._state = SleepState.AWAKE
        self._done: CoreAsleep | None = None  # what level 1 gave back
        self._resumes = False  # the drain was ours
        self._lock = asyncio.Lock()

    @property
    def takes_work(self) -> bool:
        """Whether it is awake."""
        return self._state is SleepState.AWAKE

    @property
    def level(self) -> int:
        """0 awake; also while waking, as the memory may be in use again."""
        return self._core.sleep_level if self._state is SleepState.ASLEEP else 0

    async def sleep(self, level: int, drain_deadline_s: float | None) -> dict[str, object]:
        """Falls asleep and returns the status. With a deadline it drains first. Raises SleepRefusedError."""
        if self._lock.locked():
            raise SleepRefusedError("busy", f"the node is {self._state.value}: ask again when it is done")
        async with self._lock:
            if self._state is SleepState.ASLEEP:
                if level < self.level:
                    raise SleepRefusedError("asleep", f"it sleeps at level {self.level}: POST /admin/wake_up first")
                if level > self.level:
                    await self._core.discard()
                    log.info("node.fell_asleep", level=level)
                return self.status()
            self._check_core()
            await self._empty(drain_deadline_s)
            self._check_core()
            self._move(SleepState.FALLING_ASLEEP)
            try:
                await self._fall_asleep(level)
            except SleepRefusedError:
                self._move(SleepState.AWAKE)
                self._resume_if_ours()
                raise
            self._move(SleepState.ASLEEP)
            self._judge_health()
            log.info("node.fell_asleep", level=level)
            return self.status()

    async def wake(self) -> dict[str, object]:
        """Wakes up and returns the status; whether the node is ready is health's to say. Raises SleepRefusedError."""
        if self._lock.locked():
            raise SleepRefusedError("busy", f"the node is {self._state.value}: ask again when it is done")
        async with self._lock:
            if self._state is SleepState.AWAKE:
                return self.status()
            self._move(SleepState.WAKING)
            started_at = time.monotonic()
            problem = await self._core.wake()
            # Awake is what it shall be, also when the core died on the way: it is then started again like any other.
            self._move(SleepState.AWAKE)
            self._done = None
            self._resume_if_ours()
            if problem is not None:
                log.error("node.waking_failed", reason=problem)
                raise SleepRefusedError("core_dead", f"the engine core did not wake up and is started again: {problem}")
            reason = self._judge_health()
            log.info("node.woke_up", seconds=round(time.monotonic() - started_at, 3), health=reason.value)
            return self.status()

    def status(self) -> dict[str, object]:
        """The body of `/admin/sleep`."""
        done = self._done
        facts: dict[str, object] = {"state": self._state.value, "level": self.level, "since": self._since}
        if self.level == 1 and done is not None:
            facts |= {"weights": done.weights, "freed_kv_cache_bytes": done.freed_kv_bytes}
        elif self.level == 2:
            facts["weights"] = "discarded"
        return facts

    def _check_core(self) -> None:
        phase, reason = self._core.phase, self._judge_health()
        if phase is not CorePhase.UP or reason is Reason.CORE_STUCK:
            raise SleepRefusedError("not_ready", f"the engine core is not up ({reason.value}): wait until it is")

    async def _empty(self, drain_deadline_s: float | None) -> None:
        """Refuses while requests are held, unless it may drain."""
        held = self._requests.held
        if not held:
            return
        if drain_deadline_s is None:
            raise SleepRefusedError(
                "not_idle",
                f"{len(held)} requests are being served: POST /admin/drain first, or ask with ?drain=true&deadline=30",
            )
        self._resumes = self._drain.takes_work
        self._drain.begin_drain(drain_deadline_s)
        if not await self._requests.is_empty_within(drain_deadline_s + MOVE_GRACE_S):
            self._resume_if_ours()
            raise SleepRefusedError(
                "not_idle",
                f"{len(held)} requests were still served at the deadline and can't move: give them longer, or end them "
                "with POST /admin/abort",
            )

    async def _fall_asleep(self, level: int) -> None:
        self._golden.cancel()
        if level == 1:
            done = await self._core.sleep()
            if done.problem is not None:
                raise SleepRefusedError("not_idle", f"the engine core can't sleep: {done.problem}")
            self._done = done
        else:
            await self._core.discard()

    def _resume_if_ours(self) -> None:
        if self._resumes:
            self._resumes = False
            self._drain.resume()

    def _move(self, state: SleepState) -> None:
        self._state, self._since = state, time.time()
