"""What rules of one tick ask for alike is evaluated once, what cannot matter not at all; the answers are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.errors import QueryError
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import load_rule_file
from alerts.promql import evaluate, evaluate_vector, parse
from alerts.promql.nodes import Binary
from alerts.promql.shared_results import SharedResults
from alerts.series.store import SeriesStore

TARGET = {"node": "n1"}


def make_engine(tmp_path: Path, store: SeriesStore, text: str) -> RuleEngine:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return RuleEngine(load_rule_file(path), store, default_interval_s=5)


def value(store: SeriesStore, expression: str, at: float) -> float | None:
    samples = evaluate(expression, store, at)
    return samples[0].value if samples else None


CHAIN = """
groups:
  - name: a
    rules:
      - {record: before, expr: sum(m) + 0}
      - {record: m, expr: sum(x) * 10}
      - {record: after, expr: sum(m) + 0}
  - name: late
    query_offset: 10s
    rules:
      - {record: late, expr: sum(x) + 0}
      - {record: also_late, expr: sum(x) + 0}
  - name: now
    rules:
      - {record: now, expr: sum(x) + 0}
"""


def test_rule_sees_what_an_earlier_rule_has_just_recorded(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = make_engine(tmp_path, store, CHAIN)
    for tick in range(1, 5):
        store.ingest(TARGET, f"x {tick}\n", 1000.0 + 5 * tick)
        engine.tick(1000.0 + 5 * tick)
    at = 1020.0
    assert [value(store, name, at) for name in ("before", "m", "after")] == [30, 40, 40]


def test_same_expression_of_another_moment_is_another_answer(tmp_path: Path) -> None:
    store = SeriesStore()
    engine = make_engine(tmp_path, store, CHAIN)
    for tick in range(1, 5):
        store.ingest(TARGET, f"x {tick}\n", 1000.0 + 5 * tick)
        engine.tick(1000.0 + 5 * tick)
    moments = {"now": 1020.0, "late": 1010.0, "also_late": 1010.0}
    assert [value(store, name, at) for name, at in moments.items()] == [4, 2, 2]


def test_part_that_two_rules_have_is_evaluated_once() -> None:
    store = SeriesStore()
    store.ingest(TARGET, "x 1\n", 1000.0)
    queries = [parse("sum by (node) (x) > 0"), parse("2 * sum by (node) (x)")]
    shared = SharedResults(query.root for query in queries)
    first = evaluate_vector(queries[0], store, 1000.0, shared=shared)
    store.append({"__name__": "x", "node": "n2"}, 1000.0, 5.0)  # no rule wrote it: not looked for within a tick
    assert not isinstance(first, float)
    again = evaluate_vector(queries[1], store, 1000.0, shared=shared)
    assert not isinstance(again, float)
    assert again.values.tolist() == [2.0]
    shared.clear()
    later = evaluate_vector(queries[1], store, 1000.0, shared=shared)
    assert not isinstance(later, float)
    assert sorted(later.values.tolist()) == [2.0, 10.0]


@pytest.mark.parametrize(
    ("expression", "may_skip"),
    [
        ("a and b > 1", True),
        ("a unless on (node) sum by (node) (rate(b[1m])) > 0", True),
        ("a / b", True),
        ("a > 1.1 * quantile_over_time(0.5, b[10m] offset 5m)", True),
        ("a or b", False),  # the right is asked for just then
        ("a and b / on (node) c", False),  # may find two partners
        ("a and b / on (node) group_left () c", False),
        ("a and -{job='x'}", False),  # several metrics may become one
        ("a and label_replace(b, 'x', '$1', 'y', '(.*)')", False),
        ("a and count_values('v', b)", False),
        ("a and topk(scalar(c), b)", False),
        ("a and max_over_time(rate(b[5m])[1h:1m])", False),
    ],
)
def test_right_side_is_skipped_only_where_it_cannot_fail(expression: str, may_skip: bool) -> None:
    root = parse(expression).root
    assert isinstance(root, Binary)
    assert root.may_skip_rhs is may_skip


def test_failing_right_side_fails_although_the_left_is_empty() -> None:
    store = SeriesStore()
    store.ingest(TARGET, 'b{x="1"} 1\nb{x="2"} 1\nc{x="1"} 1\n', 1000.0)
    with pytest.raises(QueryError, match="multiple matches"):
        evaluate("nothing and b / on (node) c", store, 1000.0)
    assert evaluate("nothing and b > 0", store, 1000.0) == []
