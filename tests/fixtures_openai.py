"""The official client with strict response validation, and its types of a completion as OpenAI really sends them.

The package describes /v1/completions by the type of a whole answer alone: `finish_reason` is one of three words and
each log probability a number. OpenAI itself and vLLM send null in every chunk before the last, and for the first
token of an echoed prompt; there is no value that the package's type takes and that does not end the stream for other
clients. So those two fields are widened here, and everything else is held to the package's types.
"""

from __future__ import annotations

from typing import Any, Literal

import openai
from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs


class SentLogprobs(Logprobs):
    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class SentChoice(CompletionChoice):
    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]
    logprobs: SentLogprobs | None = None


class SentCompletion(Completion):
    choices: list[SentChoice]  # type: ignore[assignment]


def strict_client(url: str) -> openai.OpenAI:
    """An answer that does not fit the client's types raises."""
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True
    )


def stream_completion(client: openai.OpenAI, **body: Any) -> openai.Stream[SentCompletion]:
    """As `client.completions.create(stream=True)`."""
    return client.post(
        "/completions",
        cast_to=SentCompletion,
        body={"model": "tiny", "stream": True, **body},
        stream=True,
        stream_cls=openai.Stream[SentCompletion],
    )


def completion(client: openai.OpenAI, **body: Any) -> SentCompletion:
    """As `client.completions.create()`, for answers that hold null log probabilities."""
    return client.post("/completions", cast_to=SentCompletion, body={"model": "tiny", **body})
