from __future__ import annotations

import pytest

from alerts.evaluation.worsening import worsens
from alerts.promql import parse


@pytest.mark.parametrize(
    ("expression", "way"),
    [
        ("llm:waiting > 80", 1),
        ("llm:prefix_hit_ratio < 0.5", -1),
        ("sum by (pool) (llm:waiting) >= 80 and on (pool) llm:running > 3", 1),
        ("llm:ttft > 2 * (llm:ttft offset 1h) unless llm:up < 1", 1),
        ("(a > 3) or (b > 5)", 1),
        ("(a > 3) or (b < 5)", 0),
        ("llm:up == 0", 0),
        ("(a > bool 3) == 1", 0),
        ("80 < llm:waiting", 0),
        ("llm:waiting and on (pool) llm:up < 1", 1),
        ("label_replace(llm:free < 3, 'a', 'b', '', '')", -1),
        ("hits_fell", -1),
        ("hits_fell unless on (node) llm:up == 1", -1),
    ],
)
def test_an_alert_gets_worse_the_way_its_comparison_goes(expression: str, way: int) -> None:
    records = {"hits_fell": [parse("llm:hits < 0.7 * (llm:hits offset 1h)").root]}
    assert worsens(parse(expression).root, records) == way
