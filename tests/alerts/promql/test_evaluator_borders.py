"""Both evaluators at their borders: windows, steps, limits, and what is no instant value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from alerts.errors import BadExpressionError, QueryError
from alerts.matcher import Matcher
from alerts.promql import evaluate, evaluate_range, evaluate_vector, parse
from alerts.promql.evaluator import InstantEvaluator, PointBudget
from alerts.promql.grid import at_steps, evaluate_grid
from alerts.promql.values import Vector
from alerts.sample import to_ms
from alerts.series.selection import Selection
from alerts.series.store import SeriesStore


@pytest.fixture(scope="module")
def store() -> SeriesStore:
    """x{a="1"} is its own time every 10 s to 600, x{a="2"} its double, y ends at 300, z is NaN and Inf, b buckets."""
    store = SeriesStore()
    for at in range(0, 601, 10):
        store.append({"__name__": "x", "a": "1"}, at, at)
        store.append({"__name__": "x", "a": "2"}, at, 2 * at)
        if at <= 300:
            store.append({"__name__": "y", "a": "1"}, at, 7.0)
        store.append({"__name__": "z", "a": "1"}, at, math.nan if at % 20 else math.inf)
        for bound, share in (("1", 0.25), ("2", 0.5), ("+Inf", 1.0)):
            store.append({"__name__": "b_bucket", "a": "1", "le": bound}, at, share * at)
    store.mark_stale(next(s.labels for s in store.select(()).series if s.labels.name == "y"), 300_001)
    return store


def values(store: SeriesStore, text: str, at: float) -> dict[str, float]:
    return {sample.labels.get("a", ""): sample.value for sample in evaluate(text, store, at)}


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ('x{a="1"}', 600.0, 600.0),
        ('x{a="1"}', 599.999, 590.0),
        ('x{a="1"}', 899.999, 600.0),
        ('x{a="1"}', 900.0, None),  # the sample of 600 s is five minutes old
        ('x{a="1"} offset 5m', 600.0, 300.0),
        ('x{a="1"} offset -1m', 540.0, 600.0),
        ('x{a="1"} @ 100', 600.0, 100.0),
        ('x{a="1"} @ 100 offset 30s', 600.0, 70.0),
        ('x{a="1"} @ end()', 600.0, 600.0),
        ("y", 300.0, 7.0),
        ("y", 300.001, None),  # stale
        ("y offset 1ms", 300.001, 7.0),
        ('count_over_time(x{a="1"}[30s])', 600.0, 3.0),  # 570 is excluded
        ('count_over_time(x{a="1"}[30s] offset 1ms)', 600.0, 3.0),
        ('sum_over_time(x{a="1"}[30s] @ 30)', 600.0, 60.0),
        ('sum_over_time(x{a="1"}[30s] offset 10s)', 600.0, 580.0 + 570.0 + 590.0),
        ("count_over_time(y[10m])", 600.0, 30.0),  # without 0 s and the staleness marker
        ('count_over_time(x{a="1"}[1m:30s])', 600.0, 2.0),
        ('count_over_time(x{a="1"}[5m:])', 600.0, 5.0),  # every minute
        ('sum_over_time(x{a="1"}[1m:30s])', 590.0, 570.0 + 540.0),  # steps are multiples of 30 s
        ('sum_over_time(x{a="1"}[1m:30s] offset 30s)', 600.0, 570.0 + 540.0),
        ('sum_over_time(x{a="1"}[1m:30s] @ 120)', 600.0, 120.0 + 90.0),
        ("sum_over_time(vector(2)[1m:30s])", 600.0, 4.0),
        ('-x{a="1"}', 600.0, -600.0),
        ("-(1 + 2)", 600.0, -3.0),
        ('2 - x{a="1"}', 600.0, -598.0),
        ('x{a="1"} - 2', 600.0, 598.0),
        ('2 > x{a="1"}', 1.0, 0.0),
        ('700 > bool x{a="1"}', 600.0, 1.0),
        ('x{a="1"} > bool 700', 600.0, 0.0),
        ("1 > bool 2", 600.0, 0.0),
        ("sum(x)", 600.0, 1800.0),
        ("quantile(0.5, x)", 600.0, 900.0),
        ("time()", 12.5, 12.5),
        ('timestamp(x{a="1"})', 605.0, 600.0),
        ('timestamp(x{a="1"} @ 100)', 605.0, 100.0),
        ("scalar(y)", 300.0, 7.0),
    ],
)
def test_value_at_an_instant_is_that_of_prometheus_in_both_evaluators(
    store: SeriesStore, text: str, at: float, wanted: float | None
) -> None:
    found = evaluate(text, store, at)
    assert [sample.value for sample in found] == ([] if wanted is None else [wanted])
    grid = evaluate_grid(parse(text).root, store, np.array([to_ms(at)]), 60_000)
    assert grid.values[grid.present].tolist() == ([] if wanted is None else [wanted])


def test_sample_has_the_time_at_which_it_was_measured(store: SeriesStore) -> None:
    for text, at in (('x{a="1"}', 600.0), ('x{a="1"} + 1', 600.0), ('rate(x{a="1"}[1m])', 600.0), ("time()", 605.0)):
        (sample,) = evaluate(text, store, 605.0)
        assert sample.at == at, text
    (sample,) = evaluate('y{a="1"} @ 100 + on(a) x{a="1"}', store, 605.0)
    assert sample.at == 100.0  # the older side


def test_window_without_a_point_gives_nothing(store: SeriesStore) -> None:
    for text in ("rate(x[5s])", "sum_over_time(x[1s])", "rate(none[5m])", "sum_over_time(none[5m:1m])", "-none"):
        assert evaluate(text, store, 605.0) == [], text
        assert not evaluate_grid(parse(text).root, store, np.array([605_000]), 1000).present.any()
    assert evaluate("absent(none)", store, 605.0)[0].value == 1.0
    assert evaluate("absent_over_time(none[5m])", store, 605.0)[0].value == 1.0
    assert evaluate("absent(x)", store, 605.0) == []
    assert evaluate('absent_over_time(x{a="1"}[5m])', store, 605.0) == []


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('absent(none{a="1",b!="2"})', {"a": "1"}),
        ('absent(none{a="1",a="2",b="3"})', {"b": "3"}),
        ('absent(none{a=~"1"})', {}),
        ('absent(sum(none{a="1"}))', {}),
        ('absent_over_time(none{a="1"}[1m])', {"a": "1"}),
        ('absent({a="1"} offset 1h)', {"a": "1"}),
    ],
)
def test_absent_has_the_labels_that_the_selector_fixes(store: SeriesStore, text: str, labels: dict[str, str]) -> None:
    (sample,) = evaluate(text, store, 600.0)
    assert sample.labels == labels


@pytest.mark.parametrize(
    ("start", "end", "step", "at"),
    [(100.0, 130.0, 10.0, [100, 110, 120, 130]), (100.0, 129.999, 10.0, [100, 110, 120]), (100.0, 100.0, 1.0, [100])],
)
def test_range_query_has_both_ends(store: SeriesStore, start: float, end: float, step: float, at: list[float]) -> None:
    ((labels, points),) = evaluate_range('x{a="1"}', store, start, end, step)
    assert labels == {"__name__": "x", "a": "1"}
    assert points == [(time, time) for time in at]
    ((labels, points),) = evaluate_range("1", store, start, end, step)
    assert (labels, points) == ({}, [(time, 1.0) for time in at])


def test_range_query_knows_its_start_and_end(store: SeriesStore) -> None:
    ((_, points),) = evaluate_range('x{a="1"} @ start() + on() x{a="2"} @ end()', store, 100.0, 120.0, 10.0)
    assert points == [(100.0, 340.0), (110.0, 340.0), (120.0, 340.0)]


@pytest.mark.parametrize(
    ("start", "end", "step"), [(2.0, 1.0, 1.0), (1.0, 2.0, 0.0), (1.0, 2.0, -1.0), (1.0, 2.0, 0.0004)]
)
def test_range_query_without_a_step_or_backwards_is_refused(
    store: SeriesStore, start: float, end: float, step: float
) -> None:
    with pytest.raises(BadExpressionError, match="step above zero"):
        evaluate_range("x", store, start, end, step)


def test_what_is_no_instant_value_is_refused(store: SeriesStore) -> None:
    with pytest.raises(BadExpressionError, match="a string"):
        evaluate('"text"', store, 1.0)
    with pytest.raises(BadExpressionError, match="a range of points"):
        evaluate_vector("x[5m]", store, 1.0)
    for text in ('"text"', "x[5m]"):
        with pytest.raises(BadExpressionError, match="one value per series and step"):
            evaluate_range(text, store, 1.0, 2.0, 1.0)
    with pytest.raises(QueryError, match="a string"):
        evaluate_grid(parse('"text"').root, store, np.array([1000]), 1000)


@pytest.mark.parametrize(("points", "is_refused"), [(122, False), (121, True)])
def test_budget_is_what_all_selectors_of_a_query_read(store: SeriesStore, points: int, is_refused: bool) -> None:
    text = "sum(sum_over_time(x[595s])) + sum(x)"  # 2 x 60 and 2
    evaluator = InstantEvaluator(store, 600_000, 600_000, 600_000, 0, budget=PointBudget(points))
    if not is_refused:
        assert isinstance(evaluator.evaluate(parse(text).root), Vector)
        assert evaluator.budget.left == 0
        return
    with pytest.raises(QueryError, match="more than 121 points"):
        evaluator.evaluate(parse(text).root)


def test_steps_of_a_range_query_draw_on_one_budget(store: SeriesStore) -> None:
    evaluator = InstantEvaluator(store, 600_000, 600_000, 600_000, 0, budget=PointBudget(5))
    root = parse("x").root
    for _ in range(2):
        evaluator.at_step(500_000).evaluate(root)
    with pytest.raises(QueryError):
        evaluator.at_step(500_000).evaluate(root)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("sum_over_time(x[1m:30s])", 2 * 33 + 2 * 2),  # all that may be the newest of a step, once; and two steps
        ("sum_over_time(sum_over_time(x[1m])[2m:30s])", 2 * 15 + 2 * 4),
        ("sum_over_time(sum_over_time(x[1m] @ 300)[2m:30s])", 2 * 6 + 2 * 4),  # one past, however many steps
    ],
)
def test_subquery_reads_its_series_once_and_what_it_gives(store: SeriesStore, text: str, points: int) -> None:
    evaluator = InstantEvaluator(store, 600_000, 600_000, 600_000, 0, budget=PointBudget(1000), at_steps=at_steps)
    evaluator.evaluate(parse(text).root)
    assert 1000 - evaluator.budget.left == points


def test_steps_of_a_subquery_read_one_by_one_are_each_paid_for(store: SeriesStore) -> None:
    evaluator = InstantEvaluator(store, 600_000, 600_000, 600_000, 0, budget=PointBudget(1000))
    evaluator.evaluate(parse("sum_over_time(x[1m:30s])").root)
    assert 1000 - evaluator.budget.left == 2 * 2 + 2 * 2


@pytest.mark.parametrize("at", ["@ 300", "@ start()", "@ end()"])
@pytest.mark.parametrize("what", ["x {at}", "avg_over_time(x[1m] {at})", "sum(x {at}) by (a) - x", "x {at} + time()"])
def test_what_is_pinned_in_a_subquery_is_what_each_step_would_find(store: SeriesStore, at: str, what: str) -> None:
    inner = what.format(at=at)
    found = {one.labels["a"]: one.value for one in evaluate(f"sum_over_time(({inner})[2m:30s])", store, 605.0)}
    steps = [510.0, 540.0, 570.0, 600.0]
    pinned = {"@ start()": "@ 605", "@ end()": "@ 605"}.get(at, at)  # of the query around it
    wanted = dict.fromkeys(("1", "2"), 0.0)
    for step in steps:
        for one in evaluate(what.format(at=pinned), store, step):
            wanted[one.labels["a"]] += one.value
    assert found == wanted


@pytest.mark.parametrize(("steps", "is_refused"), [(11_000, False), (11_001, True)])
def test_subquery_has_a_limit_of_steps(store: SeriesStore, steps: int, is_refused: bool) -> None:
    text = f"count_over_time(vector(1)[{steps}s:1s])"
    if is_refused:
        with pytest.raises(QueryError, match="more than 11000 steps"):
            evaluate(text, store, 20_000.0)
    else:
        assert evaluate(text, store, 20_000.0)[0].value == steps


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("none and on(a) (x / on() x)", True),  # the right side can fail, so it is evaluated
        ("none and on(a) (x > 5)", False),
        ("none * on(a) x", False),
        ("none or x", False),
        ("none unless on(a) (x / on() x)", True),
    ],
)
def test_right_side_that_can_fail_is_evaluated_without_a_left_one(store: SeriesStore, text: str, fails: bool) -> None:
    root = parse(text).root
    if fails:
        with pytest.raises(QueryError):
            evaluate(text, store, 600.0)
        with pytest.raises(QueryError):
            evaluate_grid(root, store, np.array([600_000]), 1000)
    else:
        assert len(evaluate(text, store, 600.0)) == (2 if " or " in text else 0)


def test_right_side_that_cannot_fail_is_not_read_without_a_left_one(store: SeriesStore) -> None:
    for text, points in (("none and on(a) (x > 5)", 0), ("none or x", 2), ("x and on(a) y", 2)):
        evaluator = InstantEvaluator(store, 600_000, 600_000, 600_000, 0, budget=PointBudget(100))
        evaluator.evaluate(parse(text).root)
        assert 100 - evaluator.budget.left == points, text


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x offset 30s",
        "x @ 100",
        "-x",
        "-(time() - 5)",
        "x > 300",
        "300 < x",
        "x > bool 300",
        "300 == bool time()",
        "time()",
        "time() > bool 200",
        "vector(time())",
        "scalar(sum(x))",
        "timestamp(x)",
        "timestamp(x @ 50)",
        "abs(-x)",
        "ln(x)",
        'label_replace(x, "b", "$1", "a", "(.)")',
        'label_join(x, "b", "-", "a", "a")',
        "sum by (a) (x)",
        "topk(1, x)",
        'count_values("v", x > 100)',
        "quantile(0.3, x)",
        "quantile(time() / 1000, x)",
        "max(z)",
        "avg(z)",
        "stddev(x)",
        "rate(x[1m])",
        "rate(x[1m] @ 300)",
        "increase(y[2m])",
        "quantile_over_time(0.9, x[1m])",
        "quantile_over_time(time() / 1000, x[1m])",
        "quantile_over_time(0.5, z[1m])",
        "last_over_time(y[1m])",
        "deriv(x[1m])",
        "max_over_time(rate(x[1m])[2m:30s])",
        "y and on(a) x",
        "y or x",
        "x unless on(a) y",
        "x / on(a) y",
        "x * on(a) group_left y",
        "y * on(a) group_right x",
        "clamp(x, 50, 300)",
        "round(x, 7)",
        "pi()",
        "absent(y)",
        "absent_over_time(y[1m])",
        "sort(x)",
        "day_of_week()",
        "x ^ 2 % 7",
        "predict_linear(x[1m], 60)",
        "changes(z[1m])",
        "min(y) - max(x)",
        "none",
        "sum(none)",
        "none + x",
        "rate(none[1m])",
        "y == y",
        "z != z",
        "histogram_quantile(0.4, b_bucket)",
        "histogram_quantile(time() / 1000, b_bucket)",
        "histogram_quantile(0.4, rate(b_bucket[1m]))",
        "1 / (time() - 600)",
    ],
)
def test_evaluating_many_steps_at_once_gives_what_each_step_gives(store: SeriesStore, text: str) -> None:
    root = parse(text).root
    steps = np.arange(5_000, 700_000, 35_000, dtype=np.int64)
    grid = evaluate_grid(root, store, steps, 35_000)
    for step, at_ms in enumerate(steps.tolist()):
        value = InstantEvaluator(store, at_ms, int(steps[0]), int(steps[-1]), 35_000).evaluate(root)
        wanted = {(): value}
        if isinstance(value, Vector):
            wanted = {one.pairs: number for one, number in zip(value.labels, value.values.tolist(), strict=True)}
        vector = grid.at(step, at_ms)
        got = {one.pairs: number for one, number in zip(vector.labels, vector.values.tolist(), strict=True)}
        assert got.keys() == wanted.keys(), at_ms
        for key, number in got.items():
            assert number == pytest.approx(wanted[key], rel=1e-9, nan_ok=True), (key, at_ms)


class CountingStore(SeriesStore):
    """How often its series were looked for."""

    selects = 0

    def select(self, matchers: tuple[Matcher, ...]) -> Selection:
        self.selects += 1
        return super().select(matchers)


@pytest.mark.parametrize("text", ["x", "rate(x[1m])", "sort(x)", "clamp(x, 1, 5)", "absent(x)", "sum(x) / 2"])
def test_many_steps_look_for_their_series_once(text: str) -> None:
    store = CountingStore()
    for at in range(0, 600, 10):
        store.append({"__name__": "x"}, at, at)
    evaluate_grid(parse(text).root, store, np.arange(60_000, 600_000, 30_000, dtype=np.int64), 30_000)
    assert store.selects == 1
