"""Broken telemetry for drills: what a scraper gets from a node whose metrics stand still, lack series or lie."""

from __future__ import annotations

import re

from engine.node.faults import Faults

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?P<labels>\{.*\})? (?P<value>\S+)")
_COMMENT = re.compile(r"# (?:HELP|TYPE) (?P<name>\S+)")


class MetricsFaults:
    """Spoils an exposition as the faults say; keeps the text that a frozen one repeats."""

    def __init__(self) -> None:
        self._frozen: bytes | None = None

    def apply(self, text: bytes, faults: Faults) -> bytes:
        """The text as it is served. Names are given by their beginning."""
        if faults.metrics_missing or faults.metrics_nan or faults.metrics_renamed:
            lines = (_spoil(line, faults) for line in text.decode().splitlines())
            text = "".join(f"{line}\n" for line in lines if line is not None).encode()
        if not faults.metrics_frozen:
            self._frozen = None
            return text
        if self._frozen is None:
            self._frozen = text
        return self._frozen


def _spoil(line: str, faults: Faults) -> str | None:
    """The line as served; None when it is left out."""
    comment = _COMMENT.match(line)
    found = comment or _SAMPLE.fullmatch(line)
    if found is None:
        return line
    name = found["name"]
    if name.startswith(faults.metrics_missing or ()):
        return None
    if name.startswith(faults.metrics_renamed or ()):
        start, end = found.span("name")
        line = f"{line[:start]}{_renamed(name)}{line[end:]}"
    if comment is None and name.startswith(faults.metrics_nan or ()):
        line = f"{line.rpartition(' ')[0]} NaN"
    return line


def _renamed(name: str) -> str:
    """Keeps the endings that belong to a type, so that a histogram stays one."""
    for ending in ("_bucket", "_count", "_sum", "_total"):
        if name.endswith(ending):
            return f"{name.removesuffix(ending)}_renamed{ending}"
    return f"{name}_renamed"
