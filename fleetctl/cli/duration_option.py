"""Durations as options: "30m", "2h", "1d12h"."""

from __future__ import annotations

from fleetctl.kit.errors import BadInputError

MAX_DURATION_S = 366 * 86400


def duration_s(option: str, text: str, what: str) -> float:
    """Seconds in "30m", "2h" or "1d12h", as Alertmanager writes them, at most a year. Raises BadInputError that names
    the option and what it is of ("a silence")."""
    from alerts.duration import BadDurationError, parse_duration_s

    try:
        # Without a unit nothing is typed: so many seconds are hardly ever meant.
        total = parse_duration_s(text, typed=not text.isdecimal())
    except BadDurationError as error:
        raise BadInputError(f"{option}: {error}") from error
    if not 1 <= total <= MAX_DURATION_S:
        raise BadInputError(f"{option}: {text[:50]!r}: {what} lasts at least a second and at most a year")
    return total
