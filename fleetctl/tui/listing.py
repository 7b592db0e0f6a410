"""What a table shows: columns that write a cell when it is seen, and lines in an order, grouped and filtered. Pure.

A cell is written only for the lines on screen: with 1,000 nodes that is one in twenty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fleetctl.tui.cell import Cell

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column. `write` gets a row; `sort_key` gives None where nothing is known, which comes last."""

    title: str
    width: int
    write: Callable[[T], Cell]
    sort_key: Callable[[T], Any] | None = None
    right: bool = False
    from_width: int = 0  # shown in tables that are at least this wide
    grows: bool = False  # takes the room that is left
    most: int | None = None  # so wide at most, though there is room: numbers stay near what they are of


@dataclass(frozen=True, slots=True)
class Line(Generic[T]):
    """A row under a key that stays the same while it is shown; or, without a row, the heading of a group."""

    key: str
    row: T | None = None
    heading: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """By which column, and which way; None: as they come."""

    title: str | None = None
    is_reversed: bool = False


def shown_columns(columns: Sequence[Column[T]], width: int) -> tuple[Column[T], ...]:
    """Those that have room."""
    return tuple(column for column in columns if column.from_width <= width)


def ordered(rows: Sequence[T], columns: Sequence[Column[T]], order: Order) -> list[T]:
    """Rows by a column; those of which it is not known come last either way."""
    column = next((one for one in columns if one.title == order.title), None)
    if column is None or column.sort_key is None:
        return list(rows)
    keyed = [(column.sort_key(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=order.is_reversed)
    return [*(row for _, row in known), *(row for key, row in keyed if key is None)]


def grouped(
    rows: Sequence[T],
    key: Callable[[T], str],
    group: Callable[[T], str] | None,
    heading: Callable[[str, Sequence[T]], tuple[Cell, ...]],
) -> tuple[Line[T], ...]:
    """Lines of these rows; with a group, each group by name under its heading."""
    if group is None:
        return tuple(Line(key(row), row) for row in rows)
    parts: dict[str, list[T]] = {}
    for row in rows:
        parts.setdefault(group(row), []).append(row)
    lines: list[Line[T]] = []
    for name in sorted(parts):
        lines.append(Line(f"\0{name}", None, heading(name, parts[name])))
        lines += (Line(key(row), row) for row in parts[name])
    return tuple(lines)


Labels = Mapping[str, str]


def matches(words: str, labels: Labels) -> bool:
    """Whether each word of a filter fits: `text` is in any label's value, `zone=a` in that one's; `!` negates."""
    return all(_fits(word, labels) for word in words.lower().split())


def _fits(word: str, labels: Labels) -> bool:
    is_negated, word = word.startswith("!"), word.removeprefix("!")
    if not word:
        return True
    name, equals, value = word.partition("=")
    if equals:
        found = name in labels and value in labels[name].lower()
    else:
        found = any(word in text.lower() for text in labels.values())
    return found is not is_negated
