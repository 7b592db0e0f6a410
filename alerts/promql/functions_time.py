"""Functions of time: now, a sample's own time, and the parts of a UTC date."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from alerts.arrays import Floats
from alerts.labels import EMPTY
from alerts.promql.nodes import Selector
from alerts.promql.values import CallArgs, EvalContext, Function, Vector, single

Seconds = NDArray[np.datetime64]


def _time(context: EvalContext, args: CallArgs) -> float:
    return context.at_ms / 1000.0


def _timestamp(context: EvalContext, args: CallArgs) -> Vector:
    """Of a plain selector the time of the point; of anything computed the time of evaluation."""
    vector = context.vector(args[0])
    if isinstance(args[0], Selector):
        return vector.with_values(vector.at_ms / 1000.0)
    return vector.with_values(np.full(len(vector), context.at_ms / 1000.0))


def _date_part(part: Callable[[Seconds], Floats], context: EvalContext, args: CallArgs) -> Vector:
    vector = context.vector(args[0]) if args else single(EMPTY, context.at_ms / 1000.0, context.at_ms)
    known = np.isfinite(vector.values) & (np.abs(vector.values) < 2.0**55)
    seconds = np.trunc(np.where(known, vector.values, 0.0)).astype(np.int64)
    return vector.with_values(np.where(known, part(seconds.astype("datetime64[s]")), np.nan))


def _since(unit: str, start: str, seconds: Seconds) -> Floats:
    """Whole units since the start of the larger unit."""
    count = seconds.astype(f"datetime64[{unit}]") - seconds.astype(f"datetime64[{start}]")
    whole: Floats = count.astype(f"timedelta64[{unit}]").astype(np.float64)
    return whole


def _year(seconds: Seconds) -> Floats:
    years = seconds.astype("datetime64[Y]").astype(np.int64) + 1970
    return years.astype(np.float64)


def _day_of_week(seconds: Seconds) -> Floats:
    days = (seconds.astype("datetime64[D]").astype(np.int64) + 4) % 7  # 1970-01-01 was a Thursday
    return days.astype(np.float64)


def _days_in_month(seconds: Seconds) -> Floats:
    month = seconds.astype("datetime64[M]")
    days: Floats = ((month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")).astype(np.float64)
    return days


TIME_FUNCTIONS: dict[str, Function] = {
    "time": _time,
    "start": lambda context, args: context.start_ms / 1000.0,
    "end": lambda context, args: context.end_ms / 1000.0,
    "step": lambda context, args: context.step_ms / 1000.0,
    "range": lambda context, args: (context.end_ms - context.start_ms) / 1000.0,
    "timestamp": _timestamp,
    "minute": partial(_date_part, partial(_since, "m", "h")),
    "hour": partial(_date_part, partial(_since, "h", "D")),
    "day_of_week": partial(_date_part, _day_of_week),
    "day_of_month": partial(_date_part, lambda seconds: _since("D", "M", seconds) + 1.0),
    "day_of_year": partial(_date_part, lambda seconds: _since("D", "Y", seconds) + 1.0),
    "days_in_month": partial(_date_part, _days_in_month),
    "month": partial(_date_part, lambda seconds: _since("M", "Y", seconds) + 1.0),
    "year": partial(_date_part, _year),
}
