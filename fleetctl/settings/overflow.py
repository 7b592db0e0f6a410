"""Settings of overflow: which requests may leave the house, where they go, and how much that may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from fleetctl.settings.section import Section

OverflowReason = Literal["model_not_here", "queue_wait", "overloaded", "no_node"]


class OverflowModel(Section):
    """One of our models, its name outside, and its price in a currency of your choice."""

    model: str = Field(min_length=1, max_length=200, description="As clients ask for it.")
    outside_model: str = Field(min_length=1, max_length=500, description="As the endpoint calls it.")
    input_cost: float = Field(ge=0, le=1e6, description="Price of a million prompt tokens.")
    output_cost: float = Field(ge=0, le=1e6, description="Price of a million output tokens.")


class OverflowEndpoint(Section):
    """A service outside that may answer for us. Prompts and answers of these requests leave the house."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", description="In metrics, fates and the budget's file.")
    kind: Literal["openai", "bedrock"] = Field(default="openai", description="The API it speaks.")
    url: str | None = Field(
        default=None,
        max_length=1000,
        pattern=r"^https?://[^\s/?#@]+[^\s?#]*$",
        description="Up to the /v1 of its API; Bedrock: only where it is not the region's own.",
    )
    region: str | None = Field(default=None, pattern=r"^[a-z0-9-]{1,40}$", description="AWS region (Bedrock).")
    api_key_env: str | None = Field(default=None, max_length=200, description="Variable that holds the API key.")
    api_key_file: Path | None = Field(default=None, description="File that holds the API key; read for each request.")
    models: tuple[OverflowModel, ...] = Field(min_length=1, max_length=200, description="Models that may go there.")
    tenants: tuple[str, ...] = Field(
        default=(), max_length=10_000, description="Tenants whose requests may leave the house; `*` for all."
    )
    classes: tuple[str, ...] = Field(
        default=("*",), max_length=50, description="Priority classes that may go out; `*` for all. Shed ones never do."
    )
    when: tuple[OverflowReason, ...] = Field(default=("no_node",), description="What must be so before one goes out.")
    queue_wait_s: float = Field(
        default=10.0, gt=0, le=3600, description="With queue_wait: every node's oldest request waits longer than this."
    )
    default_max_tokens: int = Field(
        default=1024, ge=1, le=1_000_000, description="Output limit of a request that states none: budgets need one."
    )
    hourly_max_tokens: int | None = Field(default=None, ge=0, le=10**15, description="Tokens in an hour (UTC).")
    daily_max_tokens: int = Field(ge=0, le=10**15, description="Tokens in a day (UTC).")
    hourly_max_cost: float | None = Field(default=None, ge=0, le=1e9, description="Cost in an hour (UTC).")
    daily_max_cost: float = Field(ge=0, le=1e9, description="Cost in a day (UTC).")
    connect_limit_s: float = Field(default=5.0, gt=0, le=60, description="Until it must have taken a connection.")
    idle_limit_s: float = Field(default=120.0, gt=0, le=3600, description="Longest silence before and in its answer.")

    @model_validator(mode="after")
    def _is_reachable(self) -> OverflowEndpoint:
        if self.kind == "openai" and self.url is None:
            raise ValueError("kind openai needs url")
        if self.kind == "bedrock" and self.region is None:
            raise ValueError("kind bedrock needs region")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("give api_key_env or api_key_file, not both")
        if self.kind == "bedrock" and (self.api_key_env is not None or self.api_key_file is not None):
            raise ValueError("Bedrock takes AWS credentials, from where AWS's own tools find them")
        return self


class OverflowSettings(Section):
    """Services outside that may answer when the fleet can't. None by default: nothing leaves the house."""

    endpoints: tuple[OverflowEndpoint, ...] = Field(
        default=(), max_length=20, description="The first one that fits a request gets it."
    )

    @model_validator(mode="after")
    def _named_once(self) -> OverflowSettings:
        names = [one.name for one in self.endpoints]
        if len(names) != len(set(names)):
            raise ValueError(f"one is named twice in {', '.join(names)}")
        return self
