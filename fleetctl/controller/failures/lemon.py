"""Which hosts, SKUs or zones fail more than their share: rates with their uncertainty. Pure.

Failures of a group are Poisson with a rate of `ratio` times the fleet's. The ratios of all groups are taken to come
from one Gamma distribution of mean 1, whose shape is fitted to what all show (the marginal is negative binomial).
The posterior of a group's ratio is then Gamma again: little time pulls it towards the fleet's, much time lets its own
failures speak (Clayton and Kaldor, "Empirical Bayes estimates of age-standardized relative risks for use in disease
mapping", Biometrics 43(3), 1987, 671-681).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_NODE_HOURS = 24.0  # of a group, before anything is said of it
MIN_FAILURES = 3  # of a lemon: two may be one event that was counted twice
COVERAGE = 0.9  # of the interval
MUCH_WORSE = 2.0  # a ratio that is surely below this is no lemon's
MIN_SHAPE, MAX_SHAPE, SHAPES = 0.1, 1e4, 121  # of the fitted Gamma: from very unlike to all alike


class Standing(StrEnum):
    """What is known of a group against the fleet."""

    LEMON = "lemon"  # it fails more often than the fleet: the whole interval lies above 1
    ORDINARY = "ordinary"  # surely below twice the fleet's rate
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Exposure:
    """How long a group was watched, and how often it failed meanwhile."""

    node_hours: float
    failures: int


@dataclass(frozen=True, slots=True)
class Lemon:
    """A group's rate over the fleet's, as the interval that holds it with 90 %. None: nothing to compare with."""

    standing: Standing
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""  # of what is not known


def judge(groups: Sequence[Exposure]) -> list[Lemon]:
    """Each group against all of them together."""
    hours = math.fsum(one.node_hours for one in groups)
    failures = sum(one.failures for one in groups)
    if not failures or hours <= 0:
        why = "nothing failed" if hours > 0 else "nothing was watched"
        return [Lemon(Standing.UNKNOWN, why=why) for _ in groups]
    if sum(one.node_hours > 0 for one in groups) < 2:
        return [Lemon(Standing.UNKNOWN, why="there is no other to compare with") for _ in groups]
    expected = [failures * one.node_hours / hours for one in groups]
    shape = fitted_shape([one.failures for one in groups], expected)
    return [_judged(one, share, shape) for one, share in zip(groups, expected, strict=True)]


def _judged(group: Exposure, expected: float, shape: float) -> Lemon:
    if group.node_hours <= 0:
        return Lemon(Standing.UNKNOWN, why="it was not watched")
    alpha, beta = shape + group.failures, shape + expected
    tail = (1 - COVERAGE) / 2
    low, high = gamma_quantile(tail, alpha) / beta, gamma_quantile(1 - tail, alpha) / beta
    standing, why = Standing.UNKNOWN, ""
    if group.node_hours < MIN_NODE_HOURS:
        why = f"watched for {group.node_hours:.3g} node-hours: less than {MIN_NODE_HOURS:g}"
    elif low > 1 and group.failures >= MIN_FAILURES:
        standing = Standing.LEMON
    elif high < MUCH_WORSE:
        standing = Standing.ORDINARY
    else:
        why = f"anything from {low:.2g} to {high:.2g} times the fleet's rate"
    return Lemon(standing, alpha / beta, low, high, why)


def fitted_shape(failures: Sequence[int], expected: Sequence[float]) -> float:
    """The shape under which what all groups show is likeliest; the largest one, all alike, where none is likelier."""
    step = math.log(MAX_SHAPE / MIN_SHAPE) / (SHAPES - 1)
    shapes = [MIN_SHAPE * math.exp(step * index) for index in range(SHAPES)]
    return max(reversed(shapes), key=lambda shape: _log_likelihood(shape, failures, expected))


def _log_likelihood(shape: float, failures: Sequence[int], expected: Sequence[float]) -> float:
    """Of negative binomial counts, without what does not depend on the shape."""
    return math.fsum(
        math.lgamma(shape + count)
        - math.lgamma(shape)
        - shape * math.log1p(share / shape)
        - count * math.log(shape + share)
        for count, share in zip(failures, expected, strict=True)
        if share > 0
    )


def gamma_quantile(q: float, shape: float) -> float:
    """The q-quantile of a Gamma distribution of rate 1, by bisection."""
    low, high = 0.0, shape + 10.0 * math.sqrt(shape) + 20.0
    while gamma_share(shape, high) < q:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if high - low <= 1e-12 * high:
            break
        low, high = (middle, high) if gamma_share(shape, middle) < q else (low, middle)
    return (low + high) / 2


def gamma_share(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function: the series below `shape + 1`, Lentz's fraction above it."""
    if x <= 0:
        return 0.0
    log_head = shape * math.log(x) - x - math.lgamma(shape)
    if x < shape + 1:
        term = total = 1.0 / shape
        index = shape
        while term > total * 1e-15:
            index += 1
            term *= x / index
            total += term
        return min(1.0, total * math.exp(log_head))
    b = x + 1.0 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for index in range(1, 10_000):
        a = -index * (index - shape)
        b += 2.0
        d = 1.0 / (a * d + b)
        c = b + a / c
        fraction *= (step := d * c)
        if abs(step - 1.0) < 1e-15:
            break
    return max(0.0, 1.0 - fraction * math.exp(log_head))
