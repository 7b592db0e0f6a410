"""Hostile labels at every place where a person reads them."""

from __future__ import annotations

import io
import logging
import sys

import pytest
import structlog

from fleetctl.cli.output import print_table
from fleetctl.kit.log import configure_logging
from fleetctl.kit.printable import one_line, printable, printable_tree
from fleetctl.tui.cell import Cell
from fleetctl.tui.rich_text import paint

HOSTILE = "node\x1b[2J\r\n# All is well\u202egnp.exe\u2066\x9b31m\u2028\ufeff\x00"
SPELLED = r"node\x1b[2J\x0d\n# All is well\u202egnp.exe\u2066\x9b31m\u2028\ufeff\x00"


def test_what_steers_a_terminal_or_hides_is_spelled_out() -> None:
    assert one_line(HOSTILE) == SPELLED
    assert printable("two\nlines\tand \x07") == "two\nlines\tand \\x07"


@pytest.mark.parametrize("text", ["plain", "Zürich, 東京", "می‌خواهم", "👩‍🚒", ""])
def test_what_people_write_stays(text: str) -> None:
    assert one_line(text) == text


def test_texts_of_a_tree_are_spelled_out_and_numbers_stay() -> None:
    assert printable_tree({"a\n": ["\x1b", 1.5, None, {"b": "c"}]}) == {"a\\n": ["\\x1b", 1.5, None, {"b": "c"}]}


def test_row_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "says"], [[HOSTILE, HOSTILE]], empty="none")
    heading, row = capsys.readouterr().out.splitlines()
    assert row.split("  ") == [SPELLED, SPELLED]
    assert heading.split() == ["NAME", "SAYS"]


def test_cell_of_the_cockpit_is_one_line() -> None:
    assert paint(Cell(HOSTILE)).plain == SPELLED


@pytest.mark.parametrize("log_format", ["pretty", "json"])
def test_line_of_a_log_is_one_line(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written, handlers = io.StringIO(), logging.getLogger().handlers[:]
    monkeypatch.setattr(sys, "stderr", written)
    try:
        configure_logging("info", log_format)  # type: ignore[arg-type]
        logging.getLogger("test").warning("told: %s", HOSTILE)
    finally:
        logging.getLogger().handlers[:] = handlers
        structlog.reset_defaults()
    assert written.getvalue().count("\n") == 1
    assert "\u202e" not in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()
