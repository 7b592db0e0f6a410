"""How many characters a token has: measured on a model's own tokenizer where a node told it, else four."""

from __future__ import annotations

import math
from dataclasses import dataclass

ESTIMATED_CHARS_PER_TOKEN = 4.0  # English prose under the usual vocabularies; code and CJK have fewer
MESSAGE_OVERHEAD_TOKENS = 4  # what a chat template writes around a message
WEIGHT_OF_NEWEST = 0.3
MIN_CHARS = 200  # a shorter prompt is mostly template
MAX_MODELS = 1000


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """Characters per token of one model. `is_measured`: by a node's tokenizer."""

    chars_per_token: float = ESTIMATED_CHARS_PER_TOKEN
    is_measured: bool = False

    def tokens(self, chars: int) -> int:
        """Tokens of so many characters, rounded up."""
        return math.ceil(chars / self.chars_per_token)

    def describe(self) -> str:
        """How a number of tokens was found, for people."""
        how = "measured" if self.is_measured else "estimated"
        return f"{how} at {self.chars_per_token:.1f} characters a token"


ESTIMATED = TokenRatio()


class TokenRatios:
    """The ratio of each model. A measurement moves it by a part, so that one odd prompt does not decide."""

    def __init__(self) -> None:
        self._measured: dict[str, float] = {}

    def of(self, model: str | None) -> TokenRatio:
        """The model's ratio, measured or estimated."""
        measured = self._measured.get(model or "")
        return ESTIMATED if measured is None else TokenRatio(measured, is_measured=True)

    def note_measured(self, model: str | None, *, chars: int, tokens: int) -> None:
        """A node counted `tokens` in a prompt of `chars` characters. What is too short to tell is ignored."""
        if chars < MIN_CHARS or tokens < 1:
            return
        key = model or ""
        ratio = min(max(chars / tokens, 0.25), 64.0)
        before = self._measured.get(key)
        if before is None and len(self._measured) >= MAX_MODELS:
            return
        self._measured[key] = ratio if before is None else before + WEIGHT_OF_NEWEST * (ratio - before)
