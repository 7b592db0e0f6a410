"""The one thread that asks the driver. It shares a finished snapshot; nobody ever waits for it."""

from __future__ import annotations

import threading
import time

import structlog

from engine.gpu.reading import GpuSnapshot, GpuState

log = structlog.get_logger()

REOPEN_S = 30.0  # a driver may be loaded later
EVENT_SLICE_S = 0.5
PATIENCE_POLLS = 3
LEAST_PATIENCE_S = 15.0


class GpuWatch:
    """Reads every `poll_s` seconds. Threading: `snapshot` from anywhere, the rest from the owner."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._patience_s = max(LEAST_PATIENCE_S, PATIENCE_POLLS * poll_s)
        self._last = GpuSnapshot(GpuState.STARTING, time.monotonic())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    def stop(self, within_s: float = 2.0) -> None:
        """A thread that hangs in the driver is left behind; it is a daemon."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def snapshot(self, now: float) -> GpuSnapshot:
        """The last readings, or that they are too old to say anything. `now` is monotonic."""
        return self._last.as_of(now, self._patience_s)

    def _run(self) -> None:
        try:
            from engine.gpu.nvml import NvmlReader
        except ImportError as error:
            self._publish(GpuSnapshot(GpuState.NO_DRIVER, float("inf"), f"no NVML binding: {error}"))
            return
        reader = NvmlReader()
        opened_at = -REOPEN_S
        while not self._stopping.is_set():
            if not reader.is_open and time.monotonic() - opened_at >= REOPEN_S:
                reader.open()
                opened_at = time.monotonic()
            self._publish(reader.read())
            poll_at = time.monotonic() + self._poll_s
            while not self._stopping.is_set() and (left_s := poll_at - time.monotonic()) > 0:
                if reader.wait(min(left_s, EVENT_SLICE_S)):
                    break  # an XID: look at once what became of the card
        reader.close()

    def _publish(self, snapshot: GpuSnapshot) -> None:
        if snapshot.state is not self._last.state:
            log.info("gpu.state_changed", state=snapshot.state.value, detail=snapshot.detail, gpus=len(snapshot.gpus))
        self._last = snapshot
