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
MAX_DEADLINE_S = 86_400
MAX_NAMED = 10_000  # request ids in one abort

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
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None
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


class AbortBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    request_ids: Annotated[list[Annotated[str, StringConstraints(max_length=160)]], Field(max_length=MAX_NAMED)] | None


class Changes(BaseModel):
    """A body that names what is to change; what it does not name stays."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _names_something(self) -> Changes:
        if not self.model_fields_set:
            raise ValueError(f"name at least one of {', '.join(type(self).model_fields)}")
        return self

    def changes(self) -> dict[str, Any]:
        return self.model_dump(include=self.model_fields_set)


class LimitsBody(Changes):
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 1
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1
    prefill_chunk_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_num_queued_reqs: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    max_num_queued_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None


SeriesNames = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=128)], ...], Field(min_length=1, max_length=64)
]


class FaultsBody(Changes):
    slow_steps: Annotated[float, Field(ge=1, le=1000)] | None = None
    hung_core: bool | None = None
    wrong_numbers: bool | None = None
    kv_leak: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    oom_next: Annotated[int, Field(ge=1, le=1000)] | None = None
    prefix_cache_off: bool | None = None
    slow_tokenizer: Annotated[float, Field(gt=0, le=60)] | None = None
    metrics_frozen: bool | None = None
    metrics_missing: SeriesNames | None = None
    metrics_nan: SeriesNames | None = None
    metrics_renamed: SeriesNames | None = None
