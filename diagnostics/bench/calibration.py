"""Which temperature of the scorer would make stated probabilities true, by verdicts that are judged. Pure.

Probabilities are softmax(score / T), so another temperature T' raises odds to the power T / T'. Judged is the first
cause of each verdict against everything else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnostics.bench.judging import Result

_TRIED = [0.5 * 1.05**step for step in range(64)]  # 0.5 to about 11
_LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class Stated:
    """The probability of a verdict's first cause, and whether it was the right one."""

    probability: float
    is_right: bool
    case: str = ""  # its verdicts are not independent of each other


def stated(results: Iterable[Result]) -> list[Stated]:
    """Of all judged verdicts that name a cause with a probability."""
    return [
        Stated(one.probability, result.is_right(one), result.case.name)
        for result in results
        for one in result.judged
        if one.probability is not None and one.causes
    ]


def fit_temperature(verdicts: Sequence[Stated], in_force: float) -> float:
    """The temperature with the smallest log loss; that in force when there is nothing to fit."""
    if not verdicts:
        return in_force
    return min(_TRIED, key=lambda tried: log_loss(verdicts, in_force / tried))


def modest_temperature(verdicts: Sequence[Stated], in_force: float) -> float:
    """The highest temperature that these cases do not tell from the best one: its log loss is within one standard error
    of the smallest. Cases on which causes were tuned are right more often than others will be, so the most modest
    temperature is taken that they allow.
    """
    if not verdicts:
        return in_force
    by_case: dict[str, list[Stated]] = {}
    for one in verdicts:
        by_case.setdefault(one.case, []).append(one)
    best = fit_temperature(verdicts, in_force)
    losses = [log_loss(own, in_force / best) for own in by_case.values()]
    spread = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    allowed = statistics.mean(losses) + spread
    return max((one for one in _TRIED if _mean_loss(by_case.values(), in_force / one) <= allowed), default=best)


def _mean_loss(cases: Iterable[Sequence[Stated]], power: float) -> float:
    return statistics.mean(log_loss(own, power) for own in cases)


def log_loss(verdicts: Sequence[Stated], power: float) -> float:
    """Mean surprise in nats, with the odds raised to this power."""
    total = 0.0
    for one in verdicts:
        probability = tempered(one.probability, power)
        total -= math.log(probability if one.is_right else 1 - probability)
    return total / len(verdicts)


def tempered(probability: float, power: float) -> float:
    """The probability whose odds are these raised to a power; kept off 0 and 1."""
    odds: float = (max(probability, _LEAST) / max(1 - probability, _LEAST)) ** power
    return min(max(odds / (1.0 + odds), _LEAST), 1.0 - _LEAST)
