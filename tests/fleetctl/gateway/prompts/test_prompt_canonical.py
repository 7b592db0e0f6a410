"""Canonical forms: one way to write what means the same, twice is once, and users' words are left alone."""

from __future__ import annotations

import copy
import json
import random
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.prompts.canonical import RULES, canonical_body
from fleetctl.gateway.prompts.divergence import shared_chars
from fleetctl.settings.prompts import CanonicalRuleName

LINES = st.sampled_from(
    ["You help.", "Now: 2026-11-22T10:00:00Z", "  indented", "", "trailing  ", "Id: 12", "a\r", "x: y"]
)
TEXTS = st.lists(LINES, max_size=5).map("\n".join)
CONTENTS = st.one_of(TEXTS, TEXTS.map(lambda text: [{"type": "text", "text": text}]), st.none())
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENTS}),
    max_size=5,
)
SCHEMAS = st.recursive(
    st.sampled_from(["string", 1, None]),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(["type", "properties", "b", "a", "required"]), below, max_size=3),
        st.lists(below, max_size=2),
    ),
    max_leaves=6,
)
TOOLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.sampled_from("abc"), "parameters": SCHEMAS})}),
    max_size=3,
)


def test_every_rule_of_the_settings_exists() -> None:
    assert set(get_args(CanonicalRuleName)) == set(RULES)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, TOOLS, st.sets(st.sampled_from(sorted(RULES))))
def test_twice_is_once_and_the_body_that_came_is_not_changed(messages: Any, tools: Any, rules: set[str]) -> None:
    body = {"messages": messages, "tools": tools}
    came = copy.deepcopy(body)
    once = canonical_body(body, rules)
    assert body == came
    assert json.dumps(canonical_body(once, rules)) == json.dumps(once)
    users = [one for one in body["messages"] if one["role"] != "system"]
    if not rules & {"plain_content"}:
        assert [one for one in once["messages"] if one["role"] != "system"] == users
    assert sorted(map(str, (t["function"]["name"] for t in once["tools"]))) == sorted(
        t["function"]["name"] for t in tools
    )


def system(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "Now: 10:00  \r\n"}]}


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("system_whitespace", "\nRules  \r\n\r\nNo. \n", "Rules\n\nNo."),
        (
            "volatile_lines_last",
            "Date: 2026-11-22\nRules\nAt 10:00 sleep",
            "Rules\nAt 10:00 sleep\nDate: 2026-11-22",
        ),
        ("volatile_lines_last", "Version: two\nRules", "Version: two\nRules"),
    ],
)
def test_a_rule_changes_system_messages_as_it_says(rule: str, before: str, after: str) -> None:
    changed = canonical_body(system(before), [rule])
    assert changed["messages"] == system(after)["messages"]


def test_system_messages_of_the_opening_come_first_and_later_ones_stay() -> None:
    roles = ["user", "system", "user", "assistant", "system", "user"]
    body = {"messages": [{"role": role, "content": str(i)} for i, role in enumerate(roles)]}
    assert [one["content"] for one in canonical_body(body, ["system_first"])["messages"]] == list("102345")


def test_tools_are_in_order_of_name_and_properties_keep_theirs() -> None:
    parameters = {"type": "object", "properties": {"z": {"type": "string", "enum": ["b", "a"]}, "a": {}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    other = {"type": "function", "function": {"name": "find"}}
    changed = canonical_body({"tools": [tool, other]}, ["tool_order", "schema_key_order"])
    assert json.dumps(changed["tools"]) == (
        '[{"function": {"name": "find"}, "type": "function"}, {"function": {"name": "look", "parameters": '
        '{"properties": {"z": {"enum": ["b", "a"], "type": "string"}, "a": {}}, "type": "object"}}, '
        '"type": "function"}]'
    )


def test_what_changes_nothing_gives_the_same_object() -> None:
    body = system("Rules")
    assert canonical_body(body, RULES) is body


def prompts(rules: Any, count: int = 60) -> list[str]:
    """A made trace: one assistant behind clients that write the same rules in different ways, and the time on top."""
    rng = random.Random(7)
    rules_text = "\n".join(f"Rule {word}: answer politely, cite the policy, never guess." for word in "abcdefghijkl")
    texts = []
    for i in range(count):
        tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "xyz"]
        rng.shuffle(tools)
        end = rng.choice(["\n", "\r\n"])
        lines = [f"Time: 2026-11-22T10:{i:02d}:00Z", *rules_text.split("\n")]
        content: Any = end.join(lines) + rng.choice(["", "\n"])
        content = content if rng.random() < 0.5 else [{"type": "text", "text": content}]
        body = {
            "messages": [{"role": "system", "content": content}, {"role": "user", "content": f"q{i}"}],
            "tools": tools,
        }
        body = canonical_body(body, rules)
        parts = [json.dumps(body["tools"])]
        for one in body["messages"]:
            text = one["content"] if isinstance(one["content"], str) else one["content"][0]["text"]
            parts.append(f"{one['role']}\n{text}")
        texts.append("\n".join(parts))
    return texts


def test_a_trace_of_careless_clients_shares_its_prefix_in_canonical_form() -> None:
    def shared(rules: Any) -> float:
        texts = prompts(rules)
        pairs = list(pairwise(texts))
        return sum(shared_chars(old, new) / len(new) for old, new in pairs) / len(pairs)

    assert shared([]) < 0.2
    assert shared(RULES) > 0.9
