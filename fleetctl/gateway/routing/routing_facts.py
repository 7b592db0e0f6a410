"""What a client asks for, as far as routing must know it: model, stream or not, how its prompt begins, how big it is.

It does not validate a request: the node does, and its answer goes to the client as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

PREFIX_CHARS = 512  # of the canonical prompt; prompts that agree this far share KV blocks worth keeping together
CHARS_PER_TOKEN = 4  # a guess for load estimates only
DEFAULT_OUTPUT_TOKENS = 256  # when a request gives no max_tokens
MAX_DEADLINE_S = 1e9
MAX_OUTPUT_TOKENS = 16_384  # one request's claim must not blind the balance

GENERATION_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


class BadBodyError(Exception):
    """The body can't be read. The message is for the client."""


@dataclass(frozen=True, slots=True)
class RoutingFacts:
    """`prefix`: the canonical prompt's first characters. `tokens`: rough cost, prompt and output together.

    `input_tokens`: the prompt's part of it. `output_tokens`: what the client asks for at most; None: it does not say.

    `deadline_s`: seconds from its arrival after which the client wants no answer.
    """

    model: str | None = None
    stream: bool = False
    prefix: str = ""
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int | None = None
    deadline_s: float | None = None


def read_routing_facts(path: str, body: bytes) -> RoutingFacts:
    """What routing needs of a completion request's body. Raises BadBodyError when it is not a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBodyError("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise BadBodyError("the body must be a JSON object")
    if path == "/v1/chat/completions":
        prefix, chars = _chat_prompt(value.get("messages"))
    else:
        prefix, chars = _completion_prompt(value.get("prompt"))
    model = value.get("model")
    input_tokens, output_tokens = chars // CHARS_PER_TOKEN, _output_tokens(value)
    return RoutingFacts(
        model=model if isinstance(model, str) else None,
        stream=value.get("stream") is True,
        prefix=prefix,
        tokens=input_tokens + min(output_tokens or DEFAULT_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        deadline_s=_deadline_s(value.get("deadline_s")),
    )


def _deadline_s(asked: Any) -> float | None:
    """None for what is no limit; what makes no sense the node refuses."""
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked < MAX_DEADLINE_S:
        return None
    return float(asked)


def _output_tokens(value: dict[str, Any]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):
        asked = value.get(key)
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return asked
    return None


def _chat_prompt(messages: Any) -> tuple[str, int]:
    """Role and text of each message, one after the other: equal conversations give equal text, however encoded."""
    if not isinstance(messages, list):
        return "", 0
    prefix = ""
    chars = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        text = _content_text(message.get("content"))
        chars += len(text)
        if len(prefix) < PREFIX_CHARS:
            prefix += f"{message.get('role')}\n{text[:PREFIX_CHARS]}\n"
    return prefix[:PREFIX_CHARS], chars


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _completion_prompt(prompt: Any) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt[:PREFIX_CHARS], len(prompt)
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            head = " ".join(map(str, prompt[: PREFIX_CHARS // CHARS_PER_TOKEN]))
            return head[:PREFIX_CHARS], len(prompt) * CHARS_PER_TOKEN
        prefix, _ = _completion_prompt(prompt[0])
        return prefix, sum(_completion_prompt(one)[1] for one in prompt if not _is_nested(one))
    return "", 0


def _is_nested(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], list)
