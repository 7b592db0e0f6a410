"""What an answer told its client, however it was cut into events: two that told the same are equal. Pure."""

from __future__ import annotations

import json
from typing import Any

NOT_COMPARED = frozenset({"prompt_tokens_details"})  # what a node had in its cache
IDS = "ids"


class ToldAnswer:
    """Everything that an answer said, joined per field. What comes twice stands there twice, so it is noticed."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._heads: set[tuple[Any, ...]] = set()

    def note_body(self, body: dict[str, Any]) -> None:
        """Take in one event's object, or a plain answer."""
        self._heads.add(tuple(body.get(key) for key in ("id", "created", "model")))
        if usage := body.get("usage"):
            self._told["usage"] = {key: value for key, value in usage.items() if key not in NOT_COMPARED}
        for choice in body.get("choices") or ():
            self._join(f"choice {choice.get('index', 0)}", choice)

    def canonical(self) -> str:
        """All of it as JSON. An answer has one id, and its events come from one answer."""
        return json.dumps({**self._told, IDS: len(self._heads)}, sort_keys=True)

    def _join(self, key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                # The id of a tool call is made of the request's: how often it was told counts.
                self._join(f"{key}.{name}", "id" if name == "id" else part)
        elif key.endswith(".tool_calls") and value:
            for at, part in enumerate(value):  # only streams say the index
                index = part.get("index", at)
                self._join(f"{key}.{index}", {name: one for name, one in part.items() if name != "index"})
        elif isinstance(value, list | str):
            self._told[key] = self._told[key] + value if key in self._told else value
        elif value is not None:
            self._told[key] = value


def first_difference(expected: str, told: str) -> str:
    """Which field of two canonical answers differs first, and where, for a report. Empty when none does."""
    one, other = json.loads(expected), json.loads(told)
    for key in sorted(one.keys() | other.keys()):
        left, right = one.get(key), other.get(key)
        if left == right:
            continue
        if isinstance(left, str | list) and isinstance(right, str | list):
            at = next((i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(left), len(right)) if at is None else at
            return f"{key}, from {at} of {len(left)} on: {left[at : at + 40]!r}, not {right[at : at + 40]!r}"
        return f"{key}: {left!r}, not {right!r}"[:300]
    return ""
