"""One client request after validation, and how far a choice of it has come: what a hand-off carries to another node.

Both are plain data. Fields keep their names on the wire: nodes of two versions hand off to each other.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Literal

import msgspec

from engine.protocol.step import SamplingParams, TokenLogprobs
from engine.text.tool_formats import ToolFormatName

MAX_SEED = 2**63 - 1

Kind = Literal["chat", "completion", "response", "embedding", "score"]


class GenerationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"answer_id": "id"}):
    """One client request, validated and tokenised. Travels whole in a hand-off."""

    answer_id: str  # OpenAI's `id`, in the answer and in every chunk
    request_id: str  # X-Request-Id: the one id of the request, in logs, spans and the core's sequence ids
    kind: Kind
    model: str
    created: int  # unix seconds
    prompts: tuple[tuple[int, ...], ...]
    n: int  # choices for each prompt
    sampling: SamplingParams  # of the first choice; the others differ by their seed
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    echo_texts: tuple[str, ...] = ()  # one for each prompt; empty: no echo
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False  # in every chunk
    cache_salt: str = ""  # prefixes are shared only with requests of the same
    return_token_ids: bool = False
    priority: int = 0
    deadline_s: float | None = None  # since its first arrival, on whatever node that was
    tool_format: ToolFormatName | None = None  # the answer is read for tool calls written so
    max_tool_calls: int | None = None
    num_best: int | None = None  # so many of each prompt's choices are answered with: the likeliest a token
    hides_logprobs: bool = False  # they were computed for that choice alone
    prompt_logprobs: int | None = None  # of each prompt token the most likely ones at its place, this many
    shows_special_tokens: bool = False
    shows_token_ids: bool = False  # in log probabilities, in place of the tokens' text

    def sampling_of(self, index: int) -> SamplingParams:
        """Of choice `index`: each choice of a prompt has a seed of its own, repeatable from the first."""
        seed = (self.sampling.seed + index % self.n) & MAX_SEED
        return replace(self.sampling, seed=seed)


def seed_of(request_id: str) -> int:
    """The seed of a request that names none: the same on every node, so that the id tells the answer."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big") & MAX_SEED


class ChoiceProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one choice has come: what another node needs beside the request to go on exactly."""

    index: int
    output_token_ids: tuple[int, ...] = ()
    num_chars_sent: int = 0
    is_opened: bool = False  # its first chunk, with the role or the echo, was sent
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()  # only when the answer is sent whole
