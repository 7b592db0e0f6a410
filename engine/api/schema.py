"""Bodies of the public routes, with a limit on everything a stranger can send.

Fields that this node can't honour are refused when they ask for something (`schema_unsupported.py`); fields that nobody
knows are ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engine.api.schema_output import OutputFields
from engine.api.schema_tokens import TokenFields, TokenId
from engine.api.schema_tools import MAX_TOOL_CALLS, CalledTool, ToolFields, Tools
from engine.api.schema_unsupported import Unsupported, UnsupportedChatFields, UnsupportedFields

MAX_CHOICES = 8
MAX_PROMPTS = 32
MAX_STOPS = 16
MAX_MESSAGES = 4096
MAX_TEXT_CHARS = 8_000_000
MAX_TOKENS = 2_000_000
MAX_LOGPROBS = 20
MAX_ECHOED_LOGPROBS = 1_000_000  # of all prompt tokens of a request, in all its choices
MAX_BIASES = 1024
MAX_DEADLINE_S = 86_400
MAX_TEMPLATE_ARGUMENTS = 16
MAX_NAMED = 10_000  # request ids in one abort
MAX_EXPORTED = 64  # in one export: each carries its prompt

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
# Lists end at their first error: a body of a million wrong entries must not make a million error objects.
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]


BIAS_KEY = r"^[0-9]{1,9}$"


def _check_biases(biases: Any) -> Any:
    """Before its entries are: a dict has no fail_fast."""
    if isinstance(biases, dict):
        if len(biases) > MAX_BIASES:
            raise ValueError(f"at most {MAX_BIASES} tokens can be given a bias, not {len(biases)}")
        if not all(re.fullmatch(BIAS_KEY, key) for key in biases):
            raise ValueError("its keys must be token ids")
    return biases


def _check_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in arguments:
            raise ValueError(f"{name} is a field of its own")
    return arguments


Biases = Annotated[
    dict[Annotated[str, StringConstraints(pattern=BIAS_KEY)], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
    BeforeValidator(_check_biases),
]


# For the model's template, as Qwen 3's `enable_thinking`; what it takes besides of its own names is not to be replaced.
TemplateArguments = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")], Any],
    Field(max_length=MAX_TEMPLATE_ARGUMENTS),
    AfterValidator(_check_arguments),
]


def null_is(default: bool | int, kind: Any) -> BeforeValidator:
    """For a field of this kind: null means the default, as OpenAI's and vLLM's clients say of what they leave open."""
    return BeforeValidator(lambda value: default if value is None else value, json_schema_input_type=kind | None)


OffByDefault = Annotated[bool, null_is(False, bool)]
OnByDefault = Annotated[bool, null_is(True, bool)]
MinTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Priority = Annotated[int, Field(ge=-1000, le=1000)]


class Body(BaseModel):
    """Any body of a request. Fields that nobody knows are ignored, as OpenAI does."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())

    model: Annotated[str, StringConstraints(max_length=256)] | None = None


class WorkBody(Body):
    """Any body that gives the core work."""

    priority: Annotated[Priority, null_is(0, Priority)] = 0
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None  # -1: what fits
    # where no X-Request-Id was sent
    request_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")] | None = None

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_some(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be at least 1, or -1 for as many as fit")
        return value


class StreamOptions(BaseModel):
    """What a stream tells beside text."""

    include_usage: OffByDefault = False
    continuous_usage_stats: OffByDefault = False  # vLLM's: in every chunk, not only the last


class GenerationBody(WorkBody, OutputFields, TokenFields, UnsupportedFields):
    """What completions and chat completions share."""

    stream: OffByDefault = False
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
    min_tokens: Annotated[MinTokens, null_is(0, MinTokens)] = 0
    ignore_eos: OffByDefault = False
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] | None = None
    include_stop_str_in_output: OffByDefault = False
    logit_bias: Biases | None = None
    return_token_ids: OffByDefault = False

    @field_validator("stream_options")
    @classmethod
    def _stream_options_need_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("is only allowed with stream: true")
        return value

    @model_validator(mode="after")
    def _prompt_logprobs_are_whole(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs are not told in a stream: leave out stream, or prompt_logprobs")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it came in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(GenerationBody):
    """`/v1/completions`."""

    prompt: (
        Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    echo: OffByDefault = False
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None  # 0: only the echo
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Unsupported = None
    add_special_tokens: OnByDefault = True

    @field_validator("best_of")
    @classmethod
    def _best_of_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        num_choices = info.data.get("n") or 1
        if value is not None and value < num_choices:
            raise ValueError(f"must be at least n, {num_choices}")
        if value is not None and value > num_choices and info.data.get("stream"):
            raise ValueError("which one is best is known in the end only: leave out stream, or best_of")
        return value

    @model_validator(mode="after")
    def _scored_ids_need_logprobs(self) -> CompletionBody:
        if self.logprob_token_ids is not None and (self.logprobs is None or self.echo):
            raise ValueError("logprob_token_ids needs logprobs, and does not go with echo")
        return self


class TextPart(BaseModel):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: Annotated[str, StringConstraints(min_length=1, max_length=32)]
    content: Text | Annotated[list[TextPart], Field(max_length=256, fail_fast=True)] | None = None
    name: Annotated[str, StringConstraints(max_length=128)] | None = None
    tool_call_id: Annotated[str, StringConstraints(max_length=128)] | None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _tools_have_roles(self) -> Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of role tool needs tool_call_id")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only a message of role assistant has tool_calls")
        return self

    @property
    def text(self) -> str:
        """Its text, whichever form it came in."""
        content = self.content or ""
        return content if isinstance(content, str) else "\n".join(part.text for part in content)

    @property
    def num_chars(self) -> int:
        """Of its text and of its calls' arguments."""
        texts = [self.content or ""] if not isinstance(self.content, list) else [part.text for part in self.content]
        return sum(map(len, texts)) + sum(len(call.function.arguments) for call in self.tool_calls or ())

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it. Raises ValueError, RecursionError for arguments of a call that can't be read."""
        facts: dict[str, Any] = {
            "role": self.role,
            "content": self.text,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
        }
        if self.tool_calls:
            facts["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return {key: value for key, value in facts.items() if value is not None}


def check_continues(body: ChatBody | TokenizeBody) -> None:
    """Raises ValueError. vLLM wants `add_generation_prompt: false` beside it; left out it means the same here."""
    if not body.continue_final_message:
        return
    if body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        raise ValueError("continue_final_message goes with add_generation_prompt: false")
    last = body.messages[-1] if body.messages else None
    if last is None or not last.text.strip():
        raise ValueError("continue_final_message: the last message has no text to go on with")


class ChatBody(GenerationBody, ToolFields, UnsupportedChatFields):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: OnByDefault = True
    continue_final_message: OffByDefault = False
    chat_template_kwargs: TemplateArguments | None = None

    @model_validator(mode="after")
    def _scored_ids_need_logprobs(self) -> ChatBody:
        if self.logprob_token_ids is not None and not self.logprobs:
            raise ValueError("logprob_token_ids needs logprobs: true")
        return self

    @model_validator(mode="after")
    def _continues_or_begins(self) -> ChatBody:
        check_continues(self)
        return self

    @field_validator("top_logprobs")
    @classmethod
    def _top_needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("needs logprobs: true")
        return value


class TokenizeBody(Body):
    """`/tokenize`: a prompt, or a chat."""

    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: OnByDefault = True
    continue_final_message: OffByDefault = False
    chat_template_kwargs: TemplateArguments | None = None
    tools: Tools | None = None
    return_token_strs: OffByDefault = False

    @model_validator(mode="after")
    def _continues_or_begins(self) -> TokenizeBody:
        check_continues(self)
        return self

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """`/detokenize`."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True)]


class DrainBody(BaseModel):
    """`/admin/drain`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    deadline_s: Annotated[float, Field(ge=0, le=86_400)]


class DrainQuery(BaseModel):
    """The query of `GET /admin/drain`."""

    model_config = ConfigDict(extra="forbid")

    requests: bool = False


class SleepQuery(BaseModel):
    """The query of `/admin/sleep`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    level: Annotated[int, Field(ge=1, le=2)] = 1
    drain: bool = False
    deadline: Annotated[float, Field(ge=0, le=3600)] = 30.0  # seconds


RequestId = Annotated[str, StringConstraints(max_length=160)]


class AbortBody(BaseModel):
    """`/admin/abort`; null: all."""

    model_config = ConfigDict(extra="forbid")

    request_ids: Annotated[list[RequestId], Field(max_length=MAX_NAMED, fail_fast=True)] | None


class ExportBody(BaseModel):
    """`/admin/export`."""

    model_config = ConfigDict(extra="forbid")

    request_ids: Annotated[list[RequestId], Field(min_length=1, max_length=MAX_EXPORTED, fail_fast=True)]
    stop: bool = False  # end them here, with an error for their clients


def _without_defaults(schema: dict[str, Any]) -> None:
    schema["minProperties"] = 1
    for form in schema["properties"].values():
        form.pop("default", None)


class Changes(BaseModel):
    """A body that names what is to change; what it does not name stays."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra=_without_defaults)

    @model_validator(mode="after")
    def _names_something(self) -> Changes:
        if not self.model_fields_set:
            raise ValueError(f"name at least one of {', '.join(type(self).model_fields)}")
        return self

    def changes(self) -> dict[str, Any]:
        """The fields that were given."""
        return self.model_dump(include=self.model_fields_set)


class LimitsBody(Changes):
    """`/admin/limits`: those to change."""

    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] = 1
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1
    prefill_chunk_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_num_queued_reqs: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    max_num_queued_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None
    max_queue_wait_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = None


SeriesNames = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=128)], ...], Field(min_length=1, max_length=64)
]


class FaultsBody(Changes):
    """`/admin/faults`: those to turn on, or off with null."""

    slow_steps: Annotated[float, Field(ge=1, le=1000)] | None = None
    hung_core: bool | None = None
    wrong_numbers: bool | None = None
    kv_leak: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    oom_next: Annotated[int, Field(ge=1, le=1000)] | None = None
    prefix_cache_off: bool | None = None
    slow_decode: Annotated[float, Field(ge=1, le=1000)] | None = None
    row_seconds: Annotated[float, Field(gt=0, le=1)] | None = None
    failing_share: Annotated[float, Field(gt=0, le=1)] | None = None
    slow_tokenizer: Annotated[float, Field(gt=0, le=60)] | None = None
    metrics_frozen: bool | None = None
    metrics_missing: SeriesNames | None = None
    metrics_nan: SeriesNames | None = None
    metrics_renamed: SeriesNames | None = None
