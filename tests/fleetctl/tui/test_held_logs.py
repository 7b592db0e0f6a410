"""Nothing is logged onto the screen, and no warning is lost."""

from __future__ import annotations

import io
import logging

import pytest

from fleetctl.tui.held_logs import held_logs


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(stream)])
    return stream


def test_holds_log_lines_and_lets_the_warnings_out_afterwards(terminal: io.StringIO) -> None:
    with held_logs():
        logging.getLogger("a").info("calm")
        logging.getLogger("b").warning("request failed")
        assert terminal.getvalue() == ""

    assert terminal.getvalue() == "request failed\n"


def test_gives_the_log_back_when_the_screen_fails(terminal: io.StringIO) -> None:
    def fail() -> None:
        with held_logs():
            logging.getLogger("a").error("lost it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    logging.getLogger("a").error("after")
    assert terminal.getvalue() == "lost it\nafter\n"
