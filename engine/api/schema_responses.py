"""`/v1/responses`: OpenAI's newer form of a chat, and how it becomes the body of one.

Nothing is stored: a client sends the whole conversation. What would need a store, or a tool that this node has not, is
refused by name; hints are taken and change nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from engine.api.schema import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOKENS,
    OffByDefault,
    OnByDefault,
    TemplateArguments,
    Text,
    WorkBody,
)
from engine.api.schema_output import Schema
from engine.api.schema_tools import MAX_ARGUMENTS_CHARS, MAX_TOOLS, CallId, FunctionName

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16


class InputPart(BaseModel):
    """A part of an item; text is the only kind."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: Text = ""
    refusal: Text = ""


Parts = Text | Annotated[list[InputPart], Field(max_length=256, fail_fast=True)]


class InputItem(BaseModel):
    """A message, a call that the model made, or what came of one. Reasoning of before is left out."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Annotated[Parts | list[Any] | None, Field(union_mode="left_to_right")] = None  # of reasoning: anything
    call_id: CallId | None = None
    name: FunctionName | None = None
    arguments: Annotated[str, StringConstraints(max_length=MAX_ARGUMENTS_CHARS)] = "{}"
    output: Parts | None = None

    @model_validator(mode="after")
    def _whole(self) -> InputItem:
        if self.type == "message" and (self.role is None or self.content is None):
            raise ValueError("a message needs role and content")
        if self.type == "message" and isinstance(self.content, list):
            for part in self.content:
                if not isinstance(part, InputPart):
                    raise ValueError("content: this node reads text only")
        if self.type == "function_call" and (self.call_id is None or self.name is None):
            raise ValueError("a function_call needs call_id and name")
        if self.type == "function_call_output" and (self.call_id is None or self.output is None):
            raise ValueError("a function_call_output needs call_id and output")
        return self


class ResponseFunction(BaseModel):
    """A function that the model may call, without the nesting of a chat's."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(BaseModel):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(BaseModel):
    """What the text must look like."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    description: Annotated[str, StringConstraints(max_length=16_384)] | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_named(self) -> TextFormat:
        if self.type == "json_schema" and (self.schema_ is None or self.name is None):
            raise ValueError("json_schema needs name and schema")
        return self


class TextOptions(BaseModel):
    """`text` of the body; verbosity is a hint."""

    model_config = ConfigDict(extra="ignore")

    format: TextFormat | None = None


class ResponsesBody(WorkBody):
    """The body of `/v1/responses`."""

    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: Text | None = None
    stream: OffByDefault = False
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None  # this and the next are vLLM's
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    ignore_eos: OffByDefault = False
    chat_template_kwargs: TemplateArguments | None = None
    tools: Annotated[list[ResponseFunction], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: OnByDefault = True
    text: TextOptions | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None  # nothing is, whatever is said
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None

    @field_validator("previous_response_id", "conversation", "prompt")
    @classmethod
    def _is_not_kept(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError("this node keeps no responses: send the whole conversation as input")
        return value

    @field_validator("background")
    @classmethod
    def _is_awaited(cls, value: bool | None) -> bool | None:
        if value:
            raise ValueError("this node keeps no responses: leave it out and stream, or wait for the answer")
        return value

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are told with the text."""
        return LOGPROBS in (self.include or ())

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as a chat's messages."""
        found: list[dict[str, Any]] = []
        if self.instructions:
            found.append({"role": "system", "content": self.instructions})
        items = self.input if isinstance(self.input, list) else [InputItem(role="user", content=self.input)]
        for item in items:
            match item.type:
                case "message":
                    role = "system" if item.role == "developer" else item.role
                    _add_message(found, str(role), _text_of(item.content))
                case "function_call":
                    call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
                    if not (found and found[-1]["role"] == "assistant"):
                        found.append({"role": "assistant", "content": ""})
                    found[-1].setdefault("tool_calls", []).append(call)
                case "function_call_output":
                    found.append({"role": "tool", "tool_call_id": item.call_id, "content": _text_of(item.output)})
                case "reasoning":
                    continue
        return found

    def as_chat(self) -> dict[str, Any]:
        """The body of the chat that answers it."""
        chat: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "stream": self.stream,
            "chat_template_kwargs": self.chat_template_kwargs,
            "priority": self.priority,
            "deadline_s": self.deadline_s,
            "cache_salt": self.cache_salt,
            "truncate_prompt_tokens": -1 if self.truncation == "auto" else self.truncate_prompt_tokens,
        }
        if self.wants_logprobs:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.tools:
            chat["tools"] = [_chat_tool(tool) for tool in self.tools]
            chat["parallel_tool_calls"] = self.parallel_tool_calls
        if isinstance(self.tool_choice, NamedChoice):
            chat["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        elif self.tool_choice is not None and (self.tools or self.tool_choice != "auto"):
            chat["tool_choice"] = self.tool_choice
        form = None if self.text is None else self.text.format
        if form is not None and form.type != "text":
            chat["response_format"] = {"type": form.type}
            if form.type == "json_schema":
                own = {"name": form.name, "schema": form.schema_, "strict": form.strict}
                chat["response_format"]["json_schema"] = own
        return chat


def _add_message(found: list[dict[str, Any]], role: str, text: str) -> None:
    """Templates take one system message, at the beginning: instructions and the input's own become one."""
    if role == "system" and found and found[-1]["role"] == "system":
        found[-1]["content"] += f"\n\n{text}"
    else:
        found.append({"role": role, "content": text})


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text or part.refusal for part in content or () if isinstance(part, InputPart))


def _chat_tool(tool: ResponseFunction) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}
