"""Asks a node now and then how many tokens a prompt has, so that budgets count in the model's own tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from fleetctl.gateway.http.node_client import NodeClient, NodeClientError
from fleetctl.gateway.nodes.node_keys import NO_NODE_KEYS, NodeKeys
from fleetctl.gateway.nodes.table import Endpoint, Routing
from fleetctl.gateway.prompts.messages import message_chars, messages_of, tool_texts
from fleetctl.gateway.prompts.preparation import PromptPreparation
from fleetctl.gateway.prompts.prompt_metrics import PromptMetrics
from fleetctl.gateway.prompts.token_ratio import TokenRatios
from fleetctl.settings.prompts import PromptSettings

log = structlog.get_logger()

ASK_EVERY_S = 60.0
LIMIT_S = 5.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_CHARS = 200_000
MAX_MODELS = 1000


def open_preparation(
    settings: PromptSettings,
    registry: CollectorRegistry,
    nodes: NodeClient,
    routing: Routing,
    keys: NodeKeys = NO_NODE_KEYS,
) -> PromptPreparation | None:
    """The preparation of prompts with a probe of its own; None when the settings ask for nothing."""
    if not (settings.budgets or settings.canonical_rules or settings.prefix_lint.max_per_s):
        return None
    ratios = TokenRatios()
    probe = TokenizerProbe(nodes, routing, ratios, keys=keys)
    return PromptPreparation(settings, PromptMetrics(registry), ratios=ratios, ask_tokens=probe.ask_tokens)


class TokenizerProbe:
    """Measures characters per token, by at most one prompt a minute for each model. It goes to a node, nowhere else."""

    def __init__(
        self,
        nodes: NodeClient,
        routing: Routing,
        ratios: TokenRatios,
        *,
        keys: NodeKeys = NO_NODE_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._keys = keys
        self._routing = routing
        self._ratios = ratios
        self._clock = clock
        self._next_ask: dict[str, float] = {}
        self._asks: set[asyncio.Task[None]] = set()

    def ask_tokens(self, model: str | None, body: dict[str, Any]) -> None:
        """Begin to ask a node of the model for this prompt's tokens, when the last time is long enough ago."""
        now = self._clock()
        key = model or ""
        if now < self._next_ask.get(key, 0.0) or (key not in self._next_ask and len(self._next_ask) >= MAX_MODELS):
            return
        question, chars = _question(body)
        table = self._routing.table
        candidates = table.candidates(model) if table is not None else ()
        if question is None or chars > MAX_CHARS or not candidates:
            return
        self._next_ask[key] = now + ASK_EVERY_S
        task = asyncio.get_running_loop().create_task(self._ask(candidates[0], model, question, chars))
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _ask(self, endpoint: Endpoint, model: str | None, question: dict[str, Any], chars: int) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                tokens = await self._count(endpoint, question)
        except (NodeClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            # Another engine without /tokenize, or one that wants a key: the estimate stays, and headers say so.
            log.debug("tokenizer.not_asked", node_url=endpoint.base, error=type(error).__name__)
            return
        self._ratios.note_measured(model, chars=chars, tokens=tokens)

    async def _count(self, endpoint: Endpoint, question: dict[str, Any]) -> int:
        headers = self._keys.headers([(b"Content-Type", b"application/json")], endpoint)
        body = json.dumps(question).encode()
        answer = await self._nodes.request("POST", endpoint.base, "/tokenize", headers=headers, body=body)
        try:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            read = b""
            while part := await answer.read_any():
                read += part
                if len(read) > MAX_ANSWER_BYTES:
                    raise ValueError("too long")
        finally:
            answer.release()
        count = json.loads(read)["count"]
        if not isinstance(count, int):
            raise TypeError("count")
        return count


def _question(body: dict[str, Any]) -> tuple[dict[str, Any] | None, int]:
    """What `/tokenize` is asked, and how many characters that has."""
    messages = messages_of(body)
    if messages is not None:
        chars = sum(map(message_chars, messages)) + sum(map(len, tool_texts(body)))
        return {key: body[key] for key in ("model", "messages", "tools") if body.get(key)}, chars
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return {key: body[key] for key in ("model", "prompt") if body.get(key)}, len(prompt)
    return None, 0
