"""What of a conversation is kept within a budget: order, pairs of calls and results, and as much as fits."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.prompts.budget import CannotTrim, Trimmed, trim_messages

EVIDENCE = ("documents",)


def message(role: str, size: int, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": "x" * size, **extra}


def count(one: Any) -> int:
    return len(one["content"]) + 1


def call(*ids: str) -> dict[str, Any]:
    return message("assistant", 3, tool_calls=[{"id": one, "function": {"name": "f"}} for one in ids])


def result(of: str, size: int = 5) -> dict[str, Any]:
    return message("tool", size, tool_call_id=of)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    sizes = st.integers(0, 30)
    made = [message("system", draw(sizes))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            made.append(message("user", draw(sizes), name="documents"))
        made.extend(message("user", draw(sizes)) for _ in range(draw(st.integers(1, 2))))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"{turn}-{step}-{i}" for i in range(draw(st.integers(0, 2)))]
            made.append(call(*ids) if ids else message("assistant", draw(sizes)))
            made.extend(result(one, draw(sizes)) for one in ids)
        if draw(st.integers(0, 9)) == 0:
            made.append(message("developer", draw(sizes)))
    return made


def trim(messages: list[dict[str, Any]], budget: int) -> Trimmed | CannotTrim:
    return trim_messages(messages, budget, count, evidence_names=EVIDENCE)


@settings(max_examples=150, deadline=None)
@given(conversations(), st.integers(0, 200))
def test_what_is_kept_is_in_order_within_budget_and_whole(messages: list[dict[str, Any]], budget: int) -> None:
    trimmed = trim(messages, budget)
    total = sum(map(count, messages))
    if isinstance(trimmed, CannotTrim):
        assert trimmed.kept_tokens > budget
        return
    kept = [id(one) for one in trimmed.messages]
    assert [one for one in map(id, messages) if one in kept] == kept
    assert trimmed.tokens == sum(map(count, trimmed.messages)) <= budget
    assert trimmed.dropped_tokens == total - trimmed.tokens
    assert (trimmed.dropped_turns == 0) == (len(kept) == len(messages))
    systems = [id(one) for one in messages if one["role"] in ("system", "developer")]
    assert set(systems) <= set(kept)
    users = [one for one in messages if one["role"] == "user" and "name" not in one]
    assert not users or id(users[-1]) in kept
    called = {one["id"] for m in trimmed.messages for one in m.get("tool_calls", ())}
    assert called == {m["tool_call_id"] for m in trimmed.messages if m["role"] == "tool"}
    again = trim(list(trimmed.messages), budget)
    assert isinstance(again, Trimmed)
    assert (again.messages, again.dropped_turns) == (trimmed.messages, 0)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6), st.integers(20, 200))
def test_as_many_of_the_newest_turns_are_kept_as_fit(sizes: list[tuple[int, int]], budget: int) -> None:
    turns = [[message("user", asked), message("assistant", said)] for asked, said in sizes]
    last = message("user", 10)
    trimmed = trim([*(one for turn in turns for one in turn), last], budget)
    fitting = [i for i in range(len(turns) + 1) if sum(count(m) for turn in turns[i:] for m in turn) + 11 <= budget]
    assert isinstance(trimmed, Trimmed)
    assert trimmed.messages == [*(one for turn in turns[min(fitting) :] for one in turn), last]
    assert trimmed.dropped_turns == min(fitting)


def test_evidence_stays_before_older_turns_and_the_oldest_turn_goes_first() -> None:
    rules = message("system", 9)
    documents = message("user", 19, name="documents")
    old, old_answer = message("user", 9), message("assistant", 9)
    late, late_answer = message("user", 9, n=2), message("assistant", 9, n=2)
    asked = message("user", 9, n=3)
    trimmed = trim([rules, documents, old, old_answer, late, late_answer, asked], 60)
    assert isinstance(trimmed, Trimmed)
    assert trimmed.messages == [rules, documents, late, late_answer, asked]
    assert (trimmed.dropped_turns, trimmed.dropped_tokens) == (1, 20)
    without_late = trim([rules, documents, old, old_answer, late, late_answer, asked], 40)
    assert isinstance(without_late, Trimmed)
    assert without_late.messages == [rules, documents, asked]


def test_old_steps_of_an_agent_go_and_its_question_and_newest_result_stay() -> None:
    asked = message("user", 9)
    steps = [[call(f"{i}a", f"{i}b"), result(f"{i}a"), result(f"{i}b")] for i in range(4)]
    trimmed = trim([asked, *(one for step in steps for one in step)], 10 + 2 * 16)
    assert isinstance(trimmed, Trimmed)
    assert trimmed.messages == [asked, *steps[2], *steps[3]]
    assert trimmed.dropped_turns == 2


def test_rules_and_last_turn_that_are_too_large_alone_are_said_to_be() -> None:
    assert trim([message("system", 50), message("user", 50)], 60) == CannotTrim(102)
