"""The API process's handle on the core process: starts it, talks with it, notices its death, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from engine.protocol.core_config import CoreConfig
from engine.protocol.frames import FrameError, FrameStream
from engine.protocol.heartbeat import Heartbeat, HeartbeatPage
from engine.protocol.messages import FromCore, Shutdown, ToCore

log = structlog.get_logger()

_COMMAND = (sys.executable, "-m", "engine", "core")
_SOCKET_BUFFER_BYTES = 2**20  # a stalled API process must not stop the core's steps at once
_LAST_WORDS_S = 0.5  # how long after the core's death its last messages may still be read


class CoreClient:
    """One core process, started once. Threading: event loop only."""

    def __init__(self, on_exit: Callable[[int], None] | None = None) -> None:
        self._on_exit = on_exit  # called once with the return code, within a second of the core's death
        self._process: asyncio.subprocess.Process | None = None
        self._stream: FrameStream[FromCore] | None = None
        self._heartbeats: HeartbeatPage | None = None
        self._watch: asyncio.Task[int] | None = None
        self._ended = asyncio.Event()  # the core's last message was read
        self.was_killed = False  # by this process

    @property
    def pid(self) -> int | None:
        """None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the core lives or before it was started; negative: killed by that signal."""
        return None if self._process is None else self._process.returncode

    def heartbeat(self) -> Heartbeat | None:
        """What the core does now, and since when; None before its first sign of life."""
        return None if self._heartbeats is None else self._heartbeats.read()

    async def start(self, config: CoreConfig, command: Sequence[str] = _COMMAND) -> None:
        """Start the process. That it is ready is its own first `CoreReady` message.

        Raises:
            OSError: the process can't be started.
        """
        assert self._process is None, "a client starts one core"
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._heartbeats, heartbeat_fd = HeartbeatPage.shared()
        try:
            with theirs:  # the core's end must be open in the core alone: its death is then an end of stream here
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    "--fd",
                    str(theirs.fileno()),
                    "--config",
                    config.to_json(),
                    "--heartbeat-fd",
                    str(heartbeat_fd),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), heartbeat_fd),
                )
            self._stream = await FrameStream[FromCore].open(ours, FromCore)
        except BaseException:
            ours.close()
            self.kill()
            raise
        finally:
            os.close(heartbeat_fd)
        log.info("core.started", core_pid=self._process.pid)
        self._watch = asyncio.create_task(self._watch_exit(self._process), name="core-exit")

    def send(self, message: ToCore) -> bool:
        """Queue a message; never waits. False if there is no core to send it to.

        Raises:
            FrameTooLargeError: the message is longer than a frame may be.
        """
        if self._stream is None or self._stream.is_closing:
            return False
        self._stream.send(message)
        return True

    async def messages(self) -> AsyncIterator[FromCore]:
        """What the core says, until it is gone. One reader only."""
        assert self._stream is not None, "the core was not started"
        try:
            while (message := await self._stream.receive()) is not None:
                yield message
        except FrameError as error:
            log.error("core.garbled", reason=str(error))
            self.kill()
        finally:
            self._ended.set()

    async def wait(self) -> int:
        """The return code, once the core is gone."""
        assert self._watch is not None, "the core was not started"
        return await asyncio.shield(self._watch)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
                self.was_killed = True

    async def stop(self, grace_s: float) -> int | None:
        """Ask the core to end, kill it after `grace_s`; returns its return code, None if it was never started.

        It may be called again, and after the core's death: then it only gives back what is left.
        """
        if self._watch is None or self._stream is None:
            return None
        if self.send(Shutdown()):
            try:
                async with asyncio.timeout(grace_s):
                    await self.wait()
            except TimeoutError:
                log.warning("core.killed", core_pid=self.pid, grace_s=grace_s)
        self.kill()
        code = await self.wait()
        await self._stream.close()
        return code

    async def _watch_exit(self, process: asyncio.subprocess.Process) -> int:
        code = await process.wait()
        log.info("core.exited", core_pid=process.pid, returncode=code)
        if self._on_exit is not None:
            self._on_exit(code)
        # A child of the core may still hold its end of the connection open: don't wait for an end that won't come.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._ended.wait()
        if self._stream is not None:
            await self._stream.close()
        return code
