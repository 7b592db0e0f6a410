"""Functions of each value by itself: rounding, logarithms, trigonometry, clamps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from alerts.arrays import Floats
from alerts.promql.values import CallArgs, EvalContext, Function, Vector, empty_vector


def _each(operation: Callable[[Floats], Floats], context: EvalContext, args: CallArgs) -> Vector:
    vector = context.vector(args[0])
    with np.errstate(all="ignore"):
        return vector.with_values(operation(vector.values))


def _round(context: EvalContext, args: CallArgs) -> Vector:
    """Halves go up. The inverse is used because 1/0.1 is exact where 0.1 is not."""
    nearest = context.scalar(args[1]) if len(args) > 1 else 1.0
    with np.errstate(all="ignore"):
        inverse = np.float64(1.0) / np.float64(nearest)
        return _each(lambda values: np.floor(values * inverse + 0.5) / inverse, context, args)


def _clamp(context: EvalContext, args: CallArgs) -> Vector:
    low, high = context.scalar(args[1]), context.scalar(args[2])
    if high < low:
        return empty_vector()
    return _each(lambda values: np.maximum(low, np.minimum(high, values)), context, args)


def _clamp_min(context: EvalContext, args: CallArgs) -> Vector:
    low = context.scalar(args[1])
    return _each(lambda values: np.maximum(low, values), context, args)


def _clamp_max(context: EvalContext, args: CallArgs) -> Vector:
    high = context.scalar(args[1])
    return _each(lambda values: np.minimum(high, values), context, args)


def _sign(values: Floats) -> Floats:
    return np.sign(values)


PLAIN: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sgn": _sign,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "deg": np.degrees,
    "rad": np.radians,
}


def _pi(context: EvalContext, args: CallArgs) -> float:
    return math.pi


def _min_of(context: EvalContext, args: CallArgs) -> float:
    return float(np.minimum(context.scalar(args[0]), context.scalar(args[1])))


def _max_of(context: EvalContext, args: CallArgs) -> float:
    return float(np.maximum(context.scalar(args[0]), context.scalar(args[1])))


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
