"""What a body may say: null for what is left open, and errors that name the limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ValidationError

from engine.api.errors import from_validation
from engine.api.schema import ChatBody, CompletionBody, TokenizeBody

MESSAGE = {"role": "user", "content": "x"}
DEFAULTS = {
    "stream": False,
    "echo": False,
    "min_tokens": 0,
    "ignore_eos": False,
    "priority": 0,
    "include_stop_str_in_output": False,
    "return_token_ids": False,
    "add_special_tokens": True,
    "stream_options": None,
    "n": None,
    "stop": None,
    "logprobs": None,
}


def read(kind: type[BaseModel], **fields: Any) -> Any:
    return kind.model_validate_json(msgspec.json.encode(fields), strict=True)


def test_null_means_the_default() -> None:
    body = read(CompletionBody, prompt="x", **dict.fromkeys(DEFAULTS))
    assert {name: getattr(body, name) for name in DEFAULTS} == DEFAULTS
    usage = read(CompletionBody, prompt="x", stream=True, stream_options={"include_usage": None}).stream_options
    assert (usage.include_usage, usage.continuous_usage_stats) == (False, False)
    assert read(ChatBody, messages=[MESSAGE], stream=None, add_generation_prompt=None).add_generation_prompt
    assert not read(TokenizeBody, prompt="x", return_token_strs=None).return_token_strs


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (CompletionBody, {"prompt": "x", "stop": ["a"] * 17}, "stop: List should have at most 16 items"),
        (CompletionBody, {"prompt": ["a"] * 33}, "prompt: List should have at most 32 items"),
        (CompletionBody, {"prompt": []}, "prompt: List should have at least 1 item"),
        (CompletionBody, {"prompt": "x", "stop": ["a" * 300]}, "stop.0: String should have at most 256 characters"),
        (CompletionBody, {"prompt": [1, -1]}, "prompt.1: Input should be greater than or equal to 0"),
        (CompletionBody, {"prompt": [1, "x"]}, "prompt.1: Input should be a valid integer"),
        (CompletionBody, {"prompt": "x", "min_tokens": -1}, "min_tokens: Input should be greater than or equal to 0"),
        (CompletionBody, {"prompt": "x", "stream": "yes"}, "stream: Input should be a valid boolean"),
        (ChatBody, {"messages": [MESSAGE | {"content": [{"type": "text", "text": "x"}] * 257}]}, "at most 256 items"),
    ],
)
def test_an_error_names_the_field_and_its_limit(kind: type[BaseModel], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as invalid:
        read(kind, **fields)
    assert words in from_validation(invalid.value).message
