"""The node's health over time: judged whenever somebody asks and twice a second, and each change is logged."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from engine.node.core_link import CoreLink
from engine.node.drain import DrainControl
from engine.node.golden_probe import GoldenProbe
from engine.node.health import CorePhase, Health, Reason

log = structlog.get_logger()


class HealthWatch:
    """Owner of the last judgement. Threading: event loop only."""

    def __init__(
        self,
        *,
        core: CoreLink,
        drain: DrainControl,
        golden: GoldenProbe,
        is_resting: Callable[[], bool],
        stuck_core_kill_after_s: float,
    ) -> None:
        """`is_resting`: the node sleeps, or is about to. A core that is stuck for so long is killed; 0: never."""
        self._core = core
        self._drain = drain
        self._golden = golden
        self._is_resting = is_resting
        self._stuck_core_kill_after_s = stuck_core_kill_after_s
        self._health = Health(Reason.LOADING, time.time())

    def judge(self) -> Reason:
        """Readiness now; a change is logged."""
        reason = self._core.judge(
            takes_work=self._drain.takes_work,
            output_is_wrong=self._golden.is_wrong,
            rests=self._is_resting(),
            now=time.monotonic(),
        )
        before = self._health.reason
        if self._health.note(reason, time.time()):
            log.info("node.health_changed", reason=reason.value, before=before.value)
        return reason

    def report(self) -> dict[str, object]:
        """The last judgement and since when it holds, for `/health`."""
        return self._health.report(time.time())

    def stuck_detail(self, now: float) -> str:
        """What a person should know of a core that is stuck at monotonic `now`."""
        since, after_s = self._core.stuck_since, self._stuck_core_kill_after_s
        for_s = 0.0 if since is None else now - since
        said = f"the engine core has made no progress for longer than it may, for {for_s:.0f} s now"
        if not after_s:
            return f"{said}; it is not killed (--stuck-core-kill-after 0): restart the node"
        return f"{said}; it is killed and started again in {max(0.0, after_s - for_s):.0f} s"

    def tick(self, now: float) -> None:
        """To be called a few times a second, with monotonic `now`: changes are noticed also when nobody probes."""
        self.judge()
        self._core.kill_if_stuck(self._stuck_core_kill_after_s, now)
        self._core.kill_if_start_hangs(now)
        if self._core.phase is CorePhase.UP:
            self._golden.tick(now)
