"""Settings of how the gateway finds nodes for models, sessions and prompts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.settings.section import Section


class TierSettings(Section):
    """Short questions to a smaller model. Off unless both models are named."""

    model: str = Field(default="", description="Requests for this model may be answered by the smaller one.")
    small_model: str = Field(default="", description="The smaller model; empty: no tiers.")
    max_input_tokens: int = Field(default=200, ge=1, description="Prompts of at most so many tokens.")
    max_output_tokens: int = Field(default=200, ge=1, description="Only when the client asks for at most so many.")


class RoutingSettings(Section):
    """How models, sessions and prompts find their nodes."""

    aliases: dict[str, str] = Field(
        default={},
        description="Other names of models: a request for the name on the left is one for that on the right.",
    )
    unknown_models: Literal["refuse", "any"] = Field(
        default="refuse",
        description="What becomes of a model that no node serves: 404 with the list, where the table knows what all"
        " nodes serve; or any node.",
    )
    sticky_users: bool = Field(
        default=False, description="Whether the body's `user` is a session, as X-Fleet-Session is: one user, one node."
    )
    tiers: TierSettings = Field(default=TierSettings())
