"""Fields of a chat that concern tools: what may be called, whether it must be, and calls in the history."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, field_validator

MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # in one message of the history
MAX_ARGUMENTS_CHARS = 1_000_000

# Checks the syntax of what it holds and makes no objects of it: a history may bring very many.
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FunctionSpec(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    model_config = ConfigDict(extra="ignore")

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """One of the body's tools."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": function}


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class NamedFunction(BaseModel):
    """A function by name."""

    name: FunctionName


class NamedToolChoice(BaseModel):
    """The function that must be called."""

    type: Literal["function"]
    function: NamedFunction


def _choice_branch(value: object) -> str:
    # Brackets: branches of unions are left out of the paths in errors by them.
    return "[named]" if isinstance(value, dict | NamedToolChoice) else "[word]"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[word]")] | Annotated[NamedToolChoice, Tag("[named]")],
    Discriminator(_choice_branch),
]


class CalledFunction(BaseModel):
    """A call in a message of before."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    arguments: Annotated[str, StringConstraints(max_length=MAX_ARGUMENTS_CHARS)] = "{}"

    @field_validator("arguments")
    @classmethod
    def _holds_an_object(cls, value: str) -> str:
        try:
            _object_decoder.decode(value.strip() or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"must hold a JSON object: {error}") from error
        return value


class CalledTool(BaseModel):
    """A call that the model made before."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Arguments as an object: that is what templates put into the prompt."""
        arguments = json.loads(self.function.arguments.strip() or "{}")
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


class ToolFields(BaseModel):
    """For a chat body."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
