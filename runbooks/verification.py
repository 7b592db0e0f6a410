"""Did it help? Looks at a run's declared expectation until it has held long enough or the time is over."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from runbooks.context import Context
from runbooks.ports import Clock
from runbooks.verb import Verify

MAX_GAP_S = 60.0


class Stopwatch:
    """Seconds since it was made, looked at often. A wall clock that is set back or far ahead does not end a wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self._elapsed_s = 0.0

    def elapsed_s(self) -> float:
        """Seconds so far; a step of the clock counts as at most `MAX_GAP_S`, and a step back as none."""
        now = self._clock.now()
        self._elapsed_s += min(max(now - self._last, 0.0), MAX_GAP_S)
        self._last = now
        return self._elapsed_s


@dataclass(frozen=True, slots=True)
class Verification:
    """`held` is None when it was stopped before an answer."""

    held: bool | None
    text: str


async def look_until_held(context: Context, verify: Verify, is_stopped: Callable[[], Awaitable[bool]]) -> Verification:
    """Whether `expect` was true at each look for `settle_s`, inside `within_s`.

    Unknown (no value, NaN) is not true, and starts the settling anew. After a restart of the controller the time starts
    anew too: what nobody could see is no evidence against the run.
    """
    watch = Stopwatch(context.clock)
    held_since: float | None = None
    looks = unknown = 0
    while True:
        value = await context.evaluate(verify.expect)
        looks += 1
        elapsed_s = watch.elapsed_s()
        if value is None or math.isnan(value):
            unknown += 1
            held_since = None
        elif value == 0:
            held_since = None
        else:
            held_since = elapsed_s if held_since is None else held_since
            if elapsed_s - held_since >= verify.settle_s:
                return Verification(True, f"held for {verify.settle_s:g} s: {verify.words}")
        if elapsed_s >= verify.within_s:
            last = "unknown" if value is None or math.isnan(value) else f"{value:g}"
            return Verification(
                False,
                f"did not hold for {verify.settle_s:g} s inside {verify.within_s:g} s: {verify.words}"
                f" (last value {last}, unknown at {unknown} of {looks} looks)",
            )
        if await is_stopped():
            return Verification(None, f"stopped after {looks} looks: {verify.words}")
        await context.clock.sleep(context.limits.poll_s)
