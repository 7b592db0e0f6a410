"""Text from outside (labels, rule files, logs of others) as a person may see it: nothing in it steers what shows it.

Applied once, where text leaves for a terminal, a page or a person's log. What programs read stays as it came.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

_KEPT = "\n\t"
# Control, format (bidi overrides and isolates, zero width, tags), line and paragraph separators, lone surrogates.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
_JOINERS = "\u200c\u200d"  # letters of some scripts, and emoji, are written with them


def printable(text: str) -> str:
    """The text with what is invisible or steers a terminal spelled out; its lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(one) if _is_hidden(one) and one not in _KEPT else one for one in text)


def one_line(text: str) -> str:
    """As `printable`, on one line: a row of a table, a heading, an entry of a list."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t") if not text.isprintable() else text


def printable_tree(value: Any) -> Any:
    """Mappings and lists with each text in them as `one_line`."""
    match value:
        case str():
            return one_line(value)
        case Mapping():
            return {one_line(str(key)): printable_tree(one) for key, one in value.items()}
        case list() | tuple():
            return [printable_tree(one) for one in value]
        case _:
            return value


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN_CATEGORIES and char not in _JOINERS


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
