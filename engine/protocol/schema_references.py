"""How deep a JSON schema is where its references are followed: a compiler recurses along them as along nesting.

The text of a schema may be flat and its references a chain of a thousand links. Pure; knows no compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MAX_REFERENCED_DEPTH = 256  # a link through one property takes three levels: properties, property, definition


def find_too_deep(schema: Mapping[str, Any]) -> str | None:
    """Path of the first value that lies deeper than `MAX_REFERENCED_DEPTH` along references; None when none does.

    A reference back into a definition that is being followed ends there: recursive schemas are finite. Inside such a
    cycle the depth is a lower bound, as the longest path is not worth searching for.
    """
    return _Walk(schema).too_deep(schema, 1, "")


class _Walk:
    """One walk; each value is entered once, so it takes time linear in the schema's size."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._heights: dict[int, int] = {}  # by identity; 0 while a value is being followed

    def too_deep(self, node: object, depth: int, path: str) -> str | None:
        """As `find_too_deep`, for a value at this depth. Recurses no deeper than the limit."""
        known = self._heights.get(id(node))
        if depth + (known or 1) - 1 > MAX_REFERENCED_DEPTH:
            return path
        if known is not None or not isinstance(node, Mapping | list):
            return None
        self._heights[id(node)] = height = 0
        for where, value in self._below(node, path):
            found = self.too_deep(value, depth + 1, where)
            if found is not None:
                return found
            height = max(height, self._heights.get(id(value), 1))
        self._heights[id(node)] = height + 1
        return None

    def _below(self, node: Mapping[str, Any] | list[Any], path: str) -> Iterator[tuple[str, object]]:
        """(path, value) of what it holds and of what it refers to."""
        names = enumerate(node) if isinstance(node, list) else node.items()
        yield from ((f"{path}.{name}".removeprefix("."), value) for name, value in names)
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if isinstance(reference, str) and (target := _resolved(self._root, reference)) is not None:
            yield target


def _resolved(root: Mapping[str, Any], reference: str) -> tuple[str, object] | None:
    """(path, value) that a JSON pointer (RFC 6901) into the same document names; None for any other reference."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: object = root
    names = [part.replace("~1", "/").replace("~0", "~") for part in unquote(reference).split("/")[1:]]
    for name in names:
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return ".".join(names), found
