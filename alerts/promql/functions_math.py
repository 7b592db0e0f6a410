"""Functions of each value by itself: rounding, logarithms, trigonometry, clamps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from alerts.arrays import Floats
from alerts.promql.signature import Args, At, Function
from alerts.promql.values import Vector, empty_vector


def _each(operation: Callable[[Floats], Floats], moment: At, args: Args) -> Vector:
    vector = moment.vector(args[0])
    with np.errstate(all="ignore"):
        return vector.with_values(operation(vector.values))


def _round(moment: At, args: Args) -> Vector:
    """Halves go up. The inverse is used because 1/0.1 is exact where 0.1 is not."""
    nearest = moment.scalar(args[1]) if len(args) > 1 else 1.0
    with np.errstate(all="ignore"):
        inverse = np.float64(1.0) / np.float64(nearest)
        return _each(lambda values: np.floor(values * inverse + 0.5) / inverse, moment, args)


def _clamp(moment: At, args: Args) -> Vector:
    low, high = moment.scalar(args[1]), moment.scalar(args[2])
    if high < low:
        return empty_vector()
    return _each(lambda values: np.maximum(low, np.minimum(high, values)), moment, args)


def _clamp_min(moment: At, args: Args) -> Vector:
    low = moment.scalar(args[1])
    return _each(lambda values: np.maximum(low, values), moment, args)


def _clamp_max(moment: At, args: Args) -> Vector:
    high = moment.scalar(args[1])
    return _each(lambda values: np.minimum(high, values), moment, args)


def _sign(values: Floats) -> Floats:
    return np.sign(values)


PLAIN: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "sqrt": np.sqrt,
    "ln": np.log, "log2": np.log2, "log10": np.log10, "sgn": _sign,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "deg": np.degrees, "rad": np.radians,
}  # fmt: skip


def _pi(moment: At, args: Args) -> float:
    return math.pi


def _min_of(moment: At, args: Args) -> float:
    return float(np.minimum(moment.scalar(args[0]), moment.scalar(args[1])))


def _max_of(moment: At, args: Args) -> float:
    return float(np.maximum(moment.scalar(args[0]), moment.scalar(args[1])))


MATH_FUNCTIONS: dict[str, Function] = {
    **{name: partial(_each, operation) for name, operation in PLAIN.items()},
    "round": _round,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "pi": _pi,
    "min_of": _min_of,
    "max_of": _max_of,
}
