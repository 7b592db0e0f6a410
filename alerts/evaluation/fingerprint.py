"""What Alertmanager and Prometheus agree on without a call: an alert's fingerprint."""

from __future__ import annotations

from collections.abc import Mapping

_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, 0xFFFFFFFFFFFFFFFF
_SEPARATOR = b"\xff"  # no byte of UTF-8


def fingerprint_of_labels(labels: Mapping[str, str]) -> str:
    """64-bit FNV-1a over the sorted labels, in 16 hex digits: what Alertmanager puts beside an alert."""
    digest = _OFFSET
    for name in sorted(labels, key=lambda one: one.encode()):
        for byte in name.encode() + _SEPARATOR + labels[name].encode() + _SEPARATOR:
            digest = ((digest ^ byte) * _PRIME) & _MASK
    return f"{digest:016x}"
