"""What was done to prompts, counted."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


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
