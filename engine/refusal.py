"""Why a request is not taken in. Raised by the node, made an answer by its API."""

from __future__ import annotations


class RefusedError(Exception):
    """The request was not accepted and left no trace: another node may take it.

    `reason` is draining, not_ready or overloaded.
    """

    def __init__(self, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class TooLongError(Exception):
    """The request can never be served here: it fits neither the context nor the KV cache."""
