"""When which gateway was down because the soak killed it: no other broken connection is excused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

KEPT_S = 10.0  # for so long a client may find out that a kept connection ended


@dataclass(slots=True)
class _Downtime:
    url: str
    began: float
    ended: float | None = None


class GatewayDowntimes:
    """Kills of gateways and of their workers. Times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._downtimes: list[_Downtime] = []

    @property
    def any(self) -> bool:
        """Whether one was ever killed."""
        return bool(self._downtimes)

    def note_killed(self, url: str) -> None:
        """From now on it is down."""
        self._downtimes.append(_Downtime(url, self._clock()))

    def note_all_back(self) -> None:
        """All that were killed serve again."""
        for one in self._downtimes:
            if one.ended is None:
                one.ended = self._clock()

    def was_killed(self, url: str, since: float) -> bool:
        """Whether it was down at a time since then, or so shortly before that a kept connection may break by it."""
        return any(one.url == url and (one.ended is None or one.ended + KEPT_S >= since) for one in self._downtimes)
