"""Messages over a real socketpair, and what is refused there."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest

from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.frames import (
    MAX_FRAME_BYTES,
    ConnectionClosed,
    FrameError,
    FrameSocket,
    FrameStream,
    FrameTooLargeError,
    encode_frame,
    start_reader,
)
from engine.protocol.messages import (
    AbortSequence,
    CoreFailed,
    FinishReason,
    FromCore,
    SequenceUpdate,
    SetFaults,
    Shutdown,
    StepReport,
    ToCore,
)
from tests.fixtures.core import make_request

REPORT = StepReport(
    step_id=3,
    kind="mixed",
    finished_at=1.5,
    seconds=0.25,
    num_tokens=70,
    num_seqs=2,
    updates=(
        SequenceUpdate("a", token_ids=(1, 2), scheduled_at=1.0, num_cached_tokens=0),
        SequenceUpdate(
            "b",
            finish_reason=FinishReason.ERROR,
            failure=SequenceFailure(FailureKind.OUT_OF_MEMORY, "no memory"),
            preempted=2,
        ),
    ),
    running=1,
    waiting=0,
    kv_blocks_used=3,
    kv_blocks_total=8,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        theirs.settimeout(30)
        yield ours, theirs


@pytest.mark.parametrize(
    "message",
    [
        make_request("a", 5, output=[1, 2], salt="tenant", seed=2**63 - 1, logit_bias=((3, -1.5),)),
        AbortSequence("a", "moved"),
        SetFaults(None),
        SetFaults(6.0),
        Shutdown(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_arrives_as_it_was_sent(pair, message) -> None:
    FrameSocket(pair[0], FromCore).send(message)
    assert FrameSocket(pair[1], ToCore).receive() == message


def test_large_message_arrives_whole(pair) -> None:
    message = make_request("a", [i % 50_000 for i in range(400_000)])
    sender = threading.Thread(target=FrameSocket(pair[0], FromCore).send, args=(message,))
    sender.start()
    received = FrameSocket(pair[1], ToCore).receive()
    sender.join(60)
    assert received == message


def test_stream_ends_between_frames_with_none(pair) -> None:
    FrameSocket(pair[0], FromCore).send(Shutdown())
    pair[0].close()
    frames = FrameSocket(pair[1], ToCore)
    assert frames.receive() == Shutdown()
    assert frames.receive() is None


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(struct.pack(">I", MAX_FRAME_BYTES + 1), "was announced", id="too_long"),
        pytest.param(struct.pack(">I", 3) + b"\xc1\xc1\xc1", "no message", id="not_messagepack"),
        pytest.param(
            struct.pack(">I", 14) + msgspec.msgpack.encode({"type": "other"}).ljust(14), "no message", id="unknown_tag"
        ),
        pytest.param(encode_frame(REPORT), "no message", id="message_of_the_other_side"),
        pytest.param(encode_frame(Shutdown())[:-1], "ended", id="cut_in_the_message"),
        pytest.param(b"\x00\x00", "ended", id="cut_in_the_length"),
        pytest.param(struct.pack(">I", 9), "ended", id="no_message_after_length"),
    ],
)
def test_garbage_is_refused(pair, data: bytes, complaint: str) -> None:
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(FrameError, match=complaint):
        FrameSocket(pair[1], ToCore).receive()


def test_message_of_ours_that_is_too_long_is_not_sent(pair) -> None:
    with pytest.raises(FrameTooLargeError, match="CoreFailed takes"):
        FrameSocket(pair[0], FromCore).send(CoreFailed("x" * MAX_FRAME_BYTES))
    pair[0].close()
    assert FrameSocket(pair[1], FromCore).receive() is None


@pytest.mark.parametrize(("last", "reason"), [(b"", "closed the connection"), (b"\x00", "ended")])
def test_reader_thread_ends_with_why(pair, last: bytes, reason: str) -> None:
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    closed = threading.Event()
    thread = start_reader(FrameSocket(pair[1], ToCore), inbox, on_closed=closed.set)
    pair[0].sendall(encode_frame(Shutdown()) + last)
    pair[0].close()
    assert inbox.get(timeout=60) == Shutdown()
    end = inbox.get(timeout=60)
    assert isinstance(end, ConnectionClosed)
    assert reason in end.reason
    thread.join(60)
    assert closed.is_set()


@pytest.mark.anyio
async def test_asyncio_side_speaks_with_the_blocking_side(pair) -> None:
    ours, theirs = pair
    stream = await FrameStream[FromCore].open(ours, FromCore)
    core = FrameSocket(theirs, ToCore)
    stream.send(Shutdown())
    await stream.drained()
    assert core.receive() == Shutdown()
    core.send(REPORT)
    core.close()
    assert await stream.receive() == REPORT
    assert await stream.receive() is None
    await stream.close()
    assert stream.is_closing


@pytest.mark.anyio
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x09abc", b"\x00", encode_frame(Shutdown())])
async def test_asyncio_side_refuses_garbage(pair, data: bytes) -> None:
    stream = await FrameStream[FromCore].open(pair[0], FromCore)
    pair[1].sendall(data)
    pair[1].close()
    with pytest.raises(FrameError):
        await stream.receive()
    await stream.close()
