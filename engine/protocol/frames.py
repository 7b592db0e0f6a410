"""Typed messages over a stream socket: a 4-byte big-endian length, then one message in MessagePack.

The core's side is blocking and has a reader thread; the API process's side is asyncio. Both refuse what is too long
or is no message of the expected type: after that the stream can't be trusted, so it must be closed.

    FrameError           ValueError: the other side sent something that is no frame
    FrameTooLargeError   ValueError: a message of ours is too long to be sent
"""

from __future__ import annotations

import asyncio
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 16 * 2**20  # a prompt of 3 million tokens; a full step report is far below 1 MiB
_LENGTH = struct.Struct(">I")

Received = TypeVar("Received")


class FrameError(ValueError):
    """What was received is no frame: too long, cut off, or not a message of the expected type."""


class FrameTooLargeError(ValueError):
    """A message of ours exceeds `MAX_FRAME_BYTES`; nothing of it was sent."""


class Decoder(Generic[Received]):
    """Turns frame bodies into messages of one type (a union of tagged structs)."""

    def __init__(self, received_type: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received_type)

    def decode(self, body: bytes) -> Received:
        """Raises FrameError."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FrameError(f"a frame of {len(body)} bytes is no message: {error}") from error


def encode_frame(message: object) -> bytes:
    """One message with its length before it.

    Raises:
        FrameTooLargeError: the message is longer than a frame may be.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLargeError(
            f"{type(message).__name__} takes {len(body)} bytes, a frame holds at most {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """The length that a frame's first four bytes announce. Raises FrameError if it is too long."""
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes was announced, at most {MAX_FRAME_BYTES} are allowed")
    return length


class FrameSocket(Generic[Received]):
    """The blocking side. Threading: one thread may receive while another sends."""

    def __init__(self, sock: socket.socket, received_type: object) -> None:
        self._socket = sock
        self._decoder: Decoder[Received] = Decoder(received_type)

    def send(self, message: object) -> None:
        """Send one message; waits while the other side is behind.

        Raises:
            OSError: the other side is gone.
        """
        self._socket.sendall(encode_frame(message))

    def receive(self) -> Received | None:
        """The next message; None after the last one.

        Raises:
            FrameError: the stream is broken.
        """
        header = self._read_exactly(_LENGTH.size)
        if header is None:
            return None
        body = self._read_exactly(body_length(header))
        if body is None:
            raise FrameError("the stream ended between a length and its message")
        return self._decoder.decode(body)

    def close(self) -> None:
        """Close the socket; a receiver in another thread then sees the end of the stream."""
        self._socket.close()

    def _read_exactly(self, count: int) -> bytes | None:
        """`count` bytes; None if the stream ended before the first. A reset by the other side is an end."""
        data = bytearray()
        while len(data) < count:
            try:
                piece = self._socket.recv(min(count - len(data), 2**20))
            except ConnectionResetError:
                piece = b""
            if not piece:
                if data:
                    raise FrameError(f"the stream ended after {len(data)} of {count} bytes")
                return None
            data += piece
        return bytes(data)


class ConnectionClosed:
    """Put into an inbox as its last entry: nothing more will come, and why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def start_reader(
    frames: FrameSocket[Received],
    inbox: queue.SimpleQueue[Received | ConnectionClosed],
    on_closed: Callable[[], None] | None = None,
) -> threading.Thread:
    """A daemon thread that puts every message into `inbox` and `ConnectionClosed` last; then it calls `on_closed`."""

    def read() -> None:
        reason = "the other side closed the connection"
        try:
            while (message := frames.receive()) is not None:
                inbox.put(message)
        except (FrameError, OSError) as error:
            reason = str(error)
        inbox.put(ConnectionClosed(reason))
        if on_closed is not None:
            on_closed()

    thread = threading.Thread(target=read, name="frame-reader", daemon=True)
    thread.start()
    return thread


class FrameStream(Generic[Received]):
    """The asyncio side. Threading: event loop only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received_type: object) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: Decoder[Received] = Decoder(received_type)

    @classmethod
    async def open(cls, sock: socket.socket, received_type: object) -> FrameStream[Received]:
        """Wraps a connected socket and owns it from then on."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, received_type)

    @property
    def is_closing(self) -> bool:
        """Whether the connection was closed here or by the other side."""
        return self._writer.is_closing()

    def send(self, message: object) -> None:
        """Queue one message for sending; never waits. Raises FrameTooLargeError."""
        self._writer.write(encode_frame(message))

    async def drained(self) -> None:
        """Waits until what was queued is nearly all sent. Raises OSError when the other side is gone."""
        await self._writer.drain()

    async def receive(self) -> Received | None:
        """The next message; None after the last one.

        Raises:
            FrameError: the stream is broken.
        """
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(body_length(header))
        except asyncio.IncompleteReadError as error:
            if error.partial or error.expected != _LENGTH.size:
                raise FrameError("the stream ended in the middle of a frame") from error
            return None
        except ConnectionResetError:
            return None
        return self._decoder.decode(body)

    async def close(self) -> None:
        """Close the socket. What the other side makes of it is its own business."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
