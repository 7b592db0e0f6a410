"""The timeline as server-sent events: in order, resumable by number, alive while nothing happens."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from fleetctl.controller.event_feed import feed
from fleetctl.wire.timeline import TimelineEntry

pytestmark = pytest.mark.anyio


def entry(seq: int, text: str = "node-1: ready") -> TimelineEntry:
    return TimelineEntry(seq=seq, at=1.0, kind="node.ready", text=text)


async def fed(after: int, *answers: Sequence[TimelineEntry] | None) -> tuple[list[str], list[int]]:
    """What is sent, and after which number it was asked for each time."""
    left, asked = list(answers), []

    async def wait(seen: int, _: float) -> Sequence[TimelineEntry] | None:
        asked.append(seen)
        return left.pop(0)

    return [part async for part in feed(wait, after)], asked


async def test_each_entry_is_an_event_with_its_number_and_what_comes_next_is_asked_after_it() -> None:
    (retry, first, second), asked = await fed(6, [entry(7), entry(9, "two\nlines")], None)

    assert retry.startswith("retry: ")
    number, kind, data, *rest = first.split("\n")
    assert (number, kind, rest) == ("id: 7", "event: node.ready", ["", ""])
    assert json.loads(data.removeprefix("data: "))["text"] == "node-1: ready"
    assert second.count("\n") == 4
    assert asked == [6, 9]


async def test_it_says_that_it_is_alive_while_nothing_happens() -> None:
    parts, asked = await fed(3, [], None)

    assert parts[1] == ": alive\n\n"
    assert asked == [3, 3]
