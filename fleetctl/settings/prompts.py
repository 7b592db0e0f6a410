"""Settings of what the gateway does to prompts, and learns of them. Nothing of it changes a prompt by default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.settings.section import Section

CanonicalRuleName = Literal[
    "system_first", "system_whitespace", "volatile_lines_last", "plain_content", "tool_order", "schema_key_order"
]


class PromptBudget(Section):
    """The largest prompt of some requests, and what becomes of a larger one."""

    tenant: str | None = Field(default=None, max_length=200, description="Only this tenant's requests; default: all.")
    model: str | None = Field(default=None, max_length=200, description="Only requests for this model; default: all.")
    max_tokens: int = Field(default=3600, ge=16, le=100_000_000, description="Largest prompt, tools included.")
    policy: Literal["trim", "refuse"] = Field(
        default="trim",
        description="trim: the oldest turns are left out, and the answer's header says so; refuse: 400.",
    )


class PrefixLintSettings(Section):
    """What keeps prompts of one template from sharing KV blocks. Hashes are kept, no text."""

    max_per_s: float = Field(
        default=5.0,
        ge=0,
        le=1000,
        description="Requests that are looked at, about 0.4 ms of CPU each; those between are not. 0: none.",
    )
    max_templates: int = Field(default=200, ge=1, le=10_000, description="Templates kept; the least recent one goes.")


class PromptSettings(Section):
    """Budgets of prompts, their canonical form, and what keeps them from sharing a prefix."""

    budgets: tuple[PromptBudget, ...] = Field(
        default=(), max_length=1000, description="The first one that fits a request holds; none fits: no budget."
    )
    evidence_names: tuple[str, ...] = Field(
        default=("context", "documents", "evidence"),
        max_length=50,
        description="Messages whose `name` is one of these are retrieved evidence: kept before older turns.",
    )
    canonical_rules: tuple[CanonicalRuleName, ...] = Field(
        default=(), description="Rules that bring requests into one form, so that more of them share a prefix."
    )
    prefix_lint: PrefixLintSettings = Field(default=PrefixLintSettings())
