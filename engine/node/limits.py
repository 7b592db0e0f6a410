"""The limits that may be changed while a node serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from engine.config import NodeConfig
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import SetLimits

log = structlog.get_logger()


class ContradictoryLimitsError(ValueError):
    """`limit` is the name of one of them."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """In force now. None in `prefill_chunk_tokens`: the step's budget; in `max_num_queued_tokens`: by KV capacity; in
    `max_queue_wait_s`: for ever.

    Raises:
        ContradictoryLimitsError: naming one of those that contradict each other.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int | None
    max_num_queued_reqs: int
    max_num_queued_tokens: int | None
    max_queue_wait_s: float | None

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ContradictoryLimitsError(
                "max_num_batched_tokens",
                f"max_num_batched_tokens: {self.max_num_batched_tokens} leaves no token for some of "
                f"{self.max_num_seqs} requests; raise it or lower max_num_seqs",
            )

    @classmethod
    def of(cls, config: NodeConfig, core_config: CoreConfig) -> LiveLimits:
        """As started. What contradicts is the core's to refuse, with the node's start."""
        return cls(
            max_num_seqs=core_config.max_num_seqs,
            max_num_batched_tokens=max(core_config.max_num_batched_tokens, core_config.max_num_seqs),
            # Without chunks a piece is as large as a step: who compares revisions must see that.
            prefill_chunk_tokens=core_config.prefill_chunk_tokens if core_config.chunked_prefill else None,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
            max_queue_wait_s=config.max_queue_wait_s or None,
        )

    def changed(self, changes: dict[str, Any]) -> LiveLimits:
        """With these values. Raises ContradictoryLimitsError."""
        return replace(self, **changes)

    def for_core(self) -> SetLimits:
        """The core's part of them."""
        return SetLimits(self.max_num_seqs, self.max_num_batched_tokens, self.prefill_chunk_tokens)

    def shown(self) -> dict[str, object]:
        """The body of `/admin/limits`."""
        return asdict(self)


class LimitsInForce:
    """The limits of now, and the one place where they change. Threading: event loop only."""

    def __init__(self, limits: LiveLimits, send: Callable[[SetLimits], None]) -> None:
        """`send` reaches this core and those that are started after it."""
        self.now = limits
        self._send = send

    def change(self, changes: dict[str, Any]) -> None:
        """Puts these values in force. Raises ContradictoryLimitsError, with nothing changed."""
        self.now = self.now.changed(changes)
        self._send(self.now.for_core())
        log.info("node.limits_set", **self.now.shown())
