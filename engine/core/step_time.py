"""How long the next step should take, learned from the steps before it.

Seconds are fitted to a sum of what a step consists of, each with a price that is never negative: a fixed part,
decoding sequences, tokens proposed for them, prompt tokens, KV positions read, pairs of prompt positions, blocks
moved. So a step of a size that was never seen is still judged by the sizes that were.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from engine.protocol.step import StepPlan

DECAY = 0.995  # weight of the past at each step: about the last 200 count
NORM_DECAY = 0.9995
SLOW_RATIO = 1.5  # from here on a step is slow: it does not become the norm
_NORM_STEPS = 64  # all of the first ones are learned from, then a sample: learning costs more than asking
_NORM_SAMPLE = 8
UNSEEN_FACTOR = 4.0  # a step larger than any measured may cost this many times what the prices say
_MIN_STEPS = 3
_SWEEPS = 3
_SEEN_SHARE = 1.5  # up to this many times the largest measured counts as seen
_TINY = 1e-12


class StepSize(NamedTuple):
    """What a step's seconds depend on; `one` is the fixed part."""

    one: float
    decodes: float
    prompt_tokens: float
    context_tokens: float
    pairs: float
    moved_blocks: float
    draft_tokens: float = 0.0

    @classmethod
    def of(cls, plan: StepPlan) -> StepSize:
        """What a plan's seconds depend on."""
        decodes = prompt = context = pairs = drafted = 0
        for row in plan.scheduled:
            context += row.start + row.num_tokens
            drafted += len(row.draft)
            if row.num_known_tokens == 1:
                decodes += 1
            else:
                prompt += row.num_tokens
                pairs += row.num_tokens * (2 * row.start + row.num_tokens) // 2
        moved = len(plan.swap_in) + len(plan.swap_out) + len(plan.copies)
        return cls(1.0, decodes, prompt, context, pairs, moved, drafted)


class StepTimeForecast:
    """Decayed least squares with prices kept at zero or above, improved by a few sweeps at each step."""

    def __init__(self, decay: float = DECAY) -> None:
        size = len(StepSize._fields)
        self._decay = decay
        self._num_steps = 0
        self._prices = [0.0] * size
        self._products = [[0.0] * size for _ in range(size)]  # of parts with parts
        self._seconds = [0.0] * size  # of parts with seconds
        self._largest = [0.0] * size

    def observe(self, size: StepSize, seconds: float) -> None:
        """Learn from one step."""
        self._num_steps += 1
        self._largest = list(map(max, self._largest, size))
        decay, present = self._decay, [(i, part) for i, part in enumerate(size) if part]
        self._products = [[value * decay for value in row] for row in self._products]
        self._seconds = [value * decay for value in self._seconds]
        for i, part in present:  # few of them: a step costs what learning from it does
            row = self._products[i]
            for j, other in present:
                row[j] += part * other
            self._seconds[i] += part * seconds
        for _ in range(_SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        prices = self._prices
        for i, row in enumerate(self._products):
            # A part that has not occurred for long keeps its last price: its own weight is what has faded.
            if row[i] > _TINY:
                error = self._seconds[i] - sum(map(mul, row, prices))
                prices[i] = max(0.0, prices[i] + error / row[i])

    def seconds(self, size: StepSize) -> float | None:
        """Expected seconds of such a step; None until a few were measured."""
        if self._num_steps < _MIN_STEPS:
            return None
        expected: float = sum(map(mul, self._prices, size))
        return expected if self.has_seen(size) else UNSEEN_FACTOR * expected

    def has_seen(self, size: StepSize) -> bool:
        """Whether steps of about this size were measured."""
        return all(part <= _SEEN_SHARE * most for part, most in zip(size, self._largest, strict=True))


class StepSlowness:
    """How slow steps are, whatever they hold: beside the seconds that such a batch and context took before.

    Slow steps are not learned from, so that a machine which stays slow stays slow in here.
    """

    def __init__(self) -> None:
        self._forecast = StepTimeForecast(NORM_DECAY)
        self._num_steps = 0

    def ratio(self, size: StepSize, seconds: float) -> float | None:
        """1 for a step as ever, 3 for one that took three times as long; None while nothing like it was measured."""
        self._num_steps += 1
        expected = self._forecast.seconds(size) if self._forecast.has_seen(size) else None
        ratio = seconds / expected if expected else None
        is_sampled = self._num_steps <= _NORM_STEPS or self._num_steps % _NORM_SAMPLE == 0
        if ratio is None or (is_sampled and (ratio < SLOW_RATIO or self._num_steps <= _NORM_STEPS)):
            self._forecast.observe(size, seconds)
        return None if self._num_steps <= _NORM_STEPS else ratio
