"""Lines of a node from journalctl's JSON, one entry a line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """One line that a node wrote, and the cursor after which the next one stands."""

    text: str
    cursor: str


def read_entries(output: str) -> Iterator[Entry]:
    """The entries in their order; what is no entry (`-- No entries --`) is left out. A message of several lines is one
    entry each with the same cursor."""
    for line in output.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict):
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # bytes that are no UTF-8
            message = bytes(one for one in message if isinstance(one, int) and 0 <= one < 256).decode(errors="replace")
        if isinstance(message, str):
            for text in message.splitlines() or [""]:
                yield Entry(text, str(entry.get("__CURSOR", "")))
