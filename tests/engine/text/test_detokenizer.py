"""Text of tokens: whole characters, stop strings never shown, and the same text however tokens were grouped."""

import random

import pytest

from engine.text.detokenizer import TextStream, first_stop, longest_stop_prefix


def as_byte(token_id: int) -> bytes:
    return bytes([token_id])


def make_stream(stop: tuple[str, ...] = (), **options: object) -> TextStream:
    return TextStream(as_byte, stop=stop, **options)  # type: ignore[arg-type]


def push_all(stream: TextStream, data: bytes) -> list[str]:
    shown = []
    for byte in data:
        if stream.stopped_by is not None:
            break
        shown.append(stream.push(byte))
    return shown


@pytest.mark.parametrize("text", ["é", "你", "🙂", "a🙂b你é"])
def test_shows_a_character_only_when_it_is_whole(text: str) -> None:
    stream = make_stream()
    shown = push_all(stream, text.encode())
    assert [piece for piece in shown if piece] == list(text)


def test_shows_bytes_that_are_no_text_once_it_is_certain() -> None:
    stream = make_stream()
    assert push_all(stream, b"\xe4a") == ["", "\ufffda"]


def test_drops_a_character_that_never_became_whole() -> None:
    stream = make_stream()
    shown = push_all(stream, "a🙂".encode()[:-1])
    assert "".join(shown) + stream.finish() == "a"


@pytest.mark.parametrize(
    ("data", "stop", "expected", "stopped_by"),
    [
        ("hello STOP more", ("STOP",), "hello ", "STOP"),
        ("aab", ("ab",), "a", "ab"),
        ("STSTOP", ("STOP",), "ST", "STOP"),
        ("abc", ("c", "bc"), "a", "bc"),
        ("abcd", ("bcd", "c"), "ab", "c"),
        ("end 你好", ("你好",), "end ", "你好"),
        ("nothing", ("STOP",), "nothing", None),
        ("half STO", ("STOP",), "half STO", None),
    ],
)
def test_ends_before_the_stop_string_that_is_complete_first(
    data: str, stop: tuple[str, ...], expected: str, stopped_by: str | None
) -> None:
    stream = make_stream(stop)
    shown = "".join(push_all(stream, data.encode()))
    if stream.stopped_by is None:
        shown += stream.finish()
    assert (shown, stream.stopped_by) == (expected, stopped_by)
    assert stream.num_chars == len(expected)


def test_includes_the_stop_string_when_asked() -> None:
    stream = make_stream(("STOP",), include_stop=True)
    assert "".join(push_all(stream, b"a STOP b")) == "a STOP"


def test_stop_strings_count_only_from_the_smallest_number_of_tokens_on() -> None:
    stream = make_stream(("ab",), min_tokens=4)
    assert "".join(push_all(stream, b"abcabc")) == "abc"
    assert stream.stopped_by == "ab"


def test_nothing_of_a_stop_string_is_ever_shown() -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = "".join(rng.choice("ab") for _ in range(40))
        stop = tuple("".join(rng.choice("ab") for _ in range(rng.randint(1, 6))) for _ in range(3))
        stream = make_stream(stop)
        so_far = ""
        for piece in push_all(stream, data.encode()):
            so_far += piece
            # what is shown stays right whatever comes: no stop string is in it, and it is the text's beginning
            assert data.startswith(so_far)
            assert first_stop(so_far, stop) is None
        cut = first_stop(data, stop)
        assert so_far + stream.finish() == (data if cut is None else data[: cut[0]])


def test_a_replayed_stream_goes_on_where_the_other_stopped() -> None:
    rng = random.Random(11)
    pool = "añ你🙂 STOP".encode() * 4
    for _ in range(200):
        data = bytes(rng.choice(pool) for _ in range(60))
        cut = rng.randint(0, 60)
        first, second = make_stream(("TO", "🙂ñ")), make_stream(("TO", "🙂ñ"))
        before = "".join(push_all(first, data[:cut]))
        assert "".join(push_all(second, data[:cut])) == before
        after_first = "".join(push_all(first, data[cut:]))
        after_second = "".join(push_all(second, data[cut:]))
        assert (after_first, first.finish(), first.stopped_by) == (after_second, second.finish(), second.stopped_by)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [("xab", ("abc",), 2), ("abc", ("abc",), 0), ("", ("a",), 0), ("xa", ("ab", "xab"), 2), ("zz", ("a",), 0)],
)
def test_holds_back_the_longest_beginning_of_a_stop_string(text: str, stop: tuple[str, ...], expected: int) -> None:
    assert longest_stop_prefix(text, stop) == expected
