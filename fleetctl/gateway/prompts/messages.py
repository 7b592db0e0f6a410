"""The messages of a chat request: roles, texts and tool calls. What has another shape is left as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleetctl.gateway.routing.routing_facts import content_text

Message = Mapping[str, Any]

SYSTEM_ROLES = frozenset({"system", "developer"})
TOOL_ROLES = frozenset({"tool", "function"})


def role_of(message: Message) -> str:
    """The message's role; "" where it has none."""
    role = message.get("role")
    return role if isinstance(role, str) else ""


def is_system(message: Message) -> bool:
    """Whether the message holds rules for the whole conversation."""
    return role_of(message) in SYSTEM_ROLES


def calls_tools(message: Message) -> bool:
    """Whether tool results belong to this message."""
    return bool(message.get("tool_calls")) or message.get("function_call") is not None


def message_texts(message: Message) -> Iterator[str]:
    """All that a chat template writes out of a message, without the template's own words."""
    yield role_of(message)
    yield content_text(message.get("content"))
    name = message.get("name")
    if isinstance(name, str):
        yield name
    for key in ("tool_calls", "function_call"):
        if message.get(key):
            yield compact_json(message[key])


def message_chars(message: Message) -> int:
    """Characters that the model reads of a message. Parts that are no text are not counted."""
    return sum(len(text) for text in message_texts(message))


def tool_texts(body: Mapping[str, Any]) -> list[str]:
    """Each tool of a request as compact JSON: templates write them before the messages."""
    tools = body.get("tools") or body.get("functions")
    return [compact_json(tool) for tool in tools] if isinstance(tools, list) else []


def prompt_text(body: Mapping[str, Any]) -> str:
    """A request's prompt as one text: tools, then role and content of each message; templates differ in the rest."""
    prompt = body.get("prompt")
    parts = [*tool_texts(body), *([prompt] if isinstance(prompt, str) else [])]
    for message in messages_of(body) or ():
        parts += [text for text in message_texts(message) if text]
    return "\n".join(parts)


def compact_json(value: Any) -> str:
    """One line of JSON, key order as given."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def messages_of(body: Mapping[str, Any]) -> Sequence[Message] | None:
    """The request's messages; None when there are none, or any of them is no object."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        return None
    return messages
