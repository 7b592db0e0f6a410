"""What the routes answer, for the OpenAPI document. Bodies are written elsewhere (`chunks.py` and the handlers); a test
holds a running node to these.

A field is required here when it is always there. Clients must expect more fields than these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Finish = Literal["stop", "length", "tool_calls", "repetition"]


class AnswerBody(BaseModel):
    """Any answer; clients must expect more fields than are listed."""

    model_config = ConfigDict(protected_namespaces=())


class ErrorFacts(AnswerBody):
    """OpenAI's four facts of an error."""

    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(AnswerBody):
    """Every status from 400 on."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorFacts


class PromptTokens(AnswerBody):
    """What of the prompt had not to be computed."""

    cached_tokens: Count


class Usage(AnswerBody):
    """Tokens of the whole request, also those that other nodes generated."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokens


class CompletionLogprobs(AnswerBody):
    """Parallel lists over the tokens of a completion."""

    tokens: list[str]
    token_logprobs: list[float | None]  # null for the first token of an echoed prompt
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[Count]


class CompletionChoice(AnswerBody):
    """One choice of a completion."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: PromptLogprobs | None = None  # left out unless asked for
    finish_reason: Finish
    stop_reason: str | int | None


class Completion(AnswerBody):
    """A whole completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Annotated[list[CompletionChoice], Field(min_length=1)]
    usage: Usage


class PromptLogprob(AnswerBody):
    """A token at a place of the prompt; `rank` 1 is the most likely there."""

    logprob: float
    rank: Count | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; null for the first token


class ChatLogprob(AnswerBody):
    """One token of a chat and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprobs(ChatLogprob):
    """A token that was drawn, and the most likely ones at its place."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(AnswerBody):
    """Of all tokens of a choice."""

    content: list[ChatTokenLogprobs]


class AnsweredFunction(AnswerBody):
    """What is called; `arguments` is JSON as text."""

    name: str
    arguments: str


class AnsweredToolCall(AnswerBody):
    """One call that the model made."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class ChatMessage(AnswerBody):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[AnsweredToolCall] | None = None  # left out when there are none


class ChatChoice(AnswerBody):
    """One choice of a chat."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None


class ChatCompletion(AnswerBody):
    """A whole answer of a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None  # left out unless asked for


class ResponseUsage(AnswerBody):
    """Tokens of a response."""

    input_tokens: Count
    input_tokens_details: dict[str, Count]
    output_tokens: Count
    output_tokens_details: dict[str, Count]
    total_tokens: Count


class ResponseAnswer(AnswerBody):
    """OpenAI's response object."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage


class EmbeddingEntry(AnswerBody):
    """One input's vector; as text it is base64 of little-endian float32."""

    index: Count
    object: Literal["embedding"]
    embedding: list[float] | str


class Embeddings(AnswerBody):
    """Vectors in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[EmbeddingEntry]
    usage: Usage


class ScoreEntry(AnswerBody):
    """How well a pair goes together."""

    index: Count
    object: Literal["score"]
    score: float


class Scores(AnswerBody):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreEntry]
    usage: Usage


class RankedDocument(AnswerBody):
    """A document by its place in the request."""

    index: Count
    document: dict[str, str]
    relevance_score: float


class Ranking(AnswerBody):
    """The best documents first."""

    id: str
    model: str
    usage: Usage
    results: list[RankedDocument]


class HandoffAnswer(AnswerBody):
    """A request that left this node unfinished; see docs/architecture.md."""

    version: int
    request_id: str
    kind: Literal["chat", "completion"]
    state: dict[str, Any]


class ModelEntry(AnswerBody):
    """One name that this node answers to."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: Count


class ModelList(AnswerBody):
    """All names that this node answers to."""

    object: Literal["list"]
    data: list[ModelEntry]


class Tokens(AnswerBody):
    """A text as token ids."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str] | None = None  # left out unless asked for


class DetokenizedText(AnswerBody):
    """Token ids as text."""

    prompt: str


class Live(AnswerBody):
    """The API process answers."""

    live: Literal[True]
    since: float


class Readiness(AnswerBody):
    """Whether requests are taken, and why not; `age_s` since when it is so."""

    ready: bool
    reason: str
    since: float
    age_s: Seconds
    detail: str | None = None  # why, with a reason that is a fault
    restart: dict[str, Any] | None = None  # with core_dead: what is done about it


class DeepHealth(Readiness):
    """Readiness, and what it is judged by."""

    progress: dict[str, Any] | None
    work: dict[str, Any]
    golden: dict[str, Any]


class Version(AnswerBody):
    """Of the engine."""

    version: str


class Info(AnswerBody):
    """What this node is, and its limits in force."""

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
    speculation: dict[str, Any] | None
    task: Literal["generate", "embed", "classify"]
    pooling: dict[str, Any] | None
    faults_enabled: bool


class ReceiptAnswer(AnswerBody):
    """What became of the requests held when the drain began."""

    in_flight: Count
    finished: Count
    moved: Count
    refused: Count
    aborted: Count


class DrainedRequestAnswer(AnswerBody):
    """One request that was held when the drain began, or refused since; null fate: held still."""

    request_id: str
    tokens_in: Count
    tokens_before: Count
    tokens_out: Count
    fate: Literal["finished", "moved", "aborted", "failed", "refused"] | None


class DrainStatus(AnswerBody):
    """State of the drain; times in unix seconds, counts in sequences."""

    state: Literal["serving", "draining", "drained"]
    since: float
    deadline_at: float | None
    running: Count
    waiting: Count
    receipt: ReceiptAnswer
    requests: list[DrainedRequestAnswer] | None = None  # when asked for; left out else


class HeldRequest(AnswerBody):
    """One request in flight, without its prompt or text."""

    request_id: str
    id: str
    kind: Literal["chat", "completion", "response", "embedding", "score"]
    state: Literal["waiting", "running", "moving", "ending"]
    stream: bool
    choices: Count
    tokens_in: Count
    tokens_out: Count
    kv_blocks: Count | None  # null: the core has not said
    age_s: Seconds
    priority: int
    deadline_s: float | None


class HeldRequests(AnswerBody):
    """All requests in flight, oldest first, and ids of those that are read or tokenised and not taken in yet."""

    requests: list[HeldRequest]
    arriving: list[str]
    kv_blocks_unknown: str | None = None  # why they are null; left out when they are not


class KvBlocks(AnswerBody):
    """What the KV cache is used for: blocks held by requests, of those by several; kept by none for prompts that begin
    the same, of those found again before. What is neither held nor kept is blank."""

    block_size: Count
    num_blocks: Count
    num_held: Count
    num_shared: Count
    num_kept: Count
    num_kept_reused: Count


class Aborted(AnswerBody):
    """Whose requests were ended, and which names nobody bears."""

    aborted: list[str]
    unknown: list[str]


class Exported(AnswerBody):
    """Requests as another node can go on with them."""

    requests: list[HandoffAnswer]
    unknown: list[str]


class LimitsAnswer(AnswerBody):
    """Limits in force; null: none, or by capacity."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    prefill_chunk_tokens: Count | None
    max_num_queued_reqs: Count
    max_num_queued_tokens: Count | None
    max_queue_wait_s: Seconds | None


class SleepAnswer(AnswerBody):
    """Whether the node sleeps, and what became of its weights."""

    state: Literal["awake", "falling_asleep", "asleep", "waking"]
    level: Annotated[int, Field(ge=0, le=2)]  # 0: awake
    since: float
    weights: Literal["kept", "offloaded", "discarded"] | None = None  # left out when awake


class Success(AnswerBody):
    """It was done."""

    success: Literal[True]


class FaultsAnswer(AnswerBody):
    """Each fault that is or was on."""

    model_config = ConfigDict(extra="allow")
