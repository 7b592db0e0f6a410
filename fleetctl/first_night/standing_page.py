"""The page as it stands: rows of faults that were not run again stay on it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

_ROW = re.compile(r"^\| \*\*(?P<fault>[a-z0-9-]+)\*\*: .*\|$")
_HELD = re.compile(r"^\| \*\*(?P<fault>[a-z0-9-]+)\*\* \| .*\|$")
_SAID = re.compile(r"^\| (?P<fault>[a-z0-9-]+) \| .*\|$")
_NOTE = re.compile(r"^- (?:\*\*)?(?P<fault>[a-z0-9-]+)(?:\*\*)?: ")
_RUN = re.compile(r"^Run (?P<days>.+?) on (?P<machines>.+?): \d+\s+of\s+\d+\s+right", re.MULTILINE | re.DOTALL)
_MACHINE = re.compile(r"(.+?, \d+ cores)(?:, |$)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
SAID_HEADING, HELD_HEADING, WRONG_HEADING, NOTES_HEADING = (
    "## What was said, and when",
    "## Held for a quarter of an hour and longer",
    "## Not right yet",
    "## What was not said in the table",
)

WALKED_HEADING = "## Walked by somebody new"
"""From here to its end the page is written by people."""


@dataclass(frozen=True, slots=True)
class StandingPage:
    """What it says of each fault, by the fault's name."""

    rows: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    days: frozenset[str] = frozenset()
    machines: frozenset[str] = frozenset()
    walked: str = ""  # what people wrote at its end, with its heading


def read_page(text: str) -> StandingPage:
    """The statements of a page that was written before; of anything else, none."""
    text, heading, tail = text.partition(f"{WALKED_HEADING}\n")
    page = StandingPage(walked=heading + tail)
    heading = ""
    for line in _unfolded(text):
        if line.startswith("## "):
            heading = line
        elif heading == HELD_HEADING and (held := _HELD.match(line)) is not None:
            page.held[held["fault"]] = line
        elif (row := _ROW.match(line)) is not None:
            page.rows[row["fault"]] = line
        elif heading == SAID_HEADING and (said := _SAID.match(line)) is not None:
            page.said[said["fault"]] = line
        elif (note := _NOTE.match(line)) is not None and heading in (WRONG_HEADING, NOTES_HEADING):
            (page.wrong if heading == WRONG_HEADING else page.notes).setdefault(note["fault"], []).append(line)
    if (run := _RUN.search(text)) is None:
        return page
    machines = frozenset(_MACHINE.findall(" ".join(run["machines"].split())))
    days = frozenset(_DAY.findall(run["days"]))
    return replace(page, days=days, machines=machines)


def _unfolded(text: str) -> list[str]:
    """List items are one line again."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  ") and lines and lines[-1].startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines
