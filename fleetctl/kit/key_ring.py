"""Keys that servers want of us, by name: read where they lie, again when they may have changed, and never shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

READ_AGAIN_S = 5.0
MAX_KEY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where a key lies: a variable of the environment, or a file."""

    env: str | None = None
    file: Path | None = None

    @property
    def words(self) -> str:
        """For people: never what lies there."""
        return f"${self.env}" if self.env is not None else str(self.file)


@dataclass(slots=True)
class _Held:
    header: str = ""
    read_at: float = float("-inf")
    problem: str = ""


class KeyRing:
    """Gives the value of an Authorization header for a key's name. One that can't be read any more stays as it was."""

    def __init__(self, places: Mapping[str, KeyPlace], clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def header(self, name: str) -> str:
        """Empty where no key is named, or none could be read: `problem` says why."""
        return self._current(name).header if name else ""

    def problem(self, name: str) -> str:
        """Why the key can't be read; empty when it can, or none is named."""
        return self._current(name).problem if name else ""

    def _current(self, name: str) -> _Held:
        held = self._held.setdefault(name, _Held())
        now = self._clock()
        if now - held.read_at < READ_AGAIN_S:
            return held
        held.read_at = now
        try:
            held.header = f"Bearer {_read(name, self._places)}"
            problem = ""
        except ValueError as error:
            problem = str(error)
        if problem and problem != held.problem:
            import structlog  # here: the settings' tree is read by commands that log nothing, and it takes 30 ms

            structlog.get_logger().warning("api_key.not_read", key=name, reason=problem)
        held.problem = problem
        return held


NO_KEYS = KeyRing({})


def _read(name: str, places: Mapping[str, KeyPlace]) -> str:
    """Raises ValueError, which never says what the key is."""
    place = places.get(name)
    if place is None:
        raise ValueError(f"fleet.api_keys has no {name}")
    if place.file is None:
        text = os.environ.get(place.env or "", "")
    else:
        try:
            with place.file.expanduser().open("rb") as file:
                text = file.read(MAX_KEY_BYTES).decode("ascii")
        except OSError as error:
            raise ValueError(f"{place.words}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{place.words}: holds no API key: not one line of ASCII") from None
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{place.words}: holds no API key: not one line of ASCII without spaces")
    return key
