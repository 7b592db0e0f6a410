from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.gateway.http import event_stream
from fleetctl.gateway.http.event_stream import EventStreamReader, EventTooLongError

HANDOFF = b'event: fleet.handoff\ndata: {"version": 1}\n\n'


def feed_all(reader: EventStreamReader, pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    sent, handoffs = b"", []
    for piece in pieces:
        frames = reader.feed(piece)
        sent += frames.forward
        if frames.handoff is not None:
            handoffs.append(frames.handoff)
            break
    return sent, handoffs


def cut_up(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 1000])
def test_finds_a_handoff_however_it_is_split(size: int, newline: bytes) -> None:
    before = b'data: {"a": 1}\n\ndata: {"b": 2}\n\n'
    stream = (before + HANDOFF + b"data: late\n\n").replace(b"\n", newline)
    sent, handoffs = feed_all(EventStreamReader(), cut_up(stream, size))
    assert sent == before.replace(b"\n", newline)
    assert handoffs == [b'{"version": 1}']


def test_half_a_frame_is_never_forwarded() -> None:
    reader = EventStreamReader()
    assert reader.feed(b'data: {"a": 1}\n\ndata: {"half').forward == b'data: {"a": 1}\n\n'
    assert reader.feed(b'": 1}\n').forward == b""
    assert reader.feed(b"\n").forward == b'data: {"half": 1}\n\n'


def test_a_border_that_comes_first_is_one() -> None:
    assert EventStreamReader().feed(b'\n\ndata: {"half').forward == b"\n\n"


def test_text_that_speaks_of_a_handoff_is_text() -> None:
    frame = b'data: {"text": "event: fleet.handoff\\ndata: {}"}\n\n'
    assert EventStreamReader().feed(frame) == (frame, None)


def test_a_handoff_of_several_data_lines_is_joined() -> None:
    stream = b'event:fleet.handoff\ndata: {"version":\ndata: 1}\nid: 7\n\n'
    assert EventStreamReader().feed(stream).handoff == b'{"version":\n1}'


@pytest.mark.parametrize("tail", [b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:[DONE]\n\n"])
def test_knows_that_the_stream_is_complete(tail: bytes) -> None:
    reader = EventStreamReader()
    feed_all(reader, cut_up(b"data: {}\n\n" + tail, 4))
    assert reader.is_done


def test_text_that_ends_in_done_is_not_the_end() -> None:
    reader = EventStreamReader()
    reader.feed(b'data: {"text": "data: [DONE]"}\n\n')
    assert not reader.is_done


def test_a_done_without_its_blank_line_still_counts_at_the_end() -> None:
    reader = EventStreamReader()
    assert reader.feed(b"data: {}\n\ndata: [DONE]\n").forward == b"data: {}\n\n"
    assert reader.finish() == b"data: [DONE]\n\n"
    assert reader.is_done


def test_half_a_frame_at_the_end_is_dropped() -> None:
    reader = EventStreamReader()
    reader.feed(b'data: {"ha')
    assert reader.finish() == b""
    assert not reader.is_done


@pytest.mark.parametrize(
    ("frame", "is_error"),
    [
        (b'data: {"error": {"message": "x"}}\n\n', True),
        (b'data:{"error":{"message":"x"}}\n\n', True),
        (b'data: {"error": null, "choices": []}\n\n', False),
        (b'data: {"text": "{\\"error\\": {}}"}\n\n', False),
        (b'data: {"choices": [{"error": 1}]}\n\n', False),
    ],
)
def test_tells_an_error_event_from_text_about_errors(frame: bytes, is_error: bool) -> None:
    reader = EventStreamReader()
    reader.feed(frame)
    assert (reader.error is not None) is is_error


def test_a_frame_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 100)
    reader = EventStreamReader()
    reader.feed(b"x" * 100)
    with pytest.raises(EventTooLongError):
        reader.feed(b"x")


@given(
    st.lists(st.text(alphabet='ab\r \u00e9{}:"', max_size=12), max_size=8),
    st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=30),
)
def test_any_split_forwards_the_same_bytes(texts: list[str], sizes: list[int]) -> None:
    stream = b"".join(b"data: " + t.replace("\r", "").encode() + b"\n\n" for t in texts)
    pieces, start, turn = [], 0, 0
    while start < len(stream):
        size = sizes[turn % len(sizes)]
        pieces.append(stream[start : start + size])
        start, turn = start + size, turn + 1
    assert feed_all(EventStreamReader(), pieces) == (stream, [])
