"""Which temperature of the scorer would make stated probabilities true, by verdicts that are judged. Pure.

Probabilities are softmax(score / T), so another temperature T' raises each to the power T / T'. A verdict tells those
of its first cause and its runner-up; the rest counts as one further answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnostics.bench.judging import Result

_TRIED = [0.5 * 1.05**step for step in range(64)]  # 0.5 to about 11
_LEAST = 1e-4


@dataclass(frozen=True, slots=True)
class Stated:
    """What one verdict said, and which answer was right: 0 the first, 1 the runner-up, 2 neither."""

    first: float
    second: float
    right: int


def stated(results: Iterable[Result]) -> list[Stated]:
    """Of all judged verdicts that name a cause with a probability."""
    found = []
    for result in results:
        for one in result.judged:
            if one.probability is None:
                continue
            right = 0 if result.is_right(one) else 1 if result.is_near(one) else 2
            found.append(Stated(one.probability, one.second_probability or 0.0, right))
    return found


def fit_temperature(verdicts: Sequence[Stated], in_force: float) -> float:
    """The temperature with the smallest log loss; that in force when there is nothing to fit."""
    if not verdicts:
        return in_force
    return min(_TRIED, key=lambda tried: log_loss(verdicts, in_force / tried))


def log_loss(verdicts: Sequence[Stated], power: float) -> float:
    """Mean surprise in nats, with each probability raised to this power."""
    return sum(-math.log(tempered(one, power)[one.right]) for one in verdicts) / len(verdicts)


def tempered(one: Stated, power: float) -> tuple[float, float, float]:
    """Its three probabilities raised to a power, as a distribution."""
    raw = [max(p, _LEAST) ** power for p in (one.first, one.second, 1 - one.first - one.second)]
    first, second, rest = (p / sum(raw) for p in raw)
    return first, second, rest
