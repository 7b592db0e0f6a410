"""Tool calls in OpenAI's shape: whole in an answer, or piece by piece in a stream. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from engine.node.choice import Choice, ChoiceDelta
from engine.node.generation_request import GenerationRequest


def call_id(request: GenerationRequest, choice: Choice, call: int) -> str:
    """The same on every node that works on this request. Mistral's templates take nine letters and digits only."""
    digest = hashlib.sha256(f"{request.answer_id}/{choice.index}/{call}".encode()).hexdigest()
    return digest[:9] if request.tool_format == "mistral" else f"call_{digest[:24]}"


def chat_delta(request: GenerationRequest, delta: ChoiceDelta) -> dict[str, Any]:
    """`delta` of one chunk of a chat."""
    shown: dict[str, Any] = {}
    if delta.text or (delta.finish_reason is None and not delta.tool_pieces):
        shown["content"] = delta.text
    if delta.tool_pieces:
        shown["tool_calls"] = [
            {"index": piece.call, "function": {"arguments": piece.arguments}}
            if piece.name is None
            else {
                "index": piece.call,
                "id": call_id(request, delta.choice, piece.call),
                "type": "function",
                "function": {"name": piece.name, "arguments": piece.arguments},
            }
            for piece in delta.tool_pieces
        ]
    return shown


def chat_message(request: GenerationRequest, choice: Choice) -> dict[str, Any]:
    """`message` of a whole answer. Beside calls, no text is null."""
    text = "".join(choice.pieces)
    calls = [] if choice.tools is None else choice.tools.calls
    if not calls:
        return {"role": "assistant", "content": text}
    entries = [
        {
            "id": call_id(request, choice, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": entries}
