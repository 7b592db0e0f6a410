"""Which requests can never be served, so that they are refused at once instead of waiting for ever."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.scheduler_config import SchedulerConfig
from engine.protocol.messages import AddRequest

_MAX_TOKEN_ID = 2**32 - 1  # blocks keep token ids in 32 bits


class Refused(NamedTuple):
    """A request that was never taken in."""

    request_id: str
    reason: str
    is_duplicate: bool = False  # another request of this id lives: it must not be told that it ended


def find_problem(message: AddRequest, config: SchedulerConfig) -> str | None:
    """Why this request can't be served by an otherwise empty scheduler; None if it can."""
    prompt, output = message.prompt_token_ids, message.output_token_ids
    num_tokens = len(prompt) + len(output)
    if not prompt:
        return "the prompt has no tokens"
    if message.sampling.max_tokens < 0:
        return f"max_tokens must not be negative, got {message.sampling.max_tokens}"
    if len(prompt) + min(1, message.sampling.max_tokens) > config.max_tokens or num_tokens > config.max_tokens:
        return (
            f"{num_tokens} tokens can never fit: at most {config.max_tokens}, one of them generated "
            f"(model length {config.max_model_len}, KV for {config.num_blocks * config.block_size})"
        )
    largest = _MAX_TOKEN_ID if config.vocab_size is None else config.vocab_size - 1
    if any(min(ids) < 0 or max(ids) > largest for ids in (prompt, output) if ids):
        return f"token ids must be between 0 and {largest}"
    return None
