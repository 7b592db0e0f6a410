"""Which keys a rule file, its groups and its rules may have, and what stands under them.

Checked by hand where other edges have pydantic: three small shapes are not worth 10 MB of memory, an eighth of all that
a process needs to scrape 100 nodes and judge them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_Check = Callable[[Any, str], Any]
_WHOLE = re.compile(r"[-+]?[0-9]{1,9}")


class BadShapeError(Exception):
    """Says where in the content, and what is wrong there."""

    def __init__(self, path: str, value: Any, wanted: str) -> None:
        reason = "empty" if value is None else wanted
        super().__init__(f"{path}: {reason}" if path else reason)


@dataclass(frozen=True, slots=True)
class GroupShape:
    """`rules` are checked one by one, so that an error can name its rule."""

    name: str
    interval: str | None = None
    query_offset: str | None = None
    limit: int = 0
    labels: dict[str, str] | None = None
    rules: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class RuleShape:
    """One rule as the file has it: durations are text, `for_` is its key `for`."""

    expr: str
    record: str | None = None
    alert: str | None = None
    for_: str | None = None
    keep_firing_for: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


def read_groups(raw: Any) -> list[Any]:
    """The groups of a file, unchecked. Raises BadShapeError, as do those below."""
    return _read(raw, {"groups": _or_none(_list)}).get("groups") or []


def read_group(raw: Any) -> GroupShape:
    """One group, its rules unchecked. Raises BadShapeError."""
    checks: dict[str, _Check] = {
        "name": _name,
        "interval": _or_none(_text),
        "query_offset": _or_none(_text),
        "limit": _whole,
        "labels": _or_none(_texts),
        "rules": _or_none(_list),
    }
    return GroupShape(**_read(raw, checks, required="name"))


def read_rule(raw: Any) -> RuleShape:
    """One rule. Raises BadShapeError."""
    checks: dict[str, _Check] = {
        "record": _or_none(_text),
        "alert": _or_none(_text),
        "expr": _text,
        "for": _or_none(_text),
        "keep_firing_for": _or_none(_text),
        "labels": _or_none(_texts),
        "annotations": _or_none(_texts),
    }
    found = _read(raw, checks, required="expr")
    return RuleShape(for_=found.pop("for", None), **found)


def _read(raw: Any, checks: Mapping[str, _Check], *, required: str | None = None) -> dict[str, Any]:
    mapping = _mapping(raw, "")
    found: dict[str, Any] = {}
    for name, check in checks.items():
        if name in mapping:
            found[name] = check(mapping[name], name)
        elif name == required:
            raise BadShapeError(name, "", "missing")
    for key in mapping:
        if key not in checks:
            raise BadShapeError(str(key), "", "unknown key")
    return found


def _or_none(check: _Check) -> _Check:
    return lambda value, path: None if value is None else check(value, path)


def _mapping(value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise BadShapeError(path, value, "wanted a mapping")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadShapeError(path, value, "wanted a list")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise BadShapeError(path, value, "wanted text; put it in quotes")
    return value


def _name(value: Any, path: str) -> str:
    if not _text(value, path):
        raise BadShapeError(path, None, "")
    return str(value)


def _whole(value: Any, path: str) -> int:
    """Scalars of the file are text."""
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        raise BadShapeError(path, value, "wanted a whole number")
    return int(value)


def _texts(value: Any, path: str) -> dict[str, str]:
    """A label without a value (`team:`) is an empty text, as Prometheus has it."""
    return {
        _text(key, path): "" if entry is None else _text(entry, f"{path}.{key}")
        for key, entry in _mapping(value, path).items()
    }
