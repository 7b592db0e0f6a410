"""How many tokens requests generate, an EWMA over those that finished.

The scheduler promises KV blocks by it, the node's queue guard counts waiting tokens by it.
"""

from __future__ import annotations

_DECAY = 0.98  # weight of the past at each new observation: about the last 50 count


class OutputLengthForecast:
    """How many tokens a request will still generate, judged by those that finished."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0

    def observe(self, num_output_tokens: int) -> None:
        """Learn from one finished request."""
        self._weight = self._weight * _DECAY + 1.0
        self._tokens = self._tokens * _DECAY + num_output_tokens

    @property
    def mean_tokens(self) -> float | None:
        """EWMA of output lengths; None before the first request finished."""
        return self._tokens / self._weight if self._weight else None

    def remaining_tokens(self, num_output_tokens: int, max_tokens: int, at_least: int) -> int:
        """Expected further tokens, between `at_least` and what `max_tokens` still allows.

        A request that outlived the mean is expected to go on for `at_least`, as is any before the first one finished.
        """
        mean = self.mean_tokens
        expected = at_least if mean is None else max(at_least, round(mean) - num_output_tokens)
        return max(0, min(expected, max_tokens - num_output_tokens))
