"""What the routes answer, for the OpenAPI document. Bodies are written elsewhere (`chunks.py` and the handlers); a test
holds a running node to these.

A field is required here when it is always there. Clients must expect more fields than these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Finish = Literal["stop", "length", "tool_calls"]


class Answer(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class ErrorFacts(Answer):
    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """Every status from 400 on."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorFacts


class PromptTokens(Answer):
    cached_tokens: Count


class Usage(Answer):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokens


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]  # null for the first token of an echoed prompt
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[Count]


class CompletionChoice(Answer):
    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Annotated[list[CompletionChoice], Field(min_length=1)]
    usage: Usage


class ChatLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprobs(ChatLogprob):
    top_logprobs: list[ChatLogprob]


class ChatLogprobs(Answer):
    content: list[ChatTokenLogprobs]


class CalledFunction(Answer):
    name: str
    arguments: str


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | None = None  # left out when there are none


class ChatChoice(Answer):
    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage


class Handoff(Answer):
    """A request that left this node unfinished; see docs/architecture.md."""

    version: int
    request_id: str
    kind: Literal["chat", "completion"]
    state: dict[str, Any]


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: Count


class Models(Answer):
    object: Literal["list"]
    data: list[Model]


class Tokens(Answer):
    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str] | None = None  # left out unless asked for


class DetokenizedText(Answer):
    prompt: str


class Live(Answer):
    live: Literal[True]
    since: float


class Readiness(Answer):
    ready: bool
    reason: str
    since: float
    age_s: Seconds


class DeepHealth(Readiness):
    progress: dict[str, Any] | None
    work: dict[str, Any]
    golden: dict[str, Any]


class Info(Answer):
    name: str
    engine: str
    version: str
    model: str
    served_model_names: list[str]
    pid: int
    started_at: float
    state: str
    kv_capacity_tokens: Count | None
    limits: dict[str, int | None]
    sampling_defaults: dict[str, float | None]
    faults_enabled: bool


class Receipt(Answer):
    in_flight: Count
    finished: Count
    moved: Count
    refused: Count
    aborted: Count


class DrainStatus(Answer):
    state: Literal["serving", "draining", "drained"]
    since: float
    deadline_at: float | None
    running: Count
    waiting: Count
    receipt: Receipt


class HeldRequest(Answer):
    request_id: str
    id: str
    kind: Literal["chat", "completion"]
    state: Literal["waiting", "running", "moving", "ending"]
    stream: bool
    choices: Count
    tokens_in: Count
    tokens_out: Count
    kv_blocks: Count | None  # null: the core has not said
    age_s: Seconds
    priority: int
    deadline_s: float | None


class HeldRequests(Answer):
    requests: list[HeldRequest]
    kv_blocks_unknown: str | None = None  # why they are null; left out when they are not


class Aborted(Answer):
    aborted: list[str]
    unknown: list[str]


class Exported(Answer):
    requests: list[Handoff]
    unknown: list[str]


class Limits(Answer):
    max_num_seqs: Count
    max_num_batched_tokens: Count
    prefill_chunk_tokens: Count | None
    max_num_queued_reqs: Count
    max_num_queued_tokens: Count | None
    max_queue_wait_s: Seconds | None


class Sleep(Answer):
    state: Literal["awake", "falling_asleep", "asleep", "waking"]
    level: Annotated[int, Field(ge=0, le=2)]  # 0: awake
    since: float
    weights: Literal["kept", "offloaded", "discarded"] | None = None  # left out when awake


class Success(Answer):
    success: Literal[True]


class Faults(Answer):
    """Each fault that is or was on."""

    model_config = ConfigDict(extra="allow")
