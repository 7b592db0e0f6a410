"""What Prometheus' own tests do not cover: refusals, ages, limits, patterns."""

from __future__ import annotations

import math

import pytest

from alerts.errors import BadExpressionError, QueryError
from alerts.matcher import compile_go
from alerts.promql import evaluate, evaluate_range, parse
from alerts.promql.nodes import fixed_reach_ms
from alerts.series.store import SeriesStore


@pytest.fixture
def store() -> SeriesStore:
    store = SeriesStore()
    for at in range(61):
        store.append({"__name__": "x", "node": "a"}, float(at), at * 2.0)
        store.append({"__name__": "x", "node": "b"}, float(at), at * 3.0)
    store.append({"__name__": "gauge", "node": "a"}, 40.0, 5.0)
    return store


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("foo(x)", "unknown function foo()"),
        ("rate(x)", "expected type matrix in call to function 'rate', got vector"),
        ("info(x)", "info() is not supported: experimental in Prometheus; join with * on(...) group_left(...) instead"),
        ("histogram_avg(x)", "histogram_avg() is not supported: native histograms are not supported"),
        ("limitk(1, x)", "limitk() is not supported: experimental in Prometheus; use topk()"),
        ("x + fill(0) y", "fill() is not supported: experimental in Prometheus"),
        ("x @ -5", "a time before 1970 after @ is not supported"),
        ('x{a="\\xff"}', "a string is not valid UTF-8: \\xff"),
        ("(" * 101 + "x" + ")" * 101, "nested deeper than 100"),
        ("-" * 5000 + "x", "nested deeper than 100"),
        ("x" * 20_000, "longer than 16384 characters"),
    ],
)
def test_refuses_at_parse_time_with_one_line(expression: str, reason: str) -> None:
    with pytest.raises(BadExpressionError) as caught:
        parse(expression)
    assert str(caught.value) == reason


@pytest.mark.parametrize("expression", ["", "x{", "sum(", 'x{a=~"("}', "x and 1", "{}", "x[5m] + 1", "x[5m"])
def test_refuses_what_prometheus_refuses(expression: str) -> None:
    with pytest.raises(BadExpressionError):
        parse(expression)


@pytest.mark.parametrize("expression", ["x[5m]", "x[5m:1m]", '"text"'])
def test_refuses_what_is_no_single_value(expression: str, store: SeriesStore) -> None:
    with pytest.raises(BadExpressionError, match="wanted one value per series"):
        evaluate(expression, store, 60.0)


def test_scalar_is_one_sample_without_labels(store: SeriesStore) -> None:
    (sample,) = evaluate("1 + 2", store, 60.0)
    assert (sample.labels, sample.value, sample.at) == ({}, 3.0, 60.0)


@pytest.mark.parametrize(
    ("expression", "at"),
    [
        ("gauge", 40.0),
        ("gauge * 2", 40.0),
        ("sum(gauge)", 40.0),
        ("rate(x[20s])", 60.0),
        ("max_over_time(gauge[1m])", 40.0),
        ('gauge + on(node) x{node="a"}', 40.0),
        ('x{node="a"} + on(node) gauge', 40.0),
        ('x{node="a"} and on(node) gauge', 40.0),
        ('x{node="a"} unless on(node) nothing', 60.0),
        ("absent(nothing)", 60.0),
    ],
)
def test_answer_is_as_old_as_the_older_side_of_what_it_is_made_of(
    expression: str, at: float, store: SeriesStore
) -> None:
    assert {sample.at for sample in evaluate(expression, store, 60.0)} == {at}


def test_window_excludes_its_left_border(store: SeriesStore) -> None:
    samples = evaluate('count_over_time(x{node="a"}[20s])', store, 60.0)
    assert [sample.value for sample in samples] == [20.0]


def test_many_to_one_without_grouping_fails(store: SeriesStore) -> None:
    with pytest.raises(QueryError, match="many-to-one matching must be explicit"):
        evaluate("x / on() gauge", store, 60.0)


def test_duplicate_on_the_one_side_fails(store: SeriesStore) -> None:
    with pytest.raises(QueryError, match=r"found duplicate series for the match group \{\} on the right hand-side"):
        evaluate("gauge / on() x", store, 60.0)


def test_dropping_names_must_not_merge_series(store: SeriesStore) -> None:
    with pytest.raises(QueryError, match="same labelset"):
        evaluate('-{node="a"}', store, 60.0)


def test_alternatives_of_matchers(store: SeriesStore) -> None:
    samples = evaluate('x{node="a" or node="b"}', store, 60.0)
    assert {sample.labels["node"] for sample in samples} == {"a", "b"}


def test_subquery_steps_lie_on_multiples_of_the_step(store: SeriesStore) -> None:
    (sample,) = evaluate('count_over_time(x{node="a"}[20s:7s])', store, 60.0)
    assert sample.value == 3.0  # at 42, 49 and 56
    assert sample.at == 56.0


def test_subquery_with_too_many_steps_is_refused(store: SeriesStore) -> None:
    with pytest.raises(QueryError, match="more than 11000 steps"):
        evaluate("sum_over_time(x[1d:1s])", store, 60.0)


def test_range_query_gives_every_step(store: SeriesStore) -> None:
    ((labels, points),) = evaluate_range('sum(x{node="a"})', store, 10.0, 30.0, 10.0)
    assert labels == {}
    assert points == [(10.0, 20.0), (20.0, 40.0), (30.0, 60.0)]


def test_start_and_end_are_those_of_the_range_query(store: SeriesStore) -> None:
    ((_, points),) = evaluate_range('sum(x{node="a"} @ end())', store, 10.0, 30.0, 10.0)
    assert [value for _, value in points] == [60.0, 60.0, 60.0]


def test_quantile_of_a_histogram_without_observations_is_not_a_number() -> None:
    store = SeriesStore()
    for bound in ("0.1", "1", "+Inf"):
        store.append({"__name__": "h_bucket", "le": bound}, 1.0, 0.0)
    (sample,) = evaluate("histogram_quantile(0.99, h_bucket)", store, 1.0)
    assert math.isnan(sample.value)


def test_quantile_is_linear_inside_its_bucket() -> None:
    store = SeriesStore()
    for bound, count in (("1", 10.0), ("2", 20.0), ("+Inf", 20.0)):
        store.append({"__name__": "h_bucket", "le": bound}, 1.0, count)
    assert evaluate("histogram_quantile(0.75, h_bucket)", store, 1.0)[0].value == pytest.approx(1.5)
    assert evaluate("histogram_fraction(0, 1.5, h_bucket)", store, 1.0)[0].value == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a(?i)b|c", "aB", True),
        ("a(?i)b|c", "C", True),
        ("a(?i)b|c", "AB", False),
        ("((?i)pro).*", "PROduction", True),
        ("[[:alpha:]]+", "abc", True),
        ("[[:alpha:]]+", "ab1", False),
        ("\\d+", "١", False),
        ("a.c", "a\nc", True),
        ("\\Qa.b\\E", "a.b", True),
        ("\\Qa.b\\E", "axb", False),
        ("a\\z", "a", True),
        ("[]a]", "]", True),
        ("x|", "", True),
        ("\\p{Greek}+", "λ", True),
        ("(?U)a+", "aa", True),
    ],
)
def test_pattern_means_what_it_means_in_go(pattern: str, text: str, matches: bool) -> None:
    assert (compile_go(pattern).fullmatch(text) is not None) is matches


def test_a_pattern_takes_time_in_proportion_to_the_text_whoever_wrote_it() -> None:
    assert compile_go("(a+)+b").fullmatch("a" * 100_000) is None  # a backtracking matcher never ends
    assert compile_go(".*a.*a.*a.*a.*b").fullmatch("a" * 10_000) is None


@pytest.mark.parametrize("pattern", ["(a", "a(?=b)", "(a)\\1", "((a{100}){100}){100}"])
def test_what_go_cannot_read_as_a_pattern_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(BadExpressionError, match="bad regular expression"):
        compile_go(pattern)


def test_a_query_reads_no_more_points_than_it_may() -> None:
    store = SeriesStore()
    for at in range(100):
        store.append({"__name__": "x"}, float(at), 1.0)
    assert evaluate("sum_over_time(x[200s])", store, 99.0, points=100)[0].value == 100.0
    with pytest.raises(QueryError, match="more than 99 points"):
        evaluate("sum_over_time(x[200s])", store, 99.0, points=99)


def test_increase_reaches_past_its_points_by_at_most_half_an_interval_when_the_next_point_is_overdue() -> None:
    store = SeriesStore()
    for at in (12, 22, 32, 42, 52):
        store.append({"__name__": "x_total"}, float(at), 1000.0 + at)
    (sample,) = evaluate("increase(x_total[60s])", store, 60.0)
    # The left border is 12 s away, more than 1.1 intervals: 5 s count. The right one is 8 s away: all of them count.
    assert sample.value == pytest.approx(40.0 + 5.0 + 8.0)


@pytest.mark.parametrize("function", ["histogram_quantile(0.9, up)", "histogram_fraction(0, 1, up)"])
def test_series_without_buckets_are_no_histogram(function: str, store: SeriesStore) -> None:
    store.append({"__name__": "up", "node": "a"}, 40.0, 1.0)
    store.append({"__name__": "up", "node": "b", "le": "high"}, 40.0, 1.0)
    assert evaluate(function, store, 40.0) == []
    assert evaluate_range(function, store, 40.0, 50.0, 10.0) == []


@pytest.mark.parametrize("function", ["histogram_quantile(0.5, {})", "histogram_fraction(0, 1, {})"])
def test_buckets_of_two_metrics_are_two_histograms(function: str) -> None:
    store = SeriesStore()
    for metric, inner in (("a_bucket", 20.0), ("b_bucket", 10.0)):
        for bound, count in (("1", 10.0), ("2", inner), ("+Inf", 20.0)):
            store.append({"__name__": metric, "le": bound}, 1.0, count)
    both = function.format('{__name__=~"a_bucket|b_bucket"}')
    with pytest.raises(QueryError, match="same labelset"):
        evaluate(both, store, 1.0)
    with pytest.raises(QueryError, match="same labelset"):
        evaluate_range(both, store, 1.0, 2.0, 1.0)
    assert len(evaluate(function.format("a_bucket"), store, 1.0)) == 1


def test_counts_of_one_bound_written_in_two_ways_are_added() -> None:
    store = SeriesStore()
    for bound, count in (("1", 10.0), ("1.0", 10.0), ("+Inf", 15.0), ("Inf", 15.0)):
        store.append({"__name__": "h_bucket", "le": bound}, 1.0, count)
    assert evaluate("histogram_quantile(0.5, h_bucket)", store, 1.0)[0].value == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("buckets", "function", "expected"),
    [
        ({"-3": 10, "-2": 12, "-1": 15, "+Inf": 100}, "histogram_fraction(-4, -2, h_bucket)", 0.02),
        ({"-3": 10, "-2": 12, "-1": 15, "+Inf": 100}, "histogram_fraction(-Inf, -4, h_bucket)", 0.1),
        ({"+Inf": 100}, "histogram_fraction(0, 1, h_bucket)", 0.0),
        ({"1": 1, "2": 3, "+Inf": 100}, "histogram_fraction(1.5, 50, h_bucket)", 0.01),
    ],
    ids=["from below the first bound", "to below the first bound", "one bucket", "into the last bucket"],
)
def test_a_bucket_without_end_is_not_shared_out(buckets: dict[str, int], function: str, expected: float) -> None:
    store = SeriesStore()
    for bound, count in buckets.items():
        store.append({"__name__": "h_bucket", "le": bound}, 1.0, count)
    assert evaluate(function, store, 1.0)[0].value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("expression", "reach_ms"),
    [
        ("rate(x[5m])", 0),
        ("avg_over_time(x[30m] @ 1000) + rate(y[1h])", 1_800_000),
        ("x @ 1000 offset 20m", 1_200_000),
        ("max_over_time(rate(x[1m])[10m:5s] @ 1000 offset 1m)", 720_000),
        ("sum_over_time(avg(avg_over_time(x[30m] @ 1000))[75m:1m])", 1_800_000),
    ],
)
def test_a_fixed_time_is_read_back_as_far_as_its_windows_reach(expression: str, reach_ms: int) -> None:
    assert fixed_reach_ms(parse(expression).root) == reach_ms
