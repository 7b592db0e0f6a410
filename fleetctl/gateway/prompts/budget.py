"""What of a conversation is kept when it is larger than its budget. Pure.

Kept for sure: system and developer messages, the last user turn's own messages, and the last step. Of the rest, in this
order: retrieved evidence, newest first; the steps after the last user message, newest first; earlier turns, newest
first. Each stops at the first that does not fit: what is kept of the turns is one unbroken end of the conversation. A
tool call and its results are one step, and an earlier turn goes as a whole, so that roles still alternate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fleetctl.gateway.prompts.messages import TOOL_ROLES, Message, calls_tools, is_system, role_of


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A conversation within its budget, and what was left out of it."""

    messages: Sequence[Message]
    tokens: int
    dropped_turns: int = 0  # evidence and steps count as one each
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CannotTrim:
    """Even what must be kept is larger than the budget."""

    kept_tokens: int


def trim_messages(
    messages: Sequence[Message],
    budget_tokens: int,
    count_tokens: Callable[[Message], int],
    *,
    evidence_names: Collection[str] = (),
) -> Trimmed | CannotTrim:
    """The messages within the budget, in their order. What fits already is returned as it is."""
    costs = [count_tokens(message) for message in messages]
    total = sum(costs)
    if total <= budget_tokens:
        return Trimmed(messages, total)
    parts = _divide(messages, evidence_names)
    left = budget_tokens - sum(costs[i] for i in parts.pinned)
    if left < 0:
        return CannotTrim(budget_tokens - left)
    kept = set(parts.pinned)
    dropped = 0
    for group in (parts.evidence, parts.steps, parts.turns):
        for position, unit in enumerate(reversed(group)):
            cost = sum(costs[i] for i in unit)
            if cost > left:
                dropped += len(group) - position
                break
            left -= cost
            kept.update(unit)
    if not dropped:
        return Trimmed(messages, total)
    tokens = sum(costs[i] for i in kept)
    return Trimmed([message for i, message in enumerate(messages) if i in kept], tokens, dropped, total - tokens)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Indexes of messages; what is kept or dropped together is one unit. Oldest first."""

    pinned: list[int]
    evidence: list[list[int]]
    steps: list[list[int]]  # after the last user message
    turns: list[list[int]]  # before the last user turn


def _divide(messages: Sequence[Message], evidence_names: Collection[str]) -> _Parts:
    pinned = [i for i, message in enumerate(messages) if is_system(message)]
    evidence: list[list[int]] = []
    spoken: list[int] = []
    for i, message in enumerate(messages):
        if is_system(message):
            continue
        if role_of(message) == "user" and message.get("name") in evidence_names:
            evidence.append([i])
        else:
            spoken.append(i)
    turns = _turns(messages, spoken)
    if not turns:
        # Nothing but evidence and rules: the newest evidence is what the request is about.
        pinned += evidence.pop() if evidence else []
        return _Parts(pinned, evidence, [], [])
    *earlier, last = turns
    asked = [i for i in last if role_of(messages[i]) == "user"]
    steps = _steps(messages, last[len(asked) :] if asked else last)
    pinned += asked
    if steps:
        pinned += steps.pop()
    return _Parts(pinned, evidence, steps, earlier)


def _turns(messages: Sequence[Message], spoken: Sequence[int]) -> list[list[int]]:
    """A turn begins with the user messages that follow another role. A tool result never begins one."""
    turns: list[list[int]] = []
    was_user = False
    for i in spoken:
        is_user = role_of(messages[i]) == "user"
        if not turns or (is_user and not was_user):
            turns.append([])
        turns[-1].append(i)
        was_user = is_user
    return turns


def _steps(messages: Sequence[Message], indexes: Sequence[int]) -> list[list[int]]:
    """An assistant's tool calls and their results are one step; any other message is one of its own."""
    steps: list[list[int]] = []
    is_open = False
    for i in indexes:
        if role_of(messages[i]) in TOOL_ROLES and is_open:
            steps[-1].append(i)
            continue
        steps.append([i])
        is_open = calls_tools(messages[i]) or role_of(messages[i]) in TOOL_ROLES
    return steps
