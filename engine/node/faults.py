"""Faults for drills: what is on. Those of the core travel to it; the others work in the API process."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from engine.protocol.messages import SetFaults

log = structlog.get_logger()

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?P<labels>\{.*\})? (?P<value>\S+)")
_COMMENT = re.compile(r"# (?:HELP|TYPE) (?P<name>\S+)")


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """None is off. Limits are checked at the HTTP edge."""

    slow_steps: float | None = None  # each step takes this many times as long
    hung_core: bool | None = None  # the core does nothing more and says nothing
    wrong_numbers: bool | None = None  # drawn tokens are not those of the model
    kv_leak: int | None = None  # KV blocks lost at each step
    oom_next: int | None = None  # so many of the next steps run out of memory
    prefix_cache_off: bool | None = None  # nothing is found in the prefix cache
    slow_decode: float | None = None  # each step that computes no prompt takes this many times as long
    row_seconds: float | None = None  # each step takes so much longer for each of its sequences
    failing_share: float | None = None  # of new requests: they end with an error of the server
    slow_tokenizer: float | None = None  # seconds that tokenising takes longer
    metrics_frozen: bool | None = None  # /metrics answers what it answered when this was set
    metrics_missing: tuple[str, ...] | None = None  # beginnings of names of series that are left out
    metrics_nan: tuple[str, ...] | None = None  # ... whose values are NaN
    metrics_renamed: tuple[str, ...] | None = None  # ... that end in _renamed

    def changed(self, changes: dict[str, Any]) -> Faults:
        """With these values; None, False, 0 and empty turn a fault off."""
        return msgspec.structs.replace(self, **{name: value or None for name, value in changes.items()})

    def for_core(self) -> SetFaults:
        """The core's part: the whole state, so that what is not named is off."""
        return SetFaults(
            slow_steps=self.slow_steps,
            hung_core=bool(self.hung_core),
            wrong_numbers=bool(self.wrong_numbers),
            kv_leak_blocks=self.kv_leak or 0,
            oom_steps=self.oom_next or 0,
            prefix_cache_off=bool(self.prefix_cache_off),
            slow_decode=self.slow_decode,
            row_seconds=self.row_seconds or 0.0,
            failing_share=self.failing_share or 0.0,
        )

    def without_core(self) -> Faults:
        """What is left when the core is gone: its faults die with it."""
        return Faults(
            slow_tokenizer=self.slow_tokenizer,
            metrics_frozen=self.metrics_frozen,
            metrics_missing=self.metrics_missing,
            metrics_nan=self.metrics_nan,
            metrics_renamed=self.metrics_renamed,
        )

    def after_out_of_memory(self, count: int) -> Faults:
        """`oom_next` counts down as it strikes."""
        return self.changed({"oom_next": max(0, (self.oom_next or 0) - count)})

    def shown(self) -> dict[str, object]:
        """What is on; `slow_steps` also when it is off."""
        on = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return {"slow_steps": self.slow_steps, **on}


class FaultControl:
    """The faults of now: set by an operator, counted down or ended by what happens. Threading: event loop only."""

    def __init__(self, send: Callable[[SetFaults], object]) -> None:
        self.now = Faults()
        self._send = send
        self._metrics_faults = MetricsFaults()

    def change(self, changes: dict[str, Any]) -> None:
        """Turns the named faults on, or off with None. Values were checked."""
        self.now = self.now.changed(changes)
        self._send(self.now.for_core())
        log.warning("node.faults_set", **self.now.shown())

    def note_out_of_memory(self, count: int) -> None:
        """`count` steps ran out of memory: of so many that were to."""
        if self.now.oom_next:
            self.now = self.now.after_out_of_memory(count)

    def note_core_lost(self) -> None:
        """Faults of a core die with it."""
        self.now = self.now.without_core()

    def spoil_metrics(self, text: bytes) -> bytes:
        """The exposition as the faults of telemetry would have it."""
        return self._metrics_faults.apply(text, self.now)


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
