"""One label matcher of a selector, and Go's regular expressions in Python's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from alerts.errors import BadExpressionError

MAX_PATTERN_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Matcher:
    """`name op value`, compared with "" for a series that lacks the label. Equal matchers hash equal."""

    name: str
    op: Literal["=", "!=", "=~", "!~"]
    value: str
    _pattern: re.Pattern[str] | None = field(default=None, init=False, repr=False, compare=False)
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
def compile_go(pattern: str) -> re.Pattern[str]:
    """Go's (RE2) pattern as a Python one. `.` matches newlines, as in Prometheus. Raises BadExpressionError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadExpressionError(f"regular expression longer than {MAX_PATTERN_CHARS} characters")
    try:
        return re.compile(_translate(pattern), re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadExpressionError(f"bad regular expression {pattern!r}: {error}") from None


_REFERENCE = re.compile(r"\$(?:\$|\{(\w+)\}|(\w+))")


def expand_go(template: str, match: re.Match[str]) -> str:
    """Go's Expand: $1, $name, ${name}; an unknown group is empty, $$ is $."""

    def one(reference: re.Match[str]) -> str:
        name = reference.group(1) or reference.group(2)
        if name is None:
            return "$"
        try:
            return match.group(int(name) if name.isdigit() else name) or ""
        except (IndexError, KeyError):
            return ""

    return _REFERENCE.sub(one, template)


_FLAGS = re.compile(r"\(\?([imsU]*)(-[imsU]+)?([:)])")
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\t\n\v\f\r ",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
    "punct": r"!-/:-@\[-`{-~",
    "blank": r"\t ",
}


def _translate(pattern: str) -> str:
    """What differs: flags in the middle `a(?i)b`, `\\z`, `\\Q..\\E`, POSIX classes, ASCII-only \\d \\w \\s."""
    out: list[str] = []
    open_flags: list[list[str]] = [[]]  # for each open group: the flag groups opened inside it
    at = 0
    in_class = False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at = _translate_escape(pattern, at, out, in_class=in_class)
            continue
        if in_class:
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(pattern, at)
            if posix and posix.group(2) in _POSIX and not posix.group(1):
                out.append(_POSIX[posix.group(2)])
                at = posix.end()
                continue
            in_class = char != "]" or out[-1] in ("[", "[^")
            out.append("\\[" if char == "[" else char)
        elif char == "[":
            in_class = True
            out.append("[^" if pattern[at + 1 : at + 2] == "^" else "[")
            at += len(out[-1]) - 1
        elif char == "(":
            flags = _FLAGS.match(pattern, at)
            if flags and "U" in flags.group():
                raise re.error("the flag U is not supported")
            if flags and flags.group(3) == ")":
                opened = f"(?{flags.group(1)}{flags.group(2) or ''}:"
                open_flags[-1].append(opened)
                out.append(opened)
                at = flags.end()
                continue
            open_flags.append([])
            if flags and not flags.group(1) and flags.group(2) is None:
                out.append("(?:")
                at = flags.end()
                continue
            out.append("(")
        elif char == ")":
            out.append(")" * len(open_flags.pop() if len(open_flags) > 1 else []) + ")")
        elif char == "|":
            out.append(")" * len(open_flags[-1]) + "|" + "".join(open_flags[-1]))  # flags outlive an alternative
        else:
            out.append(char)
        at += 1
    out.append(")" * len(open_flags[0]))
    return "".join(out)


def _translate_escape(pattern: str, at: int, out: list[str], *, in_class: bool) -> int:
    """Appends the escape that starts at `at`; the position after it."""
    char = pattern[at + 1]
    if char == "Q":
        end = pattern.find("\\E", at + 2)
        literal = pattern[at + 2 : end if end >= 0 else len(pattern)]
        out.append(re.escape(literal))
        return end + 2 if end >= 0 else len(pattern)
    braced = re.compile(r"x\{([0-9A-Fa-f]{1,6})\}").match(pattern, at + 1)
    if braced:
        out.append(re.escape(chr(int(braced.group(1), 16))))
        return braced.end()
    plain = {"z": r"\Z", "C": "."}
    classes = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}
    if char in classes:
        out.append(classes[char] if in_class else f"[{classes[char]}]")
    elif char in ("D", "W", "S") and not in_class:
        out.append(f"[^{classes[char.lower()]}]")
    elif char in plain:
        out.append(plain[char])
    elif char in "pP":
        raise re.error(f"character classes \\{char} are not supported")
    else:
        out.append("\\" + char)
    return at + 2
