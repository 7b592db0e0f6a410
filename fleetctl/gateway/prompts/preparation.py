"""What becomes of a prompt before it is routed: canonical form, then its budget; the lint looks at the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from fleetctl.gateway.prompts.budget import CannotTrim, trim_messages
from fleetctl.gateway.prompts.canonical import canonical_body
from fleetctl.gateway.prompts.messages import Message, message_chars, messages_of, tool_texts
from fleetctl.gateway.prompts.prefix_lint import PrefixLint
from fleetctl.gateway.prompts.prompt_metrics import PromptMetrics
from fleetctl.gateway.prompts.token_ratio import MESSAGE_OVERHEAD_TOKENS, TokenRatio, TokenRatios
from fleetctl.gateway.routing.json_cost import is_cheap_to_parse
from fleetctl.gateway.routing.routing_facts import MAX_PROMPT_IDS
from fleetctl.settings.prompts import PromptBudget, PromptSettings

TRIMMED_HEADER = b"x-fleet-trimmed"

Headers = tuple[tuple[bytes, bytes], ...]
AskTokens = Callable[[str | None, dict[str, Any]], None]
"""Asks a node, in the background, how many tokens a request's prompt has."""


class PromptOverBudgetError(Exception):
    """The prompt is larger than its budget, and may not or can't be trimmed. The message is for the client."""


class PreparedBody(NamedTuple):
    """The body that goes on: the client's own bytes where nothing was changed. `headers` are for the answer."""

    body: bytes
    headers: Headers = ()


class _Outline(msgspec.Struct):
    """What a budget needs to know of a body that is not parsed whole."""

    model: msgspec.Raw = msgspec.Raw(b"null")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"null")


_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_prompt = msgspec.json.Decoder(str | list[str | int | list[int]] | None).decode


class PromptPreparation:
    """Prepares the bodies of chat and completion requests. Threading: event loop only."""

    def __init__(
        self,
        settings: PromptSettings,
        metrics: PromptMetrics,
        *,
        ratios: TokenRatios | None = None,
        ask_tokens: AskTokens = lambda model, body: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._ask_tokens = ask_tokens
        self._clock = clock
        self._changes_bodies = bool(settings.budgets or settings.canonical_rules)
        lint = settings.prefix_lint
        self._look_every_s = 1 / lint.max_per_s if lint.max_per_s else None
        self._next_look = 0.0
        self.ratios = ratios or TokenRatios()
        self.lint = PrefixLint(max_templates=lint.max_templates)

    def prepare(self, body: bytes, tenant: str) -> PreparedBody:
        """The body in canonical form and within its budget. Raises PromptOverBudgetError.

        What is no JSON object goes on as it is: the node says what is wrong with it. So does one of so many values
        that parsing it would hold up all other requests, once it is within its budget at the most that it can have.
        """
        is_looked_at = self._is_next_look()
        if not (self._changes_bodies or is_looked_at):
            return PreparedBody(body)
        if not is_cheap_to_parse(body):
            self._check_unparsed(body, tenant)
            return PreparedBody(body)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return PreparedBody(body)
        if not isinstance(value, dict):
            return PreparedBody(body)
        model = value.get("model") if isinstance(value.get("model"), str) else None
        changed, headers = self._changed(value, tenant, model) if self._changes_bodies else (value, ())
        if is_looked_at:
            self._metrics.note_looked_at(self.lint.note_prompt(tenant, changed, self.ratios.of(model)))
        return PreparedBody(body if changed is value else _written(changed), headers)

    def _changed(self, value: dict[str, Any], tenant: str, model: str | None) -> tuple[dict[str, Any], Headers]:
        """The request as it goes on, the same object when nothing of it changes; and headers for its answer."""
        canonical = canonical_body(value, self._settings.canonical_rules)
        if canonical is not value:
            self._metrics.canonicalised.inc()
        budget = self._budget_of(tenant, model)
        return (canonical, ()) if budget is None else self._within(canonical, budget, model)

    def _check_unparsed(self, body: bytes, tenant: str) -> None:
        """Hold the most tokens that the body can have against its budget. Raises PromptOverBudgetError."""
        if self._settings.canonical_rules:
            self._metrics.not_canonicalised.inc()
        if not self._settings.budgets:
            return
        try:
            outline = _decode_outline(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # no JSON object, or what routing refuses among so many values
        model = _text_of(outline.model)
        budget = self._budget_of(tenant, model)
        if budget is None:
            return
        tokens = _most_tokens(body, outline, ratio := self.ratios.of(model))
        if tokens > budget.max_tokens:
            raise self._refusal(tokens, budget, ratio, "so many values are not read but counted by their length")
        self._metrics.budgeted.labels("within").inc()

    def _budget_of(self, tenant: str, model: str | None) -> PromptBudget | None:
        for budget in self._settings.budgets:
            if budget.tenant in (None, tenant) and budget.model in (None, model):
                return budget
        return None

    def _within(self, value: dict[str, Any], budget: PromptBudget, model: str | None) -> tuple[dict[str, Any], Headers]:
        ratio = self.ratios.of(model)
        self._ask_tokens(model, value)
        messages = messages_of(value)
        if messages is None:
            tokens = _prompt_tokens(value.get("prompt"), ratio)
            if tokens <= budget.max_tokens:
                self._metrics.budgeted.labels("within").inc()
                return value, ()
            raise self._refusal(tokens, budget, ratio, "a plain prompt has no turns that could be left out")
        fixed = sum(ratio.tokens(len(text)) for text in tool_texts(value))

        def count_tokens(message: Message) -> int:
            return ratio.tokens(message_chars(message)) + MESSAGE_OVERHEAD_TOKENS

        total = fixed + sum(map(count_tokens, messages))
        if total <= budget.max_tokens:
            self._metrics.budgeted.labels("within").inc()
            return value, ()
        if budget.policy == "refuse":
            raise self._refusal(total, budget, ratio, "send fewer or shorter messages")
        trimmed = trim_messages(
            messages, budget.max_tokens - fixed, count_tokens, evidence_names=self._settings.evidence_names
        )
        if isinstance(trimmed, CannotTrim):
            reason = f"system messages, tools and the last turn alone have {fixed + trimmed.kept_tokens}"
            raise self._refusal(total, budget, ratio, reason)
        self._metrics.budgeted.labels("trimmed").inc()
        self._metrics.trimmed_tokens.inc(trimmed.dropped_tokens)
        turns = f"{trimmed.dropped_turns} turn{'s' if trimmed.dropped_turns != 1 else ''}"
        told = f"{turns}, {trimmed.dropped_tokens:,} tokens ({ratio.describe()})"
        return {**value, "messages": trimmed.messages}, ((TRIMMED_HEADER, told.encode("ascii")),)

    def _refusal(self, tokens: int, budget: PromptBudget, ratio: TokenRatio, reason: str) -> PromptOverBudgetError:
        self._metrics.budgeted.labels("refused").inc()
        return PromptOverBudgetError(
            f"the prompt has {tokens:,} tokens ({ratio.describe()}), its budget is {budget.max_tokens:,}: {reason}"
        )

    def _is_next_look(self) -> bool:
        if self._look_every_s is None:
            return False
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + self._look_every_s
        return True


def _written(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: only its escape can be sent
        return json.dumps(value, separators=(",", ":")).encode()


def _text_of(value: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _most_tokens(body: bytes, outline: _Outline, ratio: TokenRatio) -> int:
    """An upper bound of the prompt's tokens; of a completion's prompts that are text or token ids, their number."""
    by_length = ratio.tokens(len(body)) + MESSAGE_OVERHEAD_TOKENS * body.count(b"{")
    if outline.messages:
        return by_length
    num_values = body.count(b",") + 1
    if num_values <= MAX_PROMPT_IDS:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _prompt_tokens(_decode_prompt(outline.prompt), ratio)
    return max(by_length, num_values)


def _prompt_tokens(prompt: Any, ratio: TokenRatio) -> int:
    """Tokens of a completion's largest prompt: counted where it is token ids."""
    if isinstance(prompt, str):
        return ratio.tokens(len(prompt))
    if isinstance(prompt, list) and prompt:
        if all(isinstance(one, int) for one in prompt):
            return len(prompt)
        return max(_prompt_tokens(one, ratio) if _is_one_prompt(one) else 0 for one in prompt)
    return 0


def _is_one_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, int) for one in value))
