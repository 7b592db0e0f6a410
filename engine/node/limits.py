"""The limits that may be changed while a node serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.config import NodeConfig
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import SetLimits


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """In force now. None in `prefill_chunk_tokens`: the step's budget; in `max_num_queued_tokens`: by KV capacity; in
    `max_queue_wait_s`: for ever.

    Raises:
        ValueError: limits that contradict each other; the message names one.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int | None
    max_num_queued_reqs: int
    max_num_queued_tokens: int | None
    max_queue_wait_s: float | None

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} leaves no token for some of "
                f"{self.max_num_seqs} requests; raise it or lower max_num_seqs"
            )

    @classmethod
    def of(cls, config: NodeConfig, core_config: CoreConfig) -> LiveLimits:
        """As started. What contradicts is the core's to refuse, with the node's start."""
        return cls(
            max_num_seqs=core_config.max_num_seqs,
            max_num_batched_tokens=max(core_config.max_num_batched_tokens, core_config.max_num_seqs),
            prefill_chunk_tokens=core_config.prefill_chunk_tokens,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
            max_queue_wait_s=config.max_queue_wait_s or None,
        )

    def changed(self, changes: dict[str, Any]) -> LiveLimits:
        """Raises ValueError."""
        return replace(self, **changes)

    def for_core(self) -> SetLimits:
        return SetLimits(self.max_num_seqs, self.max_num_batched_tokens, self.prefill_chunk_tokens)

    def shown(self) -> dict[str, object]:
        return asdict(self)
