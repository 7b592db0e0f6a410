"""Bodies of the public routes, with a limit on everything a stranger can send.

Fields of OpenAI's API that this node can't honour are refused when they ask for something, never ignored; fields it
does not know at all are ignored, as OpenAI's clients send many.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

MAX_CHOICES = 8
MAX_PROMPTS = 32
MAX_STOPS = 16
MAX_MESSAGES = 4096
MAX_TEXT_CHARS = 8_000_000
MAX_TOKENS = 2_000_000
MAX_LOGPROBS = 20
MAX_BIASES = 1024

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())

    model: Annotated[str, StringConstraints(max_length=256)] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationBody(Body):
    """What completions and chat completions share."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    ignore_eos: bool = False
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    include_stop_str_in_output: bool = False
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = (
        None
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    return_token_ids: bool = False
    user: Annotated[str, StringConstraints(max_length=256)] | None = None

    @field_validator("logit_bias")
    @classmethod
    def _biases_name_tokens(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise ValueError(f"{key!r} is not a token id")
        return value

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(GenerationBody):
    prompt: Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _can_be_honoured(self) -> CompletionBody:
        if self.best_of not in (None, 1, self.n):
            raise ValueError("best_of is not supported")
        if self.suffix:
            raise ValueError("suffix is not supported")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported")
        return self


class TextPart(BaseModel):
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Annotated[str, StringConstraints(min_length=1, max_length=32)]
    content: Text | Annotated[list[TextPart], Field(max_length=256)] | None = None
    name: Annotated[str, StringConstraints(max_length=128)] | None = None
    tool_call_id: Annotated[str, StringConstraints(max_length=128)] | None = None

    def for_template(self) -> dict[str, Any]:
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        facts = {"role": self.role, "content": content or "", "name": self.name, "tool_call_id": self.tool_call_id}
        return {key: value for key, value in facts.items() if value is not None}


class ResponseFormat(BaseModel):
    type: Literal["text"]


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool = True
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @field_validator("tools", "functions", mode="before")
    @classmethod
    def _no_tools(cls, value: Any) -> Any:
        if value:
            raise ValueError("tool calls are not supported")
        return value


class TokenizeBody(Body):
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]


class DrainBody(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    deadline_s: Annotated[float, Field(ge=0, le=86_400)]


class FaultsBody(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    slow_steps: Annotated[float, Field(ge=1, le=1000)] | None
