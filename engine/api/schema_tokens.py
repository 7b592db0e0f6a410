"""Fields of a body that say which tokens may be drawn, when to stop and what to tell of them: vLLM's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_TOKEN_ID = 2**31 - 1
MAX_ALLOWED_IDS = 4096
MAX_BAD_WORDS = 128
MAX_LOGPROB_IDS = 128
MAX_PROMPT_LOGPROBS = 20
MAX_THINKING_TOKENS = 2_000_000
MAX_PATTERN_TOKENS = 256
MAX_REPETITION_SPAN = 4096  # pattern times count: so much is compared at each token

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID, strict=True)]
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class RepetitionDetection(BaseModel):
    """The output ends when its last tokens are a pattern of so many tokens, so many times. 0 of all: off."""

    model_config = ConfigDict(extra="forbid")

    max_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_TOKENS)] = 0
    min_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_TOKENS)] = 0  # 0: 1
    min_count: Annotated[int, Field(ge=0, le=MAX_REPETITION_SPAN)] = 0

    @model_validator(mode="after")
    def _fit(self) -> RepetitionDetection:
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("min_pattern_size must be at most max_pattern_size")
        if self.max_pattern_size and self.min_count < 2:
            raise ValueError("min_count must be at least 2 with max_pattern_size")
        if self.max_pattern_size * self.min_count > MAX_REPETITION_SPAN:
            raise ValueError(f"max_pattern_size times min_count must be at most {MAX_REPETITION_SPAN}")
        return self


class TokenFields(BaseModel):
    """For a body that generates."""

    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_IDS, fail_fast=True)] | None
    ) = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    logprob_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LOGPROB_IDS, fail_fast=True)] | None
    ) = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_PROMPT_LOGPROBS)] | None = None
    repetition_detection: RepetitionDetection | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None  # true where left open
    spaces_between_special_tokens: bool | None = None  # fast tokenizers, ours among them, put none whatever is asked
    thinking_token_budget: Annotated[int, Field(ge=-1, le=MAX_THINKING_TOKENS)] | None = None  # -1: none
