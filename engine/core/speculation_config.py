"""How tokens are proposed ahead of the model (speculative decoding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.protocol.core_config import MAX_SPECULATIVE_TOKENS

Method = Literal["ngram", "draft", "medusa", "eagle3"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Checked when built.

    Raises:
        ValueError: limits that contradict each other.
    """

    method: Method = "ngram"  # but for ngram the runner proposes
    num_speculative_tokens: int = 8  # at most, for one sequence in one step
    prompt_lookup_min: int = 2  # tokens that must be found again
    prompt_lookup_max: int = 5
    is_adaptive: bool = True  # False: every draft is verified whole, whatever it costs

    def __post_init__(self) -> None:
        if not 1 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"num_speculative_tokens: must be 1 to {MAX_SPECULATIVE_TOKENS}, got {self.num_speculative_tokens}"
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min: must be 1 to prompt_lookup_max ({self.prompt_lookup_max}), "
                f"got {self.prompt_lookup_min}"
            )
