"""The log line of each request. Many are written at a time: through structlog's chain a line costs 75 us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from fleetctl.kit.log import json_stream

log = structlog.get_logger()

FLUSH_S = 0.1  # lines that a SIGKILL may lose
MAX_HELD = 256


class RequestLog:
    """Lines of the event `request.finished`, in the form of all other lines. `flush` is owed at the end."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._encode = msgspec.json.Encoder().encode
        self._held: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._second = -1
        self._stamp = ""

    def write(self, **fields: Any) -> None:
        """One line; at once when there is no event loop, or the log is for people."""
        if json_stream() is None:
            log.info("request.finished", **fields)
            return
        now = self._now()
        second = int(now)
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        stamp = f"{self._stamp}.{int((now - second) * 1e6):06d}Z"
        line = {**fields, "event": "request.finished", "level": "info", "timestamp": stamp}
        self._held.append(self._encode(line))
        if len(self._held) >= MAX_HELD:
            self.flush()
        elif self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
            except RuntimeError:
                self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        stream = json_stream()
        if held and stream is not None:
            stream.write(b"\n".join(held).decode("utf-8") + "\n")
            stream.flush()
