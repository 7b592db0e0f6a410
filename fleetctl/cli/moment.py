"""Moments and ages as people read them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

from fleetctl.cli.output import Column, seconds


def clock(at: float | None) -> str:
    """UTC date and time of day, as in the logs; empty when there is none."""
    return "" if at is None else dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(at: float | None) -> str:
    """How long ago, for people; "-" when not known."""
    return "-" if at is None else f"{seconds(max(0.0, time.time() - at))} ago"


def whole_seconds(age_s: float | None) -> str:
    """An age: its milliseconds are noise."""
    return seconds(age_s) if age_s is None or age_s >= 1 else "0s"


def age(age_s: float | None) -> str:
    """How long ago, of an age; "-" when not known."""
    return "-" if age_s is None else f"{whole_seconds(age_s)} ago"


def since_column(title: str, at: Callable[[Any], float | None]) -> Column:
    """How long ago; sorted by it, the newest first."""
    return Column(
        title,
        lambda row: ago(at(row)).removesuffix(" ago"),
        right=True,
        sort_key=lambda row: _negated(at(row)),
        is_volatile=True,
    )


def _negated(at: float | None) -> float | None:
    return None if at is None else -at
