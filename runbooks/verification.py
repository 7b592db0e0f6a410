"""Does it hold? Looks at an expectation until it has held long enough or the time is over."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from runbooks.ports import Clock
from runbooks.stopwatch import Stopwatch
from runbooks.verb import Verify


@dataclass(frozen=True, slots=True)
class Verification:
    """`held` is None when it was stopped before an answer."""

    held: bool | None
    text: str


async def look_until_held(
    evaluate: Callable[[str], Awaitable[float | None]],
    clock: Clock,
    verify: Verify,
    is_stopped: Callable[[], Awaitable[bool]],
    *,
    poll_s: float,
) -> Verification:
    """Whether `expect` was true at each look for `settle_s`, inside `within_s`.

    Unknown (no value, NaN) is not true, and starts the settling anew. After a restart of the controller the time starts
    anew too: what nobody could see is no evidence against the run.
    """
    watch = Stopwatch(clock)
    held_since: float | None = None
    looks = unknown = 0
    while True:
        value = await evaluate(verify.expect)
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
        await clock.sleep(poll_s)
