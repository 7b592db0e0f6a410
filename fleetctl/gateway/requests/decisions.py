"""Recent choices of nodes and their reasons, without a word of the prompts, and what they add up to."""

from __future__ import annotations

from collections import Counter as Counts
from collections import deque
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleetctl.gateway.metrics import LoopCounter
from fleetctl.gateway.routing.pick import PickReason
from fleetctl.gateway.routing.prefix_index import PrefixIndex

KEPT = 512


class Decision(NamedTuple):
    """One choice. `at`: Unix seconds. `cached_tokens`: of the prompt, that the node was sent before;
    `elsewhere_tokens`: that another one was sent, which was weighed and not chosen."""

    at: float
    request_id: str
    model: str | None
    node: str
    reason: PickReason
    input_tokens: int
    cached_tokens: int
    num_nodes: int  # that serve the model
    num_weighed: int
    left_out: tuple[tuple[str, str], ...] = ()
    rules: tuple[str, ...] = ()
    note: str = ""
    elsewhere_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        """As `GET /gateway/decisions` tells it."""
        return {
            **self._asdict(),
            "reason": self.reason.value,
            "left_out": [{"node": node, "reason": str(reason)} for node, reason in self.left_out],
            "rules": list(self.rules),
        }


class Decisions:
    """The last choices, and their counts."""

    def __init__(self, registry: CollectorRegistry, index: PrefixIndex) -> None:
        self._reasons = LoopCounter(
            "gateway_decisions", "Choices of a node for a request, by the reason.", ["reason"], registry
        )
        self._tokens = LoopCounter(
            "gateway_routed_prompt_tokens",
            "Prompt tokens sent to nodes, estimated; held: yes, the node was sent them before and has them cached if we"
            " are right; elsewhere, another node was; no, none was.",
            ["held"],
            registry,
        )
        for reason in PickReason:
            self._reasons.add(reason, by=0)
        for held in ("yes", "elsewhere", "no"):
            self._tokens.add(held, by=0)
        ruled = Counter(
            "gateway_ruled_decisions", "Choices that a traffic rule had a part in.", ["followed"], registry=registry
        )
        parts = Gauge(
            "gateway_prefix_parts", "Parts of prompts in the index of what nodes were sent.", registry=registry
        )
        parts.set_function(lambda: index.num_parts)
        self._followed, self._not_followed = ruled.labels("yes"), ruled.labels("no")
        self._recent: deque[Decision] = deque(maxlen=KEPT)

    def note(self, decision: Decision) -> None:
        """Keep and count one choice."""
        self._recent.append(decision)
        self._reasons.add(decision.reason)
        if decision.cached_tokens:
            self._tokens.add("yes", by=decision.cached_tokens)
        if decision.elsewhere_tokens:
            self._tokens.add("elsewhere", by=decision.elsewhere_tokens)
        if (new := decision.input_tokens - decision.cached_tokens - decision.elsewhere_tokens) > 0:
            self._tokens.add("no", by=new)
        if decision.rules or decision.note:
            (self._not_followed if decision.note else self._followed).inc()

    def recent(self) -> list[Decision]:
        """The last ones, the newest first."""
        return list(reversed(self._recent))

    def as_json(self) -> dict[str, Any]:
        """The body of `GET /gateway/decisions`."""
        recent = self.recent()
        return {
            "kept": KEPT,
            "reasons": dict(Counts(one.reason.value for one in recent)),
            "decisions": [one.as_json() for one in recent],
        }
