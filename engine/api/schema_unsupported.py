"""Fields that other servers know and this node does not: refused when they ask for something, never ignored.

An answer that silently lacks what was asked for looks right and is wrong. Fields that only hint (service_tier, store,
prediction) and those that nobody knows are ignored, as clients send many.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, WithJsonSchema


def _refuse(value: Any) -> None:
    if value is not None and value is not False and value not in ("", []):
        raise ValueError("is not supported by this node")


def _refuse_more_than_text(value: list[str] | None) -> None:
    if value not in (None, [], ["text"]):
        raise ValueError("this node answers with text only")


Unsupported = Annotated[Any, AfterValidator(_refuse), WithJsonSchema({"enum": [None, False]})]
OnlyText = Annotated[
    list[str] | None,
    AfterValidator(_refuse_more_than_text),
    WithJsonSchema({"anyOf": [{"type": "null"}, {"const": ["text"]}]}),
]


class UnsupportedFields(BaseModel):
    """vLLM's, for completions and chats."""

    kv_transfer_params: Unsupported = None
    logits_processors: Unsupported = None
    prompt_embeds: Unsupported = None
    use_beam_search: Unsupported = None


class UnsupportedChatFields(BaseModel):
    """OpenAI's and vLLM's, for chats."""

    audio: Unsupported = None
    chat_template: Unsupported = None
    documents: Unsupported = None
    echo: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    modalities: OnlyText = None
    web_search_options: Unsupported = None
