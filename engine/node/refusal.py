"""Why a request is not taken in. Raised by the node, made an answer by its API."""

from __future__ import annotations

LONGEST_RETRY_AFTER_S = 30


def retry_after_s(queued_tokens: int, tokens_per_s: float) -> int:
    """When the queue should have room again, between 1 s and half a minute; 1 while the speed is not known."""
    return 1 if tokens_per_s <= 0 else int(min(LONGEST_RETRY_AFTER_S, max(1.0, queued_tokens / tokens_per_s)))


class RefusedError(Exception):
    """The request was not accepted and left no trace: another node may take it.

    `reason` is draining, not_ready or overloaded; `limit` names the option that an overloaded queue has reached.
    """

    def __init__(
        self, reason: str, message: str, retry_after_s: int | None = None, *, limit: str | None = None
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.reason = reason
        self.retry_after_s = retry_after_s


class TooLongError(Exception):
    """The request can never be served here: it fits neither the context nor the KV cache."""


def check_fits(num_prompt_tokens: int, max_tokens: int, limit_tokens: int) -> None:
    """Raises TooLongError for a prompt and an answer that are longer together than the longest sequence served."""
    wanted = num_prompt_tokens + max_tokens
    if wanted > limit_tokens:
        raise TooLongError(
            f"This model's maximum context length is {limit_tokens} tokens. However, you requested {wanted} tokens "
            f"({num_prompt_tokens} in the prompt, {max_tokens} for the answer). Please shorten the prompt or lower "
            "max_tokens."
        )
