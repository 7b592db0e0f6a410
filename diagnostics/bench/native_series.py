"""The levels of a node's native series over time, and the samples that its scrapes give of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from alerts.arrays import Bools, Floats

Kind = Literal["gauge", "counter", "histogram"]
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Level:
    """A series before it is scraped. Shapes: (times,).

    `value`: a gauge's value, a counter's rate per second, the mean of a histogram's observations, of which there are
    `rate` per second with `sigma` of their logarithm. `outlier_share` of them are near `outlier` instead.
    """

    name: str
    kind: Kind
    value: Floats
    labels: Labels = ()
    rate: Floats | None = None
    sigma: Floats | float = 0.5
    bounds: Sequence[float] = ()
    outlier_share: Floats | float = 0.0
    outlier: Floats | float = 0.0
    is_exact: bool = False  # a counter without sampling noise
    amount: Floats | None = (
        None  # of a counter: what each event adds, of which there are `value` per second, when it is over
    )
    start: float = 0.0  # of a counter
    missing: Bools | None = None
    frozen: Bools | None = None
    not_a_number: Bools | None = None
    restarts: list[int] = field(default_factory=list)  # times at which a counter begins anew


Row = tuple[str, Labels, Floats]
"""Metric name, labels, and the value of each scrape (missing: NaN of `absent`)."""


def rows_of(level: Level, dt: float, rng: np.random.Generator) -> list[Row]:
    """What scrapes give of it, without what is missing."""
    if level.kind == "gauge":
        rows = [(level.name, level.labels, level.value.astype(np.float64))]
    elif level.kind == "counter":
        added = _events(level, level.value, dt, rng) if level.amount is None else _whole(level.value, dt) * level.amount
        rows = [(level.name, level.labels, _counted(added, level))]
    else:
        rows = _histogram(level, dt, rng)
    return [(name, labels, _held(values, level)) for name, labels, values in rows]


def _events(level: Level, rate: Floats, dt: float, rng: np.random.Generator) -> Floats:
    expected = np.clip(np.nan_to_num(rate), 0, 1e12) * dt
    return expected if level.is_exact else rng.poisson(expected).astype(np.float64)


def _whole(rate: Floats, dt: float) -> Floats:
    """How many of them end at each time: whole ones, as many as flowed in all."""
    found: Floats = np.diff(np.floor(np.cumsum(np.clip(np.nan_to_num(rate), 0, 1e12) * dt)), prepend=0.0)
    return found


def _counted(increments: Floats, level: Level) -> Floats:
    found = np.cumsum(increments) + level.start
    for at in level.restarts:
        found[at:] -= found[at]
    return found


def _histogram(level: Level, dt: float, rng: np.random.Generator) -> list[Row]:
    assert level.rate is not None
    counts = _events(level, level.rate, dt, rng)
    sigma = np.broadcast_to(np.asarray(level.sigma, dtype=np.float64), counts.shape)
    mean = np.maximum(np.nan_to_num(level.value), 1e-9)
    share = np.broadcast_to(np.asarray(level.outlier_share, dtype=np.float64), counts.shape)
    outlier = np.broadcast_to(np.asarray(level.outlier, dtype=np.float64), counts.shape)
    bounds = np.asarray(level.bounds, dtype=np.float64)
    middle = np.log(mean) - sigma**2 / 2
    cdf = _normal_cdf((np.log(bounds)[np.newaxis, :] - middle[:, np.newaxis]) / sigma[:, np.newaxis])
    cdf = cdf * (1 - share[:, np.newaxis]) + share[:, np.newaxis] * (bounds[np.newaxis, :] >= outlier[:, np.newaxis])
    parts = np.diff(cdf, axis=1, prepend=0.0, append=1.0).clip(0, 1)
    parts /= parts.sum(axis=1, keepdims=True)
    drawn = rng.multinomial(counts.astype(np.int64), parts).astype(np.float64)
    spread = np.sqrt((np.exp(sigma**2) - 1) / np.maximum(counts, 1)).clip(0, 0.5)
    total = counts * np.maximum(mean * (1 + spread * rng.standard_normal(len(counts))), mean * 0.3)
    total = total * (1 - share) + counts * share * outlier
    name, labels = level.name, level.labels
    cumulative = np.cumsum(drawn, axis=1)
    rows: list[Row] = [
        (f"{name}_bucket", (*labels, ("le", _bound(bound))), _counted(cumulative[:, index], level))
        for index, bound in enumerate(bounds.tolist())
    ]
    rows.append((f"{name}_bucket", (*labels, ("le", "+Inf")), _counted(counts, level)))
    rows.append((f"{name}_sum", labels, _counted(total, level)))
    rows.append((f"{name}_count", labels, _counted(counts, level)))
    return rows


def _held(values: Floats, level: Level) -> Floats:
    if level.frozen is not None and level.frozen.any():
        values = values.copy()
        first = int(np.argmax(level.frozen))
        values[level.frozen] = values[max(first - 1, 0)]
    if level.not_a_number is not None:
        values = np.where(level.not_a_number, np.nan, values)
    return values


def _bound(value: float) -> str:
    return repr(float(value))


def _normal_cdf(x: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26: within 1.5e-7."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = 1 - poly * np.exp(-(z**2))
    found: Floats = 0.5 * (1 + np.sign(x) * erf)
    return found
