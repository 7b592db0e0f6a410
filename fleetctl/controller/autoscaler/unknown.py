"""A value that is not known, with the reason: never zero, never a guess."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """`why` completes "not predicted: ..."."""

    why: str
