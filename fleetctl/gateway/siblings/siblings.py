"""Workers of one gateway ask each other over Unix sockets in their folder: one question and one answer a connection."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger()

ANSWER_LIMIT_S = 0.4  # below the controller's own patience with a gateway
MAX_BYTES = 64 * 1024 * 1024
Answer = Callable[[str, Any], Any]


class Siblings:
    """One worker's door to the others, of every generation. `opened` for as long as it may be asked."""

    def __init__(self, folder: Path, number: int) -> None:
        """`number`: this worker's, which no other one of this supervisor had or will have."""
        self.folder = folder
        self.number = number

    @asynccontextmanager
    async def opened(self, answer: Answer) -> AsyncIterator[None]:
        """Answer the others. `answer` gets a word and its argument, and gives what JSON can say."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError, ValueError):
                word, argument = json.loads(await reader.readline())
                writer.write(json.dumps(answer(word, argument)).encode() + b"\n")
                await writer.drain()
            writer.close()

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"{self.number}.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with ShortAddress(path) as address:
            listener.bind(address)
        server = await asyncio.start_unix_server(serve, sock=listener, limit=MAX_BYTES)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def ask_all(self, word: str, argument: Any = None) -> dict[int, Any]:
        """What each other worker answered, by its number. One that is gone or does not answer in time is left out."""
        numbers = [int(path.stem) for path in self.folder.glob("*.sock")]
        others = [number for number in numbers if number != self.number]
        answers = await asyncio.gather(*(self._ask(number, word, argument) for number in others))
        return {number: answer for number, answer in zip(others, answers, strict=True) if answer is not None}

    async def _ask(self, number: int, word: str, argument: Any) -> Any:
        writer = None
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                with ShortAddress(self.folder / f"{number}.sock") as address:
                    reader, writer = await asyncio.open_unix_connection(address, limit=MAX_BYTES)
                writer.write(json.dumps([word, argument]).encode() + b"\n")
                line = await reader.readline()
                return json.loads(line) if line else None
        except (OSError, ValueError, TimeoutError) as error:
            log.warning("sibling.silent", worker=number, error=str(error) or type(error).__name__)
            return None
        finally:
            if writer is not None:
                writer.close()


class ShortAddress:
    """A path of any length as a socket address, which the kernel takes up to 107 bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> str:
        self._folder = os.open(self._path.parent, os.O_PATH | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)
