"""Reads one JSON object that names a function and its arguments, character by character, before it is whole."""

from __future__ import annotations

import json

ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_SPACE = " \t\r\n"


class ValueScan:
    """Finds the end of one JSON value by its brackets and strings. It does not check what is in between."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "_kind", "is_done")

    def __init__(self, first: str) -> None:
        self._kind = first  # the value's first character says what ends it
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_done = False
        self.feed(first)

    def feed(self, char: str) -> bool:
        """Whether the character belongs to the value; one that does not ended it before."""
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_in_string = False
                self.is_done = self._depth == 0
            return True
        if self._kind not in '{["' and (char in ",}]" or char in _SPACE):  # a number, true, false, null
            self.is_done = True
            return False
        if char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0
        return True


class CallScan:
    """One call. `name` and `arguments` grow while characters are fed.

    `arguments` is only ever added to, so what was shown of it stays true. A string is taken as the JSON it holds.
    """

    __slots__ = (
        "_is_argument",
        "_is_shown_raw",
        "_key",
        "_state",
        "_text",
        "_value",
        "arguments",
        "has_arguments",
        "is_bad",
        "is_done",
        "name",
        "raw",
    )

    def __init__(self) -> None:
        self.raw = ""
        self.name: str | None = None
        self.arguments = ""
        self.has_arguments = False
        self.is_done = False
        self.is_bad = False  # no JSON object, or one that is no call
        self._state = "open"
        self._key = ""
        self._text = ""  # of the key or value that is being read
        self._value: ValueScan | None = None
        self._is_argument = False  # of that value
        self._is_shown_raw = False  # of an argument: an object's text is shown as it comes

    @property
    def is_shown(self) -> bool:
        """Whether it is certain to be a call: its name is known and its arguments have begun, or it is whole."""
        return self.name is not None and (self.has_arguments or self.is_done) and not self.is_bad

    def feed(self, char: str) -> None:
        """Takes one character. Nothing may follow once it is done or bad."""
        self.raw += char
        if self._value is not None:
            is_inside = self._value.feed(char)
            if is_inside:
                self._add(char)
            if self._value.is_done:
                self._end_value()
            if is_inside:
                return
        if char in _SPACE:
            return
        match self._state, char:
            case "open", "{":
                self._state = "key"
            case (("key" | "next_key"), '"'):
                self._begin(char)
            case "colon", ":":
                self._state = "value"
            case "value", _ if char not in ",:]}":
                self._begin(char)
            case "after", ",":
                self._state = "next_key"
            case (("key" | "after"), "}"):
                self._end()
            case _:
                self.is_bad = True

    def _begin(self, char: str) -> None:
        self._value, self._text = ValueScan(char), ""
        self._is_argument = self._state == "value" and self._key in ARGUMENT_KEYS and not self.has_arguments
        self._is_shown_raw = self._is_argument and char == "{"
        self.has_arguments = self.has_arguments or self._is_shown_raw
        self._add(char)

    def _add(self, char: str) -> None:
        self._text += char
        if self._is_shown_raw:
            self.arguments += char

    def _end_value(self) -> None:
        text, self._value = self._text, None
        if self._state in ("key", "next_key"):
            key = _decoded(text)
            self.is_bad = self.is_bad or not isinstance(key, str)
            self._key, self._state = str(key), "colon"
            return
        if self._key == "name":
            name = _decoded(text)
            self.is_bad = self.is_bad or not isinstance(name, str) or not name
            self.name = str(name)
        elif self._is_argument and not self._is_shown_raw:
            value = _decoded(text)
            self.arguments, self.has_arguments = (value if isinstance(value, str) else "{}"), True
        self._state = "after"

    def _end(self) -> None:
        self.is_done = True
        if self.name is None:
            self.is_bad = True
        if not self.has_arguments:
            self.arguments = "{}"


def _decoded(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):  # the parser recurses: about 1,000 levels of brackets are too many for it
        return None
