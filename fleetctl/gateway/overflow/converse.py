"""OpenAI's chat in the words of Amazon Bedrock's Converse API, and its answers in OpenAI's. Pure.

Shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html and its ConverseStream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fleetctl.gateway.overflow.outside import NotExpressibleError, Usage, output_limit, refuse_unbounded

FINISH_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
# Words that change nothing about what is answered, or are no promise in OpenAI's API either.
_LEFT_OUT = frozenset(
    {"model", "stream", "stream_options", "user", "metadata", "store", "seed", "service_tier", "deadline_s"}
)
_MAPPED = frozenset(
    {"messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "tools", "tool_choice"}
)
# Words with the value that says nothing.
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "logprobs": False,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "logit_bias": {},
}


def converse_body(body: Mapping[str, Any], default_max_tokens: int) -> dict[str, Any]:
    """The body of a Converse request. Raises NotExpressibleError naming the first field that has no place in it."""
    refuse_unbounded(body)
    for key, value in body.items():
        if key not in _LEFT_OUT and key not in _MAPPED and value is not None and _NEUTRAL.get(key, ...) != value:
            raise NotExpressibleError(key)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise NotExpressibleError("messages")
    limit = output_limit(body)
    config: dict[str, Any] = {"maxTokens": default_max_tokens if limit is None else limit}
    for key, name in (("temperature", "temperature"), ("top_p", "topP")):
        if body.get(key) is not None:
            config[name] = body[key]
    if (stop := body.get("stop")) is not None:
        config["stopSequences"] = [stop] if isinstance(stop, str) else stop
    sent: dict[str, Any] = {"messages": _conversation(messages), "inferenceConfig": config}
    if system := [{"text": text} for one in messages if _is_system(one) and (text := _text(one))]:
        sent["system"] = system
    if body.get("tools"):
        sent["toolConfig"] = _tool_config(body)
    return sent


def chat_completion(answer: Mapping[str, Any], *, answer_id: str, model: str, created: int) -> dict[str, Any]:
    """The whole answer in OpenAI's shape. Raises ValueError for what is no Converse answer."""
    try:
        blocks = answer["output"]["message"]["content"]
        usage = converse_usage(answer["usage"])
        texts = [block["text"] for block in blocks if "text" in block]
        calls = [_tool_call(block["toolUse"]) for block in blocks if "toolUse" in block]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
        reason = FINISH_REASONS.get(answer["stopReason"], "stop")
    except (KeyError, TypeError) as error:
        raise ValueError(f"no Converse answer: {error}") from error
    if calls:
        message["tool_calls"] = calls
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": openai_usage(usage),
    }


class ChunkWriter:
    """Events of one ConverseStream as OpenAI's chunks. `usage` is known after its metadata."""

    def __init__(self, *, answer_id: str, model: str, created: int, wants_usage: bool) -> None:
        self._head = {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._wants_usage = wants_usage
        self._calls: dict[int, int] = {}  # content block to the tool call's index
        self.usage: Usage | None = None

    def chunks(self, kind: str, event: Mapping[str, Any]) -> Iterable[bytes]:
        """What the client gets for one event. Raises ValueError for a wrong one; unknown kinds are left out."""
        try:
            return list(self._chunks(kind, event))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no {kind} event: {error}") from error

    def last(self) -> Iterable[bytes]:
        """The end of the stream."""
        if self._wants_usage and self.usage is not None:
            yield _event({**self._head, "choices": [], "usage": openai_usage(self.usage)})
        yield b"data: [DONE]\n\n"

    def _chunks(self, kind: str, event: Mapping[str, Any]) -> Iterable[bytes]:
        if kind == "messageStart":
            yield self._delta({"role": "assistant", "content": ""})
        elif kind == "contentBlockStart" and "toolUse" in event["start"]:
            used = event["start"]["toolUse"]
            index = self._calls[event["contentBlockIndex"]] = len(self._calls)
            function = {"name": used["name"], "arguments": ""}
            call = {"index": index, "id": used["toolUseId"], "type": "function", "function": function}
            yield self._delta({"tool_calls": [call]})
        elif kind == "contentBlockDelta":
            delta = event["delta"]
            if "text" in delta:
                yield self._delta({"content": delta["text"]})
            elif "toolUse" in delta:
                index = self._calls[event["contentBlockIndex"]]
                part = {"index": index, "function": {"arguments": delta["toolUse"]["input"]}}
                yield self._delta({"tool_calls": [part]})
        elif kind == "messageStop":
            yield self._delta({}, FINISH_REASONS.get(event["stopReason"], "stop"))
        elif kind == "metadata":
            self.usage = converse_usage(event["usage"])

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice]})


def converse_usage(usage: Mapping[str, Any]) -> Usage:
    """Tokens of a Converse answer; its cache's are prompt too. Raises KeyError, TypeError."""
    cached = sum(int(usage.get(key) or 0) for key in ("cacheReadInputTokens", "cacheWriteInputTokens"))
    return Usage(int(usage["inputTokens"]) + cached, int(usage["outputTokens"]))


def openai_usage(usage: Usage) -> dict[str, int]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _conversation(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Converse wants user and assistant in turn, tool results as the user's, and no empty text."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if _is_system(message):
            continue
        role = message.get("role")
        if role not in ("user", "assistant", "tool"):
            raise NotExpressibleError(f"messages.role: {role}")
        side = "assistant" if role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    if not turns or turns[0]["role"] != "user":
        raise NotExpressibleError("messages: the first one that is no rule must be the user's")
    return turns


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    text = _text(message)
    if message.get("role") == "tool":
        return [{"toolResult": {"toolUseId": message.get("tool_call_id"), "content": [{"text": text or " "}]}}]
    blocks: list[dict[str, Any]] = [{"text": text}] if text.strip() else []
    for call in message.get("tool_calls") or ():
        try:
            function = call["function"]
            arguments = json.loads(function["arguments"] or "{}")
            blocks.append({"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": arguments}})
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise NotExpressibleError("messages.tool_calls") from error
    return blocks


def _tool_config(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = []
    for tool in body["tools"]:
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise NotExpressibleError("tools")
        spec: dict[str, Any] = {"name": function["name"]}
        if function.get("description"):
            spec["description"] = function["description"]
        spec["inputSchema"] = {"json": function.get("parameters") or {"type": "object"}}
        tools.append({"toolSpec": spec})
    match body.get("tool_choice"):
        case None | "auto":
            return {"tools": tools}
        case "required":
            return {"tools": tools, "toolChoice": {"any": {}}}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"tools": tools, "toolChoice": {"tool": {"name": name}}}
        case _:
            raise NotExpressibleError("tool_choice")


def _tool_call(used: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": used["name"], "arguments": json.dumps(used["input"])}
    return {"id": used["toolUseId"], "type": "function", "function": function}


def _is_system(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return ""


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
