"""What one value of one series is: labels, number, time; and how "this series ended" is written down."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar
from weakref import WeakValueDictionary

Labels = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs without empty values; the metric's name is under `__name__`."""

NAME = "__name__"

# A NaN with a payload of its own marks the end of a series. A scraped NaN has payload 0, so the two never mix.
STALE_BITS = 0x7FF8_0000_0000_0002
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]


def is_stale(value: float) -> bool:
    """True for the marker that says "this series ended here"; False for every number, NaN included."""
    return value != value and struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of an answer, measured at `at` (Unix seconds): age = now - at.

    `at` is the newest point of a window or of an aggregated group, and the older side of a binary operation.
    """

    labels: dict[str, str]
    value: float
    at: float


class LabelSet:
    """One distinct set of labels. Interned: equal labels are the same object, so dictionaries hash by identity.

    What is derived from a set (without its name, only some labels, ...) is kept with it: a rule that runs every
    second over the same series then costs one dictionary look-up per series instead of building tuples.
    """

    __slots__ = ("__weakref__", "_derived", "pairs")

    _interned: ClassVar[WeakValueDictionary[Labels, LabelSet]] = WeakValueDictionary()
    _intern_lock = Lock()

    pairs: Labels
    _derived: dict[object, LabelSet]

    @classmethod
    def of(cls, labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> LabelSet:
        """The set with these labels; labels with an empty value count as absent."""
        items = labels.items() if isinstance(labels, Mapping) else labels
        return cls._intern(tuple(sorted((name, value) for name, value in items if value != "")))

    @classmethod
    def _intern(cls, pairs: Labels) -> LabelSet:
        found = cls._interned.get(pairs)
        if found is None:
            with cls._intern_lock:
                found = cls._interned.get(pairs)
                if found is None:
                    found = object.__new__(cls)
                    found.pairs = pairs
                    found._derived = {}
                    cls._interned[pairs] = found
        return found

    def get(self, name: str) -> str:
        """The label's value, "" when absent."""
        for key, value in self.pairs:
            if key == name:
                return value
        return ""

    @property
    def name(self) -> str:
        return self.get(NAME)

    def keep(self, names: tuple[str, ...]) -> LabelSet:
        """Only these labels."""
        key = (True, names)
        found = self._derived.get(key)
        if found is None:
            found = self._intern(tuple(pair for pair in self.pairs if pair[0] in names))
            self._derived[key] = found
        return found

    def drop(self, names: tuple[str, ...]) -> LabelSet:
        """All but these labels."""
        key = (False, names)
        found = self._derived.get(key)
        if found is None:
            found = self._intern(tuple(pair for pair in self.pairs if pair[0] not in names))
            self._derived[key] = found
        return found

    def without_name(self) -> LabelSet:
        return self.drop((NAME,))

    def having(self, added: Labels) -> LabelSet:
        """With these labels set; an empty value removes the label."""
        found = self._derived.get(added)
        if found is None:
            found = self.of({**dict(self.pairs), **dict(added)})
            self._derived[added] = found
        return found

    def as_dict(self) -> dict[str, str]:
        return dict(self.pairs)

    def __repr__(self) -> str:
        name = self.name
        rest = ", ".join(f'{key}="{value}"' for key, value in self.pairs if key != NAME)
        return f"{name}{{{rest}}}" if rest or not name else name

    def as_matched(self) -> str:
        """The form Prometheus uses in its error messages: the name written as a label."""
        return "{" + ", ".join(f'{key}="{value}"' for key, value in self.pairs) + "}"


EMPTY = LabelSet.of({})


def to_ms(seconds: float) -> int:
    """Whole milliseconds, as Prometheus keeps time: window borders then compare exactly."""
    return round(seconds * 1000)
