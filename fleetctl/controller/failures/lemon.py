"""Which hosts, SKUs or zones fail more than their share: rates with their uncertainty. Pure.

Failures of a group are Poisson with a rate of `ratio` times the fleet's. The ratios of all groups are taken to come
from one Gamma distribution of mean 1; the posterior of each is then Gamma again: little time pulls it towards the
fleet's rate, much time lets its own failures speak (Clayton and Kaldor, "Empirical Bayes estimates of age-standardized
relative risks for use in disease mapping", Biometrics 43(3), 1987, 671-681).

How far the ratios spread is not known either. Fitting it would call a fleet with two failures surely alike, so all
spreads count, each by how likely it makes what was seen, with a uniform prior on the standard deviation (Gelman, "Prior
distributions for variance parameters in hierarchical models", Bayesian Analysis 1(3), 2006, 515-534).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from alerts.arrays import Floats

MIN_NODE_HOURS = 24.0  # of a group, before anything is said of it
MIN_FAILURES = 3  # of a lemon: two may be one event that was counted twice
COVERAGE = 0.9  # of the interval
MUCH_WORSE = 1.5  # a ratio that is surely below this is no lemon's
MAX_SPREAD, SPREADS = 2.0, 40  # standard deviations of the ratio over groups that are weighed
LOG_RATIOS: Floats = np.linspace(math.log(1e-4), math.log(1e3), 1600)  # 1 % apart
RATIOS: Floats = np.exp(LOG_RATIOS)


class Standing(StrEnum):
    """What is known of a group against the fleet."""

    LEMON = "lemon"  # it fails more often than the fleet: the whole interval lies above 1
    ORDINARY = "ordinary"  # surely below one and a half times the fleet's rate
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
    shapes, weights = _spreads([one.failures for one in groups], expected)
    return [_judged(one, share, shapes, weights) for one, share in zip(groups, expected, strict=True)]


def _judged(group: Exposure, expected: float, shapes: Floats, weights: Floats) -> Lemon:
    if group.node_hours <= 0:
        return Lemon(Standing.UNKNOWN, why="it was not watched")
    ratio, low, high = _posterior(group.failures, expected, shapes, weights)
    standing, why = Standing.UNKNOWN, ""
    if group.node_hours < MIN_NODE_HOURS:
        why = f"watched for {group.node_hours:.3g} node-hours: less than {MIN_NODE_HOURS:g}"
    elif low > 1 and group.failures >= MIN_FAILURES:
        standing = Standing.LEMON
    elif high < MUCH_WORSE:
        standing = Standing.ORDINARY
    else:
        why = f"anything from {low:.2g} to {high:.2g} times the fleet's rate"
    return Lemon(standing, ratio, low, high, why)


def _spreads(failures: Sequence[int], expected: Sequence[float]) -> tuple[Floats, Floats]:
    """Shapes of the Gamma, one for each spread, and how much each counts."""
    spreads = MAX_SPREAD * (np.arange(SPREADS) + 1) / SPREADS
    shapes = 1 / spreads**2
    logs = np.array([_log_likelihood(shape, failures, expected) for shape in shapes.tolist()])
    weights = np.exp(logs - logs.max())
    return shapes, weights / weights.sum()


def _log_likelihood(shape: float, failures: Sequence[int], expected: Sequence[float]) -> float:
    """Of the counts of all groups, which are negative binomial, without what does not depend on the shape."""
    return math.fsum(
        math.lgamma(shape + count)
        - math.lgamma(shape)
        - shape * math.log1p(share / shape)
        - count * math.log(shape + share)
        for count, share in zip(failures, expected, strict=True)
        if share > 0
    )


def _posterior(count: int, expected: float, shapes: Floats, weights: Floats) -> tuple[float, float, float]:
    """Mean, lower and upper end of what the group's ratio may be."""
    alpha, beta = shapes + count, shapes + expected
    scale = alpha * np.log(beta) - np.array([math.lgamma(one) for one in alpha.tolist()])
    # By the logarithm of the ratio, on which the grid is even.
    logs = scale[:, None] + alpha[:, None] * LOG_RATIOS - beta[:, None] * RATIOS
    density = weights @ np.exp(logs)
    below = (np.cumsum(density) - density / 2) / density.sum()
    tail = (1 - COVERAGE) / 2
    low, high = (math.exp(float(np.interp(q, below, LOG_RATIOS))) for q in (tail, 1 - tail))
    return float(weights @ (alpha / beta)), low, high
