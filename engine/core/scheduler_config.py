"""The limits a scheduler works under, and which sequences can never be served within them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.core.speculation_config import SpeculationConfig
from engine.protocol.messages import AddSequence

_MAX_TOKEN_ID = 2**32 - 1  # blocks keep token ids in 32 bits


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Checked when built; a scheduler may rely on it.

    Raises:
        ValueError: limits that contradict each other.
    """

    block_size: int  # tokens in a KV block
    num_blocks: int  # KV blocks on the device
    max_model_len: int  # prompt and output tokens of one sequence
    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int = 2048  # tokens in one step
    chunked_prefill: bool = True  # False: a prompt is computed in one step
    prefill_chunk_tokens: int | None = 512  # of one sequence in one step; None leaves it to the step's budget
    prefix_caching: bool = True
    ageing_s: float = 30.0  # waiting this long is worth one priority level
    num_host_blocks: int = 0  # 0: preemption always recomputes
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None  # None: token ids are not checked
    speculation: SpeculationConfig | None = None  # None: a sequence gets one token a step
    window_tokens: int | None = None  # the latest positions that any layer sees, a position's own included; None: all

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len: a token in and one out need 2, got {self.max_model_len}")
        if self.prefill_chunk_tokens is not None and self.prefill_chunk_tokens < 1:
            raise ValueError(f"prefill_chunk_tokens: must be at least 1, got {self.prefill_chunk_tokens}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ValueError(f"window_tokens: must be at least 1, got {self.window_tokens}")
        if self.num_host_blocks < 0:
            raise ValueError(f"num_host_blocks: must not be negative, got {self.num_host_blocks}")
        if not self.ageing_s > 0.0:
            raise ValueError(f"ageing_s: must be above 0, got {self.ageing_s}")
        if self.num_blocks * self.block_size < 2:
            raise ValueError("num_blocks: one block of one token holds no sequence; raise either")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} leaves no token for some of "
                f"{self.max_num_seqs} sequences; raise it or lower max_num_seqs"
            )
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_tokens + self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: without chunked prefill it must be at least {self.max_tokens} "
                f"(longest sequence) + {self.max_num_seqs} (max_num_seqs), got {self.max_num_batched_tokens}"
            )

    @property
    def max_tokens(self) -> int:
        """The longest prompt with output that can be served: by the model, and by all blocks together."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    @property
    def most_blocks_held(self) -> int | None:
        """By one sequence at once, as what is behind the window is given up; None: as many as it has tokens for."""
        if self.window_tokens is None or not self.chunked_prefill:
            return None
        chunk = min(self.prefill_chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)
        return self.num_blocks_for(self.window_tokens + chunk) + 1

    def num_blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)


class Refused(NamedTuple):
    """A sequence that was never taken in."""

    seq_id: str
    reason: str
    is_duplicate: bool = False  # another sequence of this id lives: it must not be told that it ended


def why_refused(message: AddSequence, config: SchedulerConfig) -> str | None:
    """Why this sequence can't be served by an otherwise empty scheduler; None if it can."""
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
