"""Log lines on the Node screen: what a person looks for comes first, and nothing is lost that is no JSON."""

from __future__ import annotations

from fleetctl.tui.log_line import log_words


def test_time_and_event_come_first_and_what_is_empty_is_left_out() -> None:
    line = (
        '{"request_id": "r-1", "trace_id": null, "level": "info", "event": "ended", '
        '"timestamp": "2026-11-23T20:23:31.5Z"}'
    )

    assert log_words(line) == "20:23:31 ended request_id=r-1"


def test_a_level_is_told_where_it_is_no_everyday_one() -> None:
    assert log_words('{"event": "core died", "level": "error", "code": -9}') == "ERROR core died code=-9"


def test_other_lines_stay_as_they_are_and_steer_no_terminal() -> None:
    assert log_words("Traceback (most recent call last):") == "Traceback (most recent call last):"
    assert log_words('{"half a line') == '{"half a line'
    assert "\x1b" not in log_words("\x1b[2Jgone")
