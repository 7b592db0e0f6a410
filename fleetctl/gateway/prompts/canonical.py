"""The canonical form of a request: what means the same is written the same, so that it shares KV blocks. Pure.

Each rule has a name, changes only what it says, and applied twice does what it does once. Users' words stay as they
are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fleetctl.gateway.prompts.messages import Message, compact_json, is_system, messages_of, role_of
from fleetctl.gateway.prompts.volatile_fields import only_field

Body = dict[str, Any]

MAX_FIELD_LINE_CHARS = 120
_LABELLED = re.compile(r"[A-Za-z][\w /()-]{0,40}: +(?P<value>\S.*)")


def canonical_body(body: Body, rules: Collection[str]) -> Body:
    """The body in canonical form: the same object when no rule changes anything. Raises KeyError for no such rule."""
    for name, rule in RULES.items():
        if name in rules:
            body = rule(body)
    unknown = set(rules) - RULES.keys()
    if unknown:
        raise KeyError(*unknown)
    return body


def _system_first(body: Body) -> Body:
    """System messages that stand before the first answer come before the other messages, in their order."""
    messages = messages_of(body)
    if messages is None:
        return body
    opening = next((i for i, one in enumerate(messages) if role_of(one) not in _OPENING_ROLES), len(messages))
    ordered = sorted(messages[:opening], key=lambda one: not is_system(one))
    return _with(body, "messages", [*ordered, *messages[opening:]])


def _system_whitespace(body: Body) -> Body:
    """In system messages: line ends are LF, no blanks at the end of lines, no blank lines around the text."""
    return _with_system_texts(body, _plain_lines)


def _volatile_lines_last(body: Body) -> Body:
    """In system messages: lines `label: value` whose value is a time, date, id or number go behind the others."""
    return _with_system_texts(body, _fields_behind)


def _plain_content(body: Body) -> Body:
    """Content that is a list of one text part is that text."""
    messages = messages_of(body)
    if messages is None:
        return body
    return _with(body, "messages", [_with_plain_content(one) for one in messages])


def _tool_order(body: Body) -> Body:
    """Tools are in order of their names."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return body
    return _with(body, "tools", sorted(tools, key=lambda tool: (_tool_name(tool), compact_json(tool))))


def _schema_key_order(body: Body) -> Body:
    """Keys of tools are in alphabetical order, but for the names of properties: models answer in their order."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return body
    ordered = [_sorted_keys(tool) for tool in tools]
    # Mappings are equal in any order: what is compared is how they are written.
    return body if compact_json(ordered) == compact_json(tools) else {**body, "tools": ordered}


RULES: Mapping[str, Callable[[Body], Body]] = {
    rule.__name__.removeprefix("_"): rule
    for rule in (
        _plain_content,
        _system_first,
        _volatile_lines_last,
        _system_whitespace,
        _schema_key_order,
        _tool_order,
    )
}
"""By name, in the order in which they are applied."""

_OPENING_ROLES = frozenset({"system", "developer", "user"})


def _with(body: Body, key: str, value: Any) -> Body:
    return body if body[key] == value else {**body, key: value}


def _with_system_texts(body: Body, change: Callable[[str], str]) -> Body:
    messages = messages_of(body)
    if messages is None:
        return body

    def changed(message: Message) -> Message:
        content = message.get("content")
        if not is_system(message) or not isinstance(content, str):
            return message
        return {**message, "content": change(content)}

    return _with(body, "messages", [changed(one) for one in messages])


def _plain_lines(text: str) -> str:
    return "\n".join(line.rstrip(" \t\r") for line in text.split("\n")).strip("\n")


def _fields_behind(text: str) -> str:
    lines = text.split("\n")
    is_field = [_is_labelled_field(line) for line in lines]
    if not any(is_field) or all(is_field):
        return text
    stable = [line for line, moves in zip(lines, is_field, strict=True) if not moves]
    fields = [line for line, moves in zip(lines, is_field, strict=True) if moves]
    return "\n".join([*stable, *fields])


def _is_labelled_field(line: str) -> bool:
    found = _LABELLED.fullmatch(line) if len(line) <= MAX_FIELD_LINE_CHARS else None
    return found is not None and only_field(found["value"]) is not None


def _with_plain_content(message: Message) -> Message:
    content = message.get("content")
    if (
        isinstance(content, list)
        and len(content) == 1
        and isinstance(content[0], dict)
        and content[0].keys() == {"type", "text"}
        and content[0]["type"] == "text"
        and isinstance(content[0]["text"], str)
    ):
        return {**message, "content": content[0]["text"]}
    return message


def _tool_name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def _sorted_keys(value: Any, *, are_names: bool = False) -> Any:
    if isinstance(value, dict):
        items = value.items() if are_names else sorted(value.items())
        return {key: _sorted_keys(one, are_names=not are_names and key == "properties") for key, one in items}
    if isinstance(value, list):
        return [_sorted_keys(one) for one in value]
    return value
