"""Fields of a prompt that differ in every request: times, dates, ids, numbers. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple


class VolatileKind(StrEnum):
    """What stood where two prompts of one template first differ."""

    TIMESTAMP = "timestamp"  # a time of day, or seconds since the epoch
    DATE = "date"
    UUID = "uuid"
    ID = "id"  # a hash, or letters and digits mixed
    NUMBER = "number"
    TOOL_ORDER = "tool_order"  # the same tools in another order
    TEXT = "text"  # words


class VolatileField(NamedTuple):
    """Where a field stands in a text, in characters."""

    kind: VolatileKind
    start: int
    end: int


_DATE = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_NAMED_DATE = rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}\.? {_MONTH},? \d{{4}}"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?: ?[ap]m\b)?(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_EPOCH = r"\b1[0-9]{9}(?:[0-9]{3}|\.[0-9]{1,9})?\b"  # seconds or milliseconds, of the years 2001 to 2033
_FIELDS = re.compile(
    rf"(?P<uuid>\b[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}\b)"
    rf"|(?P<timestamp>\b(?:{_DATE}|{_NAMED_DATE})(?:T|,? (?:at )?){_TIME}|\b{_TIME}\b|{_EPOCH})"
    rf"|(?P<date>\b(?:{_DATE})\b|\b(?:{_NAMED_DATE})\b)"
    rf"|(?P<id>\b(?=[a-z_-]{{0,64}}\d)(?=[\d_-]{{0,64}}[a-z])[0-9a-z_-]{{8,128}}\b)"
    rf"|(?P<number>\b\d+(?:[.,]\d+)*\b)",
    re.IGNORECASE,
)
_LONGEST_FIELD = 64


def field_at(text: str, position: int) -> VolatileKind:
    """The kind of field that stands at `position`: words where none does."""
    for found in _FIELDS.finditer(text, max(0, position - _LONGEST_FIELD), position + _LONGEST_FIELD):
        if found.start() <= position < found.end():
            return _kind(found)
    return VolatileKind.TEXT


def first_field(text: str) -> VolatileField | None:
    """The first field of a text; None when there is none."""
    found = _FIELDS.search(text)
    return None if found is None else VolatileField(_kind(found), found.start(), found.end())


def only_field(text: str) -> VolatileKind | None:
    """The kind of a text that is one volatile field and nothing else; None for all others."""
    stripped = text.strip()
    found = _FIELDS.fullmatch(stripped) if len(stripped) <= _LONGEST_FIELD else None
    return None if found is None else _kind(found)


def without_fields(text: str) -> str:
    """The text with every volatile field replaced by one mark: what stays equal from request to request."""
    return _FIELDS.sub("\0", text)


def _kind(found: re.Match[str]) -> VolatileKind:
    assert found.lastgroup is not None
    return VolatileKind(found.lastgroup)
