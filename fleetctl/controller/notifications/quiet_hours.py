"""Whether a receiver is to be left alone now, and until when. Pure.

Times of the day are the receiver's own: where its clocks go forward, hours that do not exist end quiet hours early or
begin them late; where they go back, the first of two equal times counts.
"""

from __future__ import annotations

import datetime as dt

from diagnostics.severity import severity_rank
from fleetctl.settings.notifications import WEEKDAYS, QuietHours


def quiet_until(hours: QuietHours | None, severity: str, now: float) -> float | None:
    """When the receiver may be told of something so grave; None: now."""
    if hours is None or severity_rank(severity) >= severity_rank(hours.unless):
        return None
    today = dt.datetime.fromtimestamp(now, hours.zone).date()
    # A night begins on the day before as well; one that begins where another ends makes them one.
    until: float | None = None
    for offset in (-1, 0, 1):
        day = today + dt.timedelta(days=offset)
        if WEEKDAYS[day.weekday()] not in hours.days:
            continue
        begins = _moment(day, hours.begins, hours)
        last = day + dt.timedelta(days=int(hours.ends <= hours.begins))
        ends = _moment(last, hours.ends, hours)
        at = now if until is None else until
        if begins <= at < ends:
            until = ends
    return until


def _moment(day: dt.date, time: dt.time, hours: QuietHours) -> float:
    return dt.datetime.combine(day, time, tzinfo=hours.zone).timestamp()
