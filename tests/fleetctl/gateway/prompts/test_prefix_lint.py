"""Templates that lose their shared prefix: found by hashes alone, with place, kind and cost."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from fleetctl.gateway.prompts.prefix_lint import PrefixLint
from fleetctl.gateway.prompts.token_ratio import ESTIMATED
from fleetctl.gateway.prompts.volatile_fields import field_at, first_field, only_field

RULES = "\n".join(
    f"Rule {name}: be brief, cite the policy by its title and never guess at prices." for name in "abcdefghij"
)


def chat(system: str, user: str = "why?", **extra: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "m", "messages": messages, **extra}


def report(*bodies: dict[str, Any], tenant: str = "t") -> list[dict[str, Any]]:
    lint = PrefixLint(max_templates=10)
    for body in bodies:
        lint.note_prompt(tenant, body, ESTIMATED)
    return lint.report()


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (lambda i: f"2026-11-22T10:{i:02d}:00Z", "timestamp"),
        (lambda i: f"2026-11-{i + 1:02d}", "date"),
        (lambda i: str(uuid.UUID(int=i)), "uuid"),
        (lambda i: f"sess_a8{i}f3", "id"),
        (lambda i: str(40 + i), "number"),
        (lambda i: ["red", "green", "blue", "black", "white"][i], "text"),
    ],
    ids=["timestamp", "date", "uuid", "id", "number", "text"],
)
def test_a_field_on_top_costs_the_rest_of_the_prompt(field: Any, kind: str) -> None:
    (row,) = report(*(chat(f"You serve customer {field(i)} today.\n{RULES}", f"question {i}") for i in range(5)))
    assert (row["requests"], row["kind"], row["share"]) == (5, kind, 1.0)
    assert row["first_difference_tokens"] == 0
    assert row["lost_tokens_per_request"] == pytest.approx(len(RULES) / 4, rel=0.1)
    assert row["remedy"]


def test_a_field_behind_the_stable_text_costs_nothing() -> None:
    (row,) = report(*(chat(f"{RULES}\nNow: 10:0{i}", f"question {i}") for i in range(5)))
    assert row["lost_tokens_per_request"] < 10
    assert row["first_difference_tokens"] == pytest.approx(len(RULES) / 4, rel=0.1)


def test_a_conversation_that_goes_on_differs_nowhere() -> None:
    first = chat(RULES)
    more = {**first, "messages": [*first["messages"], {"role": "assistant", "content": "so"}]}
    (row,) = report(first, more)
    assert (row["requests"], row["kind"], row["lost_tokens_per_request"]) == (2, None, 0)


def test_tools_in_another_order_are_told_apart_from_other_tools() -> None:
    tools = [{"type": "function", "function": {"name": f"tool_{i}", "description": "x" * 50}} for i in range(4)]
    (row,) = report(*(chat(RULES, tools=tools[i:] + tools[:i]) for i in range(4)))
    assert row["kind"] == "tool_order"


def test_templates_and_tenants_are_kept_apart_and_the_costliest_is_first() -> None:
    lint = PrefixLint(max_templates=3)
    for i in range(4):
        lint.note_prompt("a", chat(f"Now: 10:0{i}\n{RULES}"), ESTIMATED)
        lint.note_prompt("b", chat(RULES), ESTIMATED)
        lint.note_prompt(
            "a", chat("Translate into the French of Molière, whatever it is that you are given."), ESTIMATED
        )
    rows = lint.report()
    assert rows[0]["tenant"] == "a"
    assert [row["requests"] for row in rows] == [4, 4, 4]
    lint.note_prompt("c", chat(RULES), ESTIMATED)
    assert len(lint.report()) == 3


def test_no_text_of_a_prompt_is_kept() -> None:
    lint = PrefixLint(max_templates=3)
    for i in range(3):
        lint.note_prompt("t", chat(f"Secret {i} of the house\n{RULES}", "my name is Ada"), ESTIMATED)
    (template,) = lint._templates.values()
    assert "Secret" not in repr(template)
    assert "Ada" not in repr(template)
    assert "Ada" not in json.dumps(lint.report())


def test_hostile_words_take_no_time() -> None:
    for text in ("a-" * 200_000, "9" * 200_000, "1." * 100_000, "ab1-" * 100_000):
        body = chat(f"{text}\n{RULES}")
        report(body, chat(f"x{text}\n{RULES}"))
        field_at(text, len(text) - 1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Sunday, November 22, 2026", "date"),
        ("at 9:05 pm", "timestamp"),
        ("1763800000", "timestamp"),
        ("3f2b8c1e-1111-4222-8333-abcdefabcdef", "uuid"),
        ("no field", None),
    ],
)
def test_fields_are_known_by_their_shape(text: str, kind: str | None) -> None:
    found = first_field(text)
    assert (found.kind.value if found else None) == kind


def test_a_field_is_one_only_when_nothing_else_is_there() -> None:
    assert only_field(" 2026-11-22 ") == "date"
    assert only_field("2026-11-22 or later") is None
