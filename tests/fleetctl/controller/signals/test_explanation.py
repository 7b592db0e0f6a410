"""Each part of an alert's rule has the value that it has where the alert is, and none where nothing is known."""

from __future__ import annotations

import pytest

from alerts.evaluation.rules import load_group
from alerts.review.conditions import Condition, conditions_of
from alerts.series.store import SeriesStore
from fleetctl.controller.signals.explanation import explain_alert, find_rule

NOW = 1000.0


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a > 5", [Condition("", "a", ">", "5")]),
        ("(a > 5) and on (node) b unless c", [
            Condition("", "a", ">", "5"), Condition("and", "b"), Condition("unless", "c")
        ]),
        ("a / b > c or absent(d)", [Condition("", "a / b", ">", "c"), Condition("or", "absent(d)")]),
        ("sum(a)", [Condition("", "sum(a)")]),
    ],
)  # fmt: skip
def test_an_expression_is_taken_apart_where_conditions_are_joined(expression: str, parts: list[Condition]) -> None:
    assert conditions_of(expression) == parts


def test_parts_have_the_value_of_the_alerts_own_place_and_none_where_nothing_is_known() -> None:
    expression = "llm:steps > llm:limit unless llm:draining"
    group = load_group({"name": "g", "rules": [{"alert": "Slow", "expr": expression, "for": "1m"}]}, 1, "own.yaml")
    store = SeriesStore()
    for node, value in (("node-1", 0.02), ("node-2", 0.06)):
        store.append({"__name__": "llm:steps", "node": node}, NOW, value)
    store.append({"__name__": "llm:limit", "pool": "chat"}, NOW, 0.05)

    rule = find_rule([group], "Slow")
    assert rule is not None
    told = explain_alert(rule, {"node": "node-2", "alertname": "Slow"}, store, NOW)

    assert [
        (one.joined, one.expression, one.comparison, one.limit, one.value, one.limit_value) for one in told.parts
    ] == [
        ("", "llm:steps", ">", "llm:limit", 0.06, 0.05),
        ("unless", "llm:draining", "", "", None, None),
    ]
    assert (told.name, told.for_s) == ("Slow", 60.0)
    wide = explain_alert(rule, {"alertname": "Slow"}, store, NOW)
    assert wide.parts[0].value is None, "two nodes fit: which one is not known"
    assert find_rule([group], "Other") is None
