"""What a step costs, fitted to what nodes report of theirs. Pure.

Step time is `fixed + prompt_token * prompt tokens + decode * decoding sequences + context_token * KV positions read`;
no price is below zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fleetctl.controller.autoscaler.unknown import Unknown

MIN_INTERVALS = 8  # in which steps were computed; fewer tell prices from each other by chance
MIN_STEPS = 20


@dataclass(frozen=True, slots=True)
class StepCount:
    """Steps of one kind in one interval, and what they computed together."""

    node: str
    steps: float
    seconds: float
    prompt_tokens: float
    decodes: float
    context_tokens: float


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Seconds of a step; fields as `engine.simulation.scenario.StepCost` has them."""

    fixed_s: float
    prompt_token_s: float
    decode_s: float
    context_token_s: float

    def scaled(self, factor: float) -> StepPrices:
        """All prices that many times as high."""
        return StepPrices(
            self.fixed_s * factor, self.prompt_token_s * factor, self.decode_s * factor, self.context_token_s * factor
        )

    def to_json(self) -> dict[str, float]:
        """For the simulator."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """Prices of all nodes together, and how many times as slow each of them is."""

    prices: StepPrices
    factors: Mapping[str, float]

    def of(self, node: str) -> StepPrices:
        """A node's own; one that was not measured is as slow as the median."""
        usual = float(np.median(list(self.factors.values()))) if self.factors else 1.0
        return self.prices.scaled(self.factors.get(node, usual))


def fit_costs(counts: Sequence[StepCount]) -> FittedCosts | Unknown:
    """Least squares with prices at zero or above over the intervals of all nodes, each relative to its own length."""
    used = [one for one in counts if one.steps >= 1 and one.seconds > 0]
    if len(used) < MIN_INTERVALS or sum(one.steps for one in used) < MIN_STEPS:
        return Unknown(f"step times of {len(used)} intervals only, {MIN_INTERVALS} are needed")
    parts = np.array([(one.steps, one.prompt_tokens, one.decodes, one.context_tokens) for one in used])
    seconds = np.array([one.seconds for one in used])
    weight = 1.0 / np.sqrt(seconds)
    prices = _non_negative(parts * weight[:, np.newaxis], seconds * weight)
    if prices is None or prices[0] <= 0.0:
        return Unknown("the step times that nodes report fit no cost model")
    expected = parts @ prices
    factors: dict[str, float] = {}
    for node in {one.node for one in used}:
        own = np.array([one.node == node for one in used])
        if expected[own].sum() > 0:
            factors[node] = float(seconds[own].sum() / expected[own].sum())
    return FittedCosts(StepPrices(*(float(price) for price in prices)), factors)


def _non_negative(parts: np.ndarray, seconds: np.ndarray) -> np.ndarray | None:
    """The best of the least-squares fits with any of the parts left out that has no price below zero."""
    best: tuple[float, np.ndarray] | None = None
    width = parts.shape[1]
    scale = np.abs(parts).max(axis=0)
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            if 0 not in chosen or any(scale[index] == 0.0 for index in chosen):
                continue
            columns = list(chosen)
            found, *_ = np.linalg.lstsq(parts[:, columns] / scale[columns], seconds, rcond=1e-6)
            if (found < 0).any():
                continue
            prices = np.zeros(width)
            prices[columns] = found / scale[columns]
            error = float(((parts @ prices - seconds) ** 2).sum())
            if best is None or error < best[0] * 0.999:
                best = error, prices
    return None if best is None else best[1]
