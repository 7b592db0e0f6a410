"""JSON bodies on the event loop: which ones may be parsed whole, and how one is changed without that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

_FEW = 64
MAX_CHEAP_VALUES = 50_000  # of so many objects are built within 25 ms

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def has_more_than(most: int, body: bytes, byte: bytes) -> bool:
    """Whether the byte is there more than `most` times. Few are found at the speed of memchr, where `count` looks at
    every byte: of 400 kB of prose that takes a tenth of the time."""
    at = -1
    for _ in range(min(_FEW, most + 1)):
        at = body.find(byte, at + 1)
        if at < 0:
            return False
    return most < _FEW or body.count(byte, at + 1) + _FEW > most


def is_cheap_to_parse(body: bytes) -> bool:
    """Whether all objects of this body may be built on the event loop: a comma stands before each value but the first.

    The depth of nesting is bounded by the parser itself, and bytes of strings cost next to nothing. No thread would
    help: a parser of JSON keeps the interpreter to itself.
    """
    if len(body) <= MAX_CHEAP_VALUES or body.count(b",") <= MAX_CHEAP_VALUES:
        return True
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # without escapes each quote begins or ends a string
    if plain.count(b'"') > 4 * MAX_CHEAP_VALUES:  # two around a name, two around a value
        return False
    return sum(part.count(b",") for part in plain.split(b'"')[::2]) <= MAX_CHEAP_VALUES


def with_fields(body: bytes, fields: Mapping[str, Any], *, without: frozenset[str] = frozenset()) -> bytes:
    """The JSON object with these fields set, and those in `without` removed. All others keep their bytes."""
    try:
        kept: dict[str, Any] = _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # e.g. NaN, or half a surrogate pair
        kept = json.loads(body)
    else:
        return msgspec.json.encode({name: one for name, one in kept.items() if name not in without} | dict(fields))
    return json.dumps({name: one for name, one in kept.items() if name not in without} | dict(fields)).encode()
