"""What was done to prompts, counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from fleetctl.gateway.prompts.prefix_lint import Loss
from fleetctl.gateway.prompts.volatile_fields import VolatileKind


class PromptMetrics:
    """Counters `gateway_prompt*`. Labels are closed sets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.budgeted = Counter(
            "gateway_prompt_budget_total",
            "Requests that a prompt budget applied to: within, trimmed or refused.",
            ["result"],
            registry=registry,
        )
        self.trimmed_tokens = Counter(
            "gateway_prompt_trimmed_tokens_total", "Prompt tokens left out of trimmed requests.", registry=registry
        )
        self.canonicalised = Counter(
            "gateway_prompt_canonicalised_total", "Requests that canonical rules changed.", registry=registry
        )
        self.not_canonicalised = Counter(
            "gateway_prompt_not_canonicalised_total",
            "Requests of so many JSON values that canonical rules did not read them.",
            registry=registry,
        )
        for result in ("within", "trimmed", "refused"):
            self.budgeted.labels(result)
        self._looked_at = Counter(
            "gateway_prompts_looked_at_total",
            "Prompts that were looked at: held against the one before of their template, where there is one.",
            registry=registry,
        )
        self._differing = Counter(
            "gateway_prompts_differing_total",
            "Those of which tokens are lost to the prefix cache behind where they first differ, by what stands there.",
            ["kind"],
            registry=registry,
        )
        self._first_difference = Counter(
            "gateway_prompts_first_difference_tokens_total",
            "The tokens that these share with the one before: over how many they are, where they first differ.",
            ["kind"],
            registry=registry,
        )
        self._lost = Counter(
            "gateway_prompts_prefix_lost_tokens_total",
            "The tokens of these that are the same in both, and behind the first difference.",
            ["kind"],
            registry=registry,
        )
        for kind in VolatileKind:
            for one in (self._differing, self._first_difference, self._lost):
                one.labels(kind.value)

    def note_looked_at(self, lost: Loss | None) -> None:
        """One prompt that the prefix lint looked at, and what it cannot share; None: nothing differs."""
        self._looked_at.inc()
        if lost is not None and lost.tokens:
            kind = lost.spot.kind.value
            self._differing.labels(kind).inc()
            self._first_difference.labels(kind).inc(lost.spot.position_tokens)
            self._lost.labels(kind).inc(lost.tokens)
