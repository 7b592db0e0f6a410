"""The metric names that a selector's regular expression stands for, where it stands for a few of them."""

from __future__ import annotations

MAX_NAMES = 64


class _NotFinite(Exception):
    pass


def names_of_pattern(pattern: str) -> list[str] | None:
    """All names that an anchored pattern such as `sglang[:_]x`, `(trtllm_)?y` or `a|b` matches, in order.

    None when it uses more than literals, sets, groups, `|` and `?`, or stands for more than MAX_NAMES.
    """
    try:
        names, at = _alternatives(pattern, 0)
    except _NotFinite:
        return None
    return names if at == len(pattern) else None


def _alternatives(pattern: str, at: int) -> tuple[list[str], int]:
    found: list[str] = []
    while True:
        names, at = _sequence(pattern, at)
        found = list(dict.fromkeys([*found, *names]))
        if pattern[at : at + 1] != "|":
            return found, at
        at += 1


def _sequence(pattern: str, at: int) -> tuple[list[str], int]:
    names = [""]
    while at < len(pattern) and pattern[at] not in "|)":
        options, at = _atom(pattern, at)
        if pattern[at : at + 1] == "?":
            options, at = ["", *options], at + 1
        if len(names) * len(options) > MAX_NAMES:
            raise _NotFinite
        names = [name + option for name in names for option in options]
    return names, at


def _atom(pattern: str, at: int) -> tuple[list[str], int]:
    """What one character, set or group stands for, and the position after it."""
    char = pattern[at]
    if char == "(":
        at += 3 if pattern.startswith("(?:", at) else 1
        names, at = _alternatives(pattern, at)
        if pattern[at : at + 1] != ")":
            raise _NotFinite
        return names, at + 1
    if char == "[":
        end = pattern.find("]", at)
        chars = pattern[at + 1 : end]
        if end < 0 or not chars or not all(_is_name_char(each) for each in chars):
            raise _NotFinite
        return list(chars), end + 1
    if not _is_name_char(char):
        raise _NotFinite
    return [char], at + 1


def _is_name_char(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "_:")
