from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.gateway.http import event_stream
from fleetctl.gateway.http.event_stream import EventStreamReader, EventTooLongError, ProgressLines

HANDOFF = b'event: fleet.handoff\ndata: {"version": 1}\n\n'


def feed_all(reader: EventStreamReader, pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    sent, handoffs = b"", []
    for piece in pieces:
        sent += reader.feed(piece)
        if reader.handoff is not None:
            handoffs.append(reader.handoff)
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
    assert reader.feed(b'data: {"a": 1}\n\ndata: {"half') == b'data: {"a": 1}\n\n'
    assert reader.feed(b'": 1}\n') == b""
    assert reader.feed(b"\n") == b'data: {"half": 1}\n\n'


def test_a_border_that_comes_first_is_one() -> None:
    assert EventStreamReader().feed(b'\n\ndata: {"half') == b"\n\n"


def test_text_that_speaks_of_a_handoff_is_text() -> None:
    frame = b'data: {"text": "event: fleet.handoff\\ndata: {}"}\n\n'
    reader = EventStreamReader()
    assert (reader.feed(frame), reader.handoff) == (frame, None)


def test_a_handoff_of_several_data_lines_is_joined() -> None:
    stream = b'event:fleet.handoff\ndata: {"version":\ndata: 1}\nid: 7\n\n'
    reader = EventStreamReader()
    assert reader.feed(stream) == b""
    assert reader.handoff == b'{"version":\n1}'


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
    assert reader.feed(b"data: {}\n\ndata: [DONE]\n") == b"data: {}\n\n"
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


TOLD = [
    (b"", b'data: {"id": 1}\n\n'),
    (b":p 0\n", b'data: {"role": "assistant"}\n\n'),
    (b":p 0 17 4\n", b'data: {"text": "\\n:p 9 9\\n"}\n\n'),
    (b":p 12!stop 8\n", b'data: {"text": ":p 3"}\n\n'),
    (b"", b": a comment of another kind\n\n"),
    (b":p $\n", b'data: {"usage": 1}\n\n'),
    (b"", b"data: [DONE]\n\n"),
]


@given(st.lists(st.sampled_from(TOLD), max_size=12), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_progress_lines_are_taken_out_and_kept_with_their_events(
    told: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    """However a stream is split: what is kept covers what was forwarded, event by event."""
    stream = b"".join(line + event for line, event in told)
    lines, sent, start, turn = ProgressLines(), b"", 0, 0
    reader = EventStreamReader(lines)
    while start < len(stream):
        size = sizes[turn % len(sizes)]
        sent += reader.feed(stream[start : start + size])
        start, turn = start + size, turn + 1
        passed = next(n for n in range(len(told) + 1) if b"".join(event for _, event in told[:n]) == sent)
        assert lines.text().encode() == b"".join(line for line, _ in told[:passed])
    assert sent == b"".join(event for _, event in told)


def test_progress_tells_how_many_tokens_the_client_has_and_whether_only_done_is_left() -> None:
    lines = ProgressLines()
    for line in (b":p 0\n", b":p 0 17 4\n", b":p 1!length 8\n"):
        lines.keep(line)
    assert (lines.num_tokens, lines.is_all_sent) == (3, False)
    lines.keep(b":p $\n")
    assert (lines.num_tokens, lines.is_all_sent) == (3, True)


def test_a_stream_that_tells_too_much_is_not_kept_but_passes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_LINES_BYTES", 20)
    lines = ProgressLines()
    reader = EventStreamReader(lines)
    events = [b"data: %d\n\n" % number for number in range(6)]
    assert b"".join(reader.feed(b":p 0 1\n" + event) for event in events) == b"".join(events)
    assert (lines.is_overfull, lines.text()) == (True, "")


def test_a_stream_that_tells_no_progress_keeps_lines_that_look_like_it() -> None:
    stream = b":p 0 1\ndata: 1\n\n"
    assert EventStreamReader().feed(stream) == stream


def test_an_error_event_and_what_follows_it_is_not_forwarded_but_kept() -> None:
    reader = EventStreamReader(ProgressLines())
    error = b'data: {"error": {"message": "x", "type": "server_error", "code": "core_dead"}}\n\n'
    assert reader.feed(b":p 0 1\ndata: {}\n\n" + error) == b"data: {}\n\n"
    assert reader.feed(b"data: [DONE]\n\n") == b""
    assert reader.error is not None
    assert (reader.error.code, reader.last_word, reader.is_done) == ("core_dead", error + b"data: [DONE]\n\n", False)


def test_a_response_that_failed_is_an_error_of_the_node_and_kept() -> None:
    reader = EventStreamReader(ProgressLines())
    begun = b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n'
    error = b'{"code":"server_error","message":"x","reason":"core_dead"}'
    failed = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":%s}}\n\n' % error
    assert reader.feed(b":p 0 1\n" + begun + failed) == begun
    assert reader.error is not None
    assert (reader.error.code, reader.last_word, reader.is_done) == ("core_dead", failed, False)
