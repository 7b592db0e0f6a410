"""Whether a preempted sequence's KV is cheaper to swap or to recompute, learned from the steps before.

Every answer is None until it has been measured: a guess must not look like a measurement.
"""

from __future__ import annotations

_DECAY = 0.98  # weight of the past at each new observation: about the last 50 count
_MIN_SPREAD = 1e-6  # of token counts, relative; below it a slope means nothing


class PreemptionCost:
    """Fits step seconds to `fixed + per_token * tokens`, and what swapped blocks add to that."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._tokens_squared = 0.0
        self._tokens_seconds = 0.0
        self._swapped_blocks = 0.0
        self._swap_seconds = 0.0

    def observe(self, num_tokens: int, seconds: float, num_swapped_blocks: int = 0) -> None:
        """Learn from one step."""
        if num_swapped_blocks:
            expected = self.step_seconds(num_tokens)
            if expected is not None:
                self._swapped_blocks = self._swapped_blocks * _DECAY + num_swapped_blocks
                self._swap_seconds = self._swap_seconds * _DECAY + max(0.0, seconds - expected)
            return
        self._weight = self._weight * _DECAY + 1.0
        self._tokens = self._tokens * _DECAY + num_tokens
        self._seconds = self._seconds * _DECAY + seconds
        self._tokens_squared = self._tokens_squared * _DECAY + num_tokens * num_tokens
        self._tokens_seconds = self._tokens_seconds * _DECAY + num_tokens * seconds

    @property
    def token_seconds(self) -> float | None:
        """Seconds that one more token adds to a step; None while all steps were of one size."""
        spread = self._weight * self._tokens_squared - self._tokens**2
        if self._weight == 0.0 or spread <= _MIN_SPREAD * self._weight * self._tokens_squared:
            return None
        slope = (self._weight * self._tokens_seconds - self._tokens * self._seconds) / spread
        return slope if slope > 0.0 else None

    def step_seconds(self, num_tokens: int) -> float | None:
        """Expected seconds of a step that swaps nothing."""
        slope = self.token_seconds
        if slope is None:
            return None
        fixed = (self._seconds - slope * self._tokens) / self._weight
        return max(0.0, fixed) + slope * num_tokens

    def swap_seconds(self, num_blocks: int) -> float | None:
        """Expected seconds to move these blocks one way."""
        if self._swapped_blocks == 0.0:
            return None
        return num_blocks * self._swap_seconds / self._swapped_blocks

    def prefers_swap(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether moving `num_blocks` out and in again beats computing `num_tokens` again.

        True as long as either is unmeasured: only a swap can measure a swap, and it loses no tokens.
        """
        token_seconds, swap_seconds = self.token_seconds, self.swap_seconds(2 * num_blocks)
        if token_seconds is None or swap_seconds is None:
            return True
        return swap_seconds < token_seconds * num_tokens
