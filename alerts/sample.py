"""One sample: labels, value, timestamp; and the NaNs that say "no sample" and "this series ended"."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Prometheus' staleness marker: a NaN with a payload of its own. A scraped NaN has payload 0, so the two never mix.
STALE_NAN_BITS = 0x7FF8_0000_0000_0002
STALE_NAN: float = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]

# Series of one group share their timestamps; where one of them has no sample at a timestamp stands this NaN.
# It never leaves the store.
MISSING_BITS = 0x7FF8_0000_0000_0003
MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]


def is_stale_nan(value: float) -> bool:
    """True for the staleness marker; False for every number, an ordinary NaN included."""
    return value != value and struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of an answer, measured at `at` (Unix seconds): age = now - at.

    `at` is the newest point of a window or of an aggregated group, and the older side of a binary operation.
    """

    labels: dict[str, str]
    value: float
    at: float


def to_ms(seconds: float) -> int:
    """Whole milliseconds, as Prometheus keeps time: window borders then compare exactly."""
    return round(seconds * 1000)
