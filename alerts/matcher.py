"""One label matcher of a selector, and the regular expressions of PromQL: Go's, which are RE2's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import re2

from alerts.errors import BadExpressionError

MAX_PATTERN_CHARS = 4096


class GoMatch(Protocol):
    """A match of a `GoPattern`, with the groups of `re.Match`."""

    def group(self, group: int | str, /) -> str | None:
        """What a group matched, None: it took no part. Raises IndexError when the pattern has no such group."""


class GoPattern(Protocol):
    """What is used of RE2's compiled patterns. They take time in proportion to the text, whatever the pattern:
    a stranger's `(a+)+b` would hold Python's `re`, and with it the event loop, for hours."""

    def fullmatch(self, text: str, /) -> GoMatch | None:
        """The match of the whole text."""

    def search(self, text: str, /) -> GoMatch | None:
        """The first match anywhere."""

    def sub(self, replacement: Callable[[GoMatch], str], text: str, /) -> str:
        """The text with each match replaced."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """`name op value`, compared with "" for a series that lacks the label. Equal matchers hash equal."""

    name: str
    op: Literal["=", "!=", "=~", "!~"]
    value: str
    _pattern: GoPattern | None = field(default=None, init=False, repr=False, compare=False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Selectors are looked up at every evaluation: hashed once.
        object.__setattr__(self, "_hash", hash((self.name, self.op, self.value)))
        if self.op in ("=~", "!~"):
            object.__setattr__(self, "_pattern", compile_go(self.value))

    def __hash__(self) -> int:
        return self._hash

    def accepts(self, value: str) -> bool:
        """Whether a series with this value of the label matches; "" for a series without the label."""
        if self._pattern is None:
            return (value == self.value) == (self.op == "=")
        return (self._pattern.fullmatch(value) is not None) == (self.op == "=~")


@lru_cache(maxsize=1024)
def compile_go(pattern: str) -> GoPattern:
    """A pattern as Prometheus reads it: `.` matches newlines too. Raises BadExpressionError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadExpressionError(f"regular expression longer than {MAX_PATTERN_CHARS} characters")
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        compiled: GoPattern = re2.compile(pattern, options)
    except re2.error as error:
        raise BadExpressionError(f"bad regular expression {pattern!r}: {_in_words(error)}") from None
    return compiled


def _in_words(error: Exception) -> str:
    """RE2's own words, which are bytes."""
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


_REFERENCE = re.compile(r"\$(?:\$|\{(\w+)\}|(\w+))")


def expand_go(template: str, match: GoMatch) -> str:
    """Go's Expand: $1, $name, ${name}; an unknown group is empty, $$ is $."""

    def one(reference: re.Match[str]) -> str:
        name = reference.group(1) or reference.group(2)
        if name is None:
            return "$"
        try:
            return match.group(int(name) if name.isdigit() else name) or ""
        except IndexError:
            return ""

    return _REFERENCE.sub(one, template)
